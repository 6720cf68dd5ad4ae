//! A file system that is shut down in use: what is durable, and that nothing is written after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use extant_blockdev::simulation::{CrashDevice, Done, Fault, FaultRule, FaultyDevice, Survivors};
use extant_blockdev::{MemoryDevice, OperationKind};
use extant_ext4::{Filesystem, Node, Options, Shutdown};
use extant_space::{ErrorKind, SpaceFile, SyncMode};
use extant_testkit::{mke2fs, require, requires};

use crate::image::{Image, create};

const ALL: [Shutdown; 3] = [Shutdown::Default, Shutdown::LogFlush, Shutdown::NoLogFlush];
const PIECE: u64 = 4096;
/// The part of each file that is overwritten; the rest is appended to it.
const OVERWRITTEN: u64 = 8;

#[test]
fn changes_are_as_durable_as_the_kind_of_shutdown_says() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for shutdown in ALL {
        let image = Image::new("-t ext4", 16);
        let fs = image.open();
        let node = create(&fs.root().unwrap(), "file");
        assert!(!fs.is_shut_down());
        fs.shut_down(shutdown).unwrap();
        assert!(fs.is_shut_down());
        fs.shut_down(Shutdown::NoLogFlush).unwrap();
        let left = image.bytes();
        let needs_recovery = left[1024 + 0x60] & 4 == 4;
        assert_eq!(needs_recovery, shutdown != Shutdown::Default);
        let error = node.file().unwrap().write_at(b"x", 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        assert!(fs.sync().is_err());
        assert!(node.sync(SyncMode::All).is_err());
        drop(node);
        fs.close().unwrap();
        assert!(left == image.bytes(), "something was written afterwards");
        let found = image.open().root().unwrap().lookup(b"file");
        assert_eq!(found.is_ok(), shutdown != Shutdown::NoLogFlush);
        drop(found);
        image.assert_clean();
    }
}

#[test]
fn frozen_file_system_is_complete_without_its_journal() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for format in [
        "-t ext4",
        "-t ext4 -O ^has_journal",
        "-t ext4 -O fast_commit",
    ] {
        let image = Image::new(format, 16);
        let fs = image.open();
        let root = fs.root().unwrap();
        create(&root, "file")
            .file()
            .unwrap()
            .write_at(&[7; 9000], 0)
            .unwrap();
        let open = create(&root, "removed");
        open.file().unwrap().write_at(&[8; 9000], 0).unwrap();
        root.unlink(b"removed").unwrap();
        fs.shut_down(Shutdown::Default).unwrap();
        drop((open, root));
        drop(fs);
        let fs = image.open();
        let mut data = [0; 9000];
        let node = fs.root().unwrap().lookup(b"file").unwrap();
        node.file().unwrap().read_at(&mut data, 0).unwrap();
        assert!(data == [7; 9000], "{format}: other data");
        drop(node);
        fs.close().unwrap();
        image.assert_clean();
    }
}

#[test]
fn failed_freeze_shuts_down_and_records_the_error() {
    require!(requires::tool("mke2fs"));
    let base = MemoryDevice::from_bytes(&mke2fs("-t ext4", 16 << 20));
    let device = Arc::new(FaultyDevice::new(CrashDevice::new(base), 0, Vec::new()));
    let fs = Filesystem::open(device.clone(), Options::default()).unwrap();
    let node = create(&fs.root().unwrap(), "file");
    let fault = Fault::Fail {
        kind: ErrorKind::Io,
        done: Done::Nothing,
    };
    device.set_rules(vec![FaultRule::new(fault).on(&[OperationKind::Flush])]);
    let error = fs.shut_down(Shutdown::Default).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    device.set_rules(Vec::new());
    assert!(node.file().unwrap().write_at(b"x", 0).is_err());
    let left = device.inner().snapshot().to_vec();
    drop(node);
    fs.close().unwrap();
    assert!(
        left == device.inner().snapshot().to_vec(),
        "something was written"
    );
    assert_eq!(left[1024 + 0x3A] & 2, 2, "s_state has no error");
    assert_eq!(left[1024 + 0x60] & 4, 4, "the journal needs recovery");
}

/// One writer: overwrites and appends in turn, syncs now and then, until it is refused.
struct Writer {
    node: Node,
    /// Of the last complete write.
    overwritten: AtomicU64,
    appended: AtomicU64,
    /// The same at the last complete sync.
    synced: [AtomicU64; 2],
}

impl Writer {
    fn new(root: &Node, number: usize) -> Self {
        let node = create(root, &format!("file{number}"));
        let file = node.file().unwrap();
        let zeros = vec![0; (OVERWRITTEN * PIECE) as usize];
        file.write_at(&zeros, 0).unwrap();
        Self {
            node,
            overwritten: AtomicU64::new(0),
            appended: AtomicU64::new(0),
            synced: Default::default(),
        }
    }

