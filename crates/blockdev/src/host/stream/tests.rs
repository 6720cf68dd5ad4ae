//! Streams without a kernel: the test hands out the results.

use extant_space::{Error, ErrorKind};
use extant_sys::buffer::AlignedBuffer;
use tempfile::NamedTempFile;

use super::*;
use crate::HostOptions;

const SIZE: u64 = 1 << 20;

/// Transfers that are all there from the start.
#[derive(Default)]
struct List {
    waiting: Vec<Transfer>,
    ended: Vec<(usize, Result<()>)>,
}

impl List {
    fn add(&mut self, tag: usize, kind: TransferKind, offset: u64, length: usize) {
        self.waiting.push(Transfer {
            tag,
            kind,
            offset,
            length,
            memory: AlignedBuffer::new(8192).unwrap().into(),
        });
    }

    fn error(&self) -> &Error {
        let (_, result) = self.ended.last().unwrap();
        result.as_ref().unwrap_err()
    }
}

impl TransferStream for List {
    fn next(&mut self) -> Option<Transfer> {
        self.waiting.pop()
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        let buffer = transfer.memory.into_own().unwrap();
        assert_eq!(buffer.as_slice().len(), 8192);
        self.ended.push((transfer.tag, result));
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn device() -> (NamedTempFile, HostDevice) {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE).unwrap();
    let device = HostDevice::open(file.path(), &HostOptions::default()).unwrap();
    (file, device)
}

/// Runs `list` on `device` with `results` in place of a kernel; returns the expected effect of the
/// calls.
fn run(
    device: &HostDevice,
    list: &mut List,
    results: impl IntoIterator<Item = std::result::Result<usize, i32>>,
) -> Vec<(u64, usize)> {
    let mut streamed = Streamed::new(device, list);
    let mut results = results.into_iter();
    let mut made = Vec::new();
    while let Some((tag, call)) = streamed.next() {
        let (Call::Read { offset, .. } | Call::Write { offset, .. }) = &call else {
            panic!("{call:?}");
        };
        made.push((*offset, call.remaining()));
        let result = results.next().expect("as many results as calls");
        streamed.ended(tag, call, result.map_err(io::Error::from_raw_os_error));
    }
    made
}

#[test]
fn interrupted_call_is_repeated_and_a_short_one_continued() {
    let (_file, device) = device();
    let mut list = List::default();
    list.add(0, TransferKind::Write, 4096, 8192);
    let made = run(&device, &mut list, [Err(libc::EINTR), Ok(4096), Ok(4096)]);
    assert_eq!(made, [(4096, 8192), (4096, 8192), (8192, 4096)]);
    assert!(matches!(list.ended[..], [(0, Ok(()))]));
}

#[test]
fn errors_name_the_file_operation_and_range() {
    let (file, device) = device();
    let mut list = List::default();
    list.add(3, TransferKind::Read, 512, 4096);
    run(&device, &mut list, [Err(libc::EIO)]);
    let words = list.error().to_string();
    assert_eq!(list.error().kind(), ErrorKind::Io);
    assert_eq!(list.error().range(), Some(ByteRange::new(512, 4608)));
    for word in [file.path().to_str().unwrap(), "read"] {
        assert!(words.contains(word), "{words}");
    }

    list.add(0, TransferKind::Read, SIZE - 4096, 8192);
    assert_eq!(run(&device, &mut list, []), [], "it is refused");
    assert_eq!(list.error().kind(), ErrorKind::InvalidArgument);
    list.add(0, TransferKind::Read, SIZE - 4096, 4096);
    run(&device, &mut list, [Ok(0)]);
    assert_eq!(list.error().kind(), ErrorKind::Io);
    assert!(list.error().to_string().contains("ends before"));
}

#[test]
fn transfer_of_no_bytes_is_over_at_once() {
    let (_file, device) = device();
    let mut list = List::default();
    list.add(0, TransferKind::Write, 0, 0);
    assert_eq!(run(&device, &mut list, []), []);
    assert!(matches!(list.ended[..], [(0, Ok(()))]));
}
