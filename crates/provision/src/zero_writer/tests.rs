//! Every way of writing zeros, compared with a vector.

use extant_space::{CancelToken, Control, Silent};
use extant_testkit::require;
use extant_testkit::requires::Requirement;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::test_file::TestFile;

const SIZE: u64 = 5 << 20;

/// Zeros random ranges of a file full of ones, by one engine, and compares with a vector.
fn check(plan: impl Fn(&TestFile) -> Plan, prepare: impl Fn(&mut ZeroWriter<'_>)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let cancel = CancelToken::new();
    let ranges = prop::collection::vec((0..SIZE, 1..SIZE / 2), 1..6);
    let mut runner = TestRunner::new(Config {
        cases: 24,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&ranges, |ranges| {
        std::fs::write(&path, vec![1; SIZE as usize]).unwrap();
        let file = TestFile::open(&path);
        let control = Control::new(&cancel, &Silent);
        let target = Provisioner::new(&file, ByteRange::new(0, SIZE), control);
        let mut writer = ZeroWriter::new(&target, &plan(&file), 0).unwrap();
        prepare(&mut writer);
        let mut model = vec![1; SIZE as usize];
        let mut wanted = 0;
        for (at, len) in ranges {
            let range = ByteRange::new(at, SIZE.min(at + len));
            writer.zero(range).unwrap();
            model[at as usize..range.end() as usize].fill(0);
            wanted += range.len();
        }
        prop_assert_eq!(writer.finish().unwrap(), wanted);
        prop_assert!(std::fs::read(&path).unwrap() == model);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn direct(file: &TestFile) -> Plan {
    Plan::by_writing(file, "test")
}

fn has_direct() -> Requirement {
    let file = tempfile::NamedTempFile::new().unwrap();
    let plan = direct(&TestFile::open(file.path()));
    Requirement::new("direct I/O in TMPDIR", plan.direct_io.is_some())
}

#[test]
fn ring_zeros_the_ranges_and_nothing_else() {
    let has_ring = Ring::new(1).is_ok_and(|ring| ring.has_timeouts());
    require!(
        has_direct(),
        Requirement::new("io_uring of Linux 5.11", has_ring)
    );
    check(direct, |writer| {
        assert!(matches!(writer.engine, Engine::Ring(_)));
    });
}

#[test]
fn threads_zero_the_ranges_and_nothing_else() {
    require!(has_direct());
    check(direct, |writer| writer.engine = Engine::Threads);
}

#[test]
fn write_at_zeros_the_ranges_and_nothing_else() {
    let in_order = |file: &TestFile| {
        let mut plan = direct(file);
        plan.fall_back_to_write_in_order("test");
        plan
    };
    check(in_order, |writer| assert!(writer.direct.is_none()));
}

#[test]
fn many_small_ranges_are_zeroed_in_batches() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let size = 16 << 20;
    std::fs::write(&path, vec![1; size]).unwrap();
    let file = TestFile::open(&path);
    let cancel = CancelToken::new();
    let whole = ByteRange::new(0, size as u64);
    let target = Provisioner::new(&file, whole, Control::new(&cancel, &Silent));
    let mut writer = ZeroWriter::new(&target, &direct(&file), 0).unwrap();
    for chunk in whole.chunks(8192) {
        let half = ByteRange::new(chunk.start(), chunk.start() + 4096);
        writer.zero(half).unwrap();
    }
    assert!(writer.pending.len() < PENDING_MAX);
    assert_eq!(writer.finish().unwrap(), size as u64 / 2);
    let bytes = std::fs::read(&path).unwrap();
    let is_right = |(at, byte): (usize, &u8)| *byte == u8::from(at % 8192 >= 4096);
    assert!(bytes.iter().enumerate().all(is_right));
}

#[test]
fn edges_are_left_alone_after_a_cancel() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![1; 8192]).unwrap();
    let file = TestFile::open(&path);
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let target = Provisioner::new(&file, ByteRange::new(0, 8192), control);
    let mut writer = ZeroWriter::new(&target, &direct(&file), 0).unwrap();
    writer.edges = vec![ByteRange::new(10, 20), ByteRange::new(5000, 5010)];
    cancel.cancel();
    let error = writer.finish().unwrap_err();
    assert_eq!(error.kind(), extant_space::ErrorKind::Cancelled);
    assert!(std::fs::read(&path).unwrap() == [1; 8192]);
}