    fn run(&self) {
        let file = self.node.file().unwrap();
        for round in 1.. {
            let piece = piece(round);
            let at = round % OVERWRITTEN * PIECE;
            if file.write_at(&piece, at).is_err() {
                return;
            }
            self.overwritten.store(round, Ordering::SeqCst);
            let end = (OVERWRITTEN + round - 1) * PIECE;
            if file.write_at(&piece, end).is_err() {
                return;
            }
            self.appended.store(round, Ordering::SeqCst);
            if round % 8 == 0 {
                if self.node.sync(SyncMode::All).is_err() {
                    return;
                }
                self.synced[0].store(round, Ordering::SeqCst);
                self.synced[1].store(round, Ordering::SeqCst);
            }
        }
    }

    /// Rounds of overwrites and appends that must be durable.
    fn promised(&self, shutdown: Shutdown) -> [u64; 2] {
        match shutdown {
            Shutdown::NoLogFlush => [&self.synced[0], &self.synced[1]],
            _ => [&self.overwritten, &self.appended],
        }
        .map(|rounds| rounds.load(Ordering::SeqCst))
    }
}

fn piece(round: u64) -> Vec<u8> {
    round.to_le_bytes().repeat(PIECE as usize / 8)
}

/// The round of a piece; `None` if it is torn.
fn round_of(piece: &[u8]) -> Option<u64> {
    let mut words = piece.chunks_exact(8);
    let first = words.next().unwrap();
    words
        .all(|word| word == first)
        .then(|| u64::from_le_bytes(first.try_into().unwrap()))
}

#[test]
fn acknowledged_writes_of_busy_threads_survive_and_none_is_written_later() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for (shutdown, format) in ALL.into_iter().flat_map(|kind| {
        ["-t ext4 -b 4096", "-t ext4 -b 4096 -O fast_commit"].map(|format| (kind, format))
    }) {
        let base = MemoryDevice::from_bytes(&mke2fs(format, 24 << 20));
        // Changes that are not flushed are lost.
        let device = Arc::new(CrashDevice::new(base));
        let fs = Filesystem::open(device.clone(), Options::default()).unwrap();
        let root = fs.root().unwrap();
        let writers: Vec<_> = (0..4).map(|number| Writer::new(&root, number)).collect();
        fs.sync().unwrap();
        let is_over = AtomicBool::new(false);
        let left = thread::scope(|scope| {
            let runs: Vec<_> = writers.iter().map(|it| scope.spawn(|| it.run())).collect();
            // Names, and frees.
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let made =
                        root.create(b"name", &crate::image::new(extant_ext4::NewKind::Regular));
                    let Ok(node) = made else { return };
                    let _ = node.file().unwrap().write_at(&[1; 50_000], 0);
                    let _ = root.unlink(b"name");
                }
            });
            // A run ends before that where others of them have filled the file system.
            let is_short = |it: &Writer| it.synced[0].load(Ordering::SeqCst) < 16;
            while writers.iter().any(is_short) && !runs.iter().any(|it| it.is_finished()) {
                thread::sleep(Duration::from_millis(1));
            }
            fs.shut_down(shutdown).unwrap();
            is_over.store(true, Ordering::SeqCst);
            device.snapshot().to_vec()
        });
        let promised: Vec<_> = writers.iter().map(|it| it.promised(shutdown)).collect();
        drop((writers, root));
        fs.close().unwrap();
        assert!(left == device.snapshot().to_vec(), "something was written");
        device.restart(Survivors::None);
        let image = Image {
            device: Arc::new(device.snapshot()),
        };
        let fs = image.open();
        for (number, [overwritten, appended]) in promised.into_iter().enumerate() {
            let name = format!("file{number}");
            let node = fs.root().unwrap().lookup(name.as_bytes()).unwrap();
            let size = node.attributes().size_bytes;
            assert!(
                size >= (OVERWRITTEN + appended) * PIECE,
                "{shutdown:?} {format}: {name} has {size} bytes, {appended} pieces were appended"
            );
            let mut data = vec![0; size as usize];
            node.file().unwrap().read_at(&mut data, 0).unwrap();
            for (index, piece) in data.chunks_exact(PIECE as usize).enumerate() {
                let index = index as u64;
                let found = round_of(piece);
                if index >= OVERWRITTEN {
                    let wanted = index - OVERWRITTEN + 1;
                    assert!(
                        found == Some(wanted) || wanted > appended,
                        "{shutdown:?} {format}: {name}: append {wanted} is {found:?}"
                    );
                } else {
                    // The last round of this place that is promised.
                    let behind = (overwritten + OVERWRITTEN - index) % OVERWRITTEN;
                    let least = overwritten.saturating_sub(behind);
                    assert!(
                        found.is_some_and(|round| round >= least),
                        "{shutdown:?} {format}: {name}: overwrite {found:?}, {least} was reported"
                    );
                }
            }
        }
        fs.close().unwrap();
        image.assert_clean();
    }
}
