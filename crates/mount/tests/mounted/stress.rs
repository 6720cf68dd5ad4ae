//! Many at once on one mount.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;

use extant_testkit::require;
use rustix::fs::{SeekFrom, seek};

use crate::mounts::{Ours, needs};

#[test]
fn many_threads_at_once_leave_a_clean_file_system() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    for options in ["writeback", "no_writeback", "threads=1"] {
        let ours = Ours::new(64, options);
        thread::scope(|scope| {
            for number in 0..6u8 {
                let place = ours.path().join(format!("d{number}"));
                scope.spawn(move || {
                    fs::create_dir(&place).unwrap();
                    for round in 0..30u64 {
                        let path = place.join(format!("f{round}"));
                        let file = fs::OpenOptions::new()
                            .read(true)
                            .write(true)
                            .create_new(true)
                            .open(&path)
                            .unwrap();
                        file.write_all_at(&[number + 1; 5000], round * 1000)
                            .unwrap();
                        // Has the kernel write back while all are at it.
                        let data = seek(&file, SeekFrom::Data(round * 1000)).unwrap();
                        assert_eq!(data, round * 1000);
                        let other = place.join("other");
                        fs::rename(&path, &other).unwrap();
                        let content = fs::read(&other).unwrap();
                        assert_eq!(content.len() as u64, round * 1000 + 5000);
                        assert!(
                            content[round as usize * 1000..]
                                .iter()
                                .all(|&b| b == number + 1)
                        );
                        if round % 3 == 0 {
                            File::open(&other).unwrap().sync_all().unwrap();
                        }
                        fs::remove_file(&other).unwrap();
                    }
                });
            }
        });
        ours.end();
    }
}

#[test]
fn files_are_found_again_after_the_next_mount() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    let ours = Ours::new(32, "writeback");
    fs::create_dir(ours.path().join("d")).unwrap();
    fs::write(ours.path().join("d/f"), vec![5; 300_000]).unwrap();
    let device = ours.end();
    let again = extant_ext4::Filesystem::open(device, extant_ext4::Options::default()).unwrap();
    let node = again.resolve(b"d/f", extant_ext4::FollowLast::No).unwrap();
    assert_eq!(node.attributes().size_bytes, 300_000);
}
