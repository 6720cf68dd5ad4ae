//! Disks that zero, refuse to, or report success without it.

use std::ops::ControlFlow;

use extant_space::{
    CancelToken, Error, Extent, ExtentFlags, MapDetail, Silent, SpaceFile, SyncMode,
};
use parking_lot::Mutex;

use super::*;

const SIZE: u64 = 4 << 20;

/// The bytes that get a new owner.
fn prepared_range() -> ByteRange {
    ByteRange::new(1 << 20, 3 << 20)
}

/// How a disk answers write zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Refused,
    Done,
    /// Success, and nothing is zeroed.
    NothingDone,
    /// Success, and only short requests are zeroed: the trial is, the work is not.
    ShortDone,
    Fails,
}

struct SimulatedDisk {
    answer: Answer,
    bytes: Mutex<Vec<u8>>,
    /// Bytes written as data.
    written: Mutex<u64>,
    /// Writes fail after this number of bytes.
    fails_after: u64,
}

impl SimulatedDisk {
    /// With data of an earlier owner.
    fn new(answer: Answer) -> Self {
        Self {
            answer,
            bytes: Mutex::new(vec![0xee; SIZE as usize]),
            written: Mutex::new(0),
            fails_after: u64::MAX,
        }
    }

    #[track_caller]
    fn assert_only_range_is_zeroed(&self) {
        let bytes = self.bytes.lock();
        let inside = prepared_range().start() as usize..prepared_range().end() as usize;
        assert!(bytes[inside.clone()].iter().all(|&byte| byte == 0));
        assert!(bytes[..inside.start].iter().all(|&byte| byte == 0xee));
        assert!(bytes[inside.end..].iter().all(|&byte| byte == 0xee));
    }

    fn prepare(&self, done_bytes: u64) -> (Result<Prepared>, Vec<u64>) {
        let cancel = CancelToken::new();
        let mut positions = Vec::new();
        let result = Provisioner::new(self, prepared_range(), Control::new(&cancel, &Silent))
            .prepare(done_bytes, &mut |bytes| positions.push(bytes));
        (result, positions)
    }
}

impl SpaceFile for SimulatedDisk {
    fn size(&self) -> Result<u64> {
        Ok(SIZE)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let bytes = self.bytes.lock();
        buffer.copy_from_slice(&bytes[offset as usize..offset as usize + buffer.len()]);
        Ok(buffer.len())
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let mut written = self.written.lock();
        *written += buffer.len() as u64;
        if *written > self.fails_after {
            return Err(Error::new(ErrorKind::Io));
        }
        self.bytes.lock()[offset as usize..offset as usize + buffer.len()].copy_from_slice(buffer);
        Ok(())
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        let is_zeroed = match self.answer {
            _ if mode != FallocateMode::WriteZeroes => {
                return Err(Error::new(ErrorKind::Unsupported));
            }
            Answer::Refused => return Err(Error::new(ErrorKind::Unsupported)),
            Answer::Fails => return Err(Error::new(ErrorKind::Io)),
            Answer::Done => true,
            Answer::NothingDone => false,
            Answer::ShortDone => range.len() <= TRIAL_BYTES,
        };
        if is_zeroed {
            self.bytes.lock()[range.start() as usize..range.end() as usize].fill(0);
        }
        Ok(())
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let _ = visit(Extent {
            logical: range,
            physical: None,
            state: ExtentState::Written,
            flags: ExtentFlags::empty(),
        });
        Ok(())
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        Ok(())
    }

    fn map_detail(&self) -> Result<MapDetail> {
        Ok(MapDetail::States)
    }
}

#[test]
fn offload_is_used_only_if_it_is_effective() {
    for (answer, strategy, notes) in [
        (Answer::Refused, Strategy::Overwrite, 0),
        (Answer::Done, Strategy::WriteZeroes, 0),
        (Answer::NothingDone, Strategy::Overwrite, 1),
        (Answer::ShortDone, Strategy::Overwrite, 1),
    ] {
        let disk = SimulatedDisk::new(answer);
        let (prepared, positions) = disk.prepare(0);
        let prepared = prepared.unwrap();
        disk.assert_only_range_is_zeroed();
        assert_eq!(prepared.plan.strategy, strategy, "{answer:?}");
        assert_eq!(
            prepared.notes.len(),
            notes,
            "{answer:?}: {:?}",
            prepared.notes
        );
        assert_eq!(positions.last(), Some(&prepared_range().len()));
        let written = *disk.written.lock();
        match answer {
            Answer::Done => assert_eq!(written, 2 * TRIAL_BYTES),
            _ => assert!(written >= prepared_range().len()),
        }
    }
}

#[test]
fn resumed_work_starts_at_its_position() {
    for answer in [Answer::Refused, Answer::Done] {
        let disk = SimulatedDisk::new(answer);
        let half = prepared_range().len() / 2;
        disk.bytes.lock()
            [prepared_range().start() as usize..(prepared_range().start() + half) as usize]
            .fill(0);
        let (prepared, positions) = disk.prepare(half);
        assert_eq!(prepared.unwrap().zeroed_bytes, half, "{answer:?}");
        assert_eq!(positions, [prepared_range().len()]);
        disk.assert_only_range_is_zeroed();
        assert!(*disk.written.lock() <= half, "{answer:?}");
        // All was done before: it is verified all the same.
        let (prepared, _) = disk.prepare(prepared_range().len());
        assert_eq!(prepared.unwrap().zeroed_bytes, 0);
        disk.bytes.lock()[prepared_range().start() as usize] = 1;
        let (lost, _) = disk.prepare(prepared_range().len());
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::NotKept);
    }
}

#[test]
fn failing_disk_is_an_error_and_no_position() {
    let disk = SimulatedDisk::new(Answer::Fails);
    let (failed, positions) = disk.prepare(0);
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
    assert!(positions.is_empty());
    let disk = SimulatedDisk {
        fails_after: prepared_range().len() / 2,
        ..SimulatedDisk::new(Answer::Refused)
    };
    let (failed, positions) = disk.prepare(0);
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
    assert!(positions.is_empty());
}

#[test]
fn whole_content_is_read_on_request() {
    let disk = SimulatedDisk::new(Answer::Done);
    disk.prepare(0).0.unwrap();
    let cancel = CancelToken::new();
    let target = Provisioner::new(&disk, prepared_range(), Control::new(&cancel, &Silent));
    target.verify_all_zeros().unwrap();
    // Between the samples.
    disk.bytes.lock()[prepared_range().start() as usize + 5000] = 1;
    target.verify_written(Contents::Zeros).unwrap();
    let found = target.verify_all_zeros().unwrap_err();
    assert_eq!(found.kind(), ErrorKind::NotKept);
}
