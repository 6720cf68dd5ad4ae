//! A tree of files of every kind that archives know.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use extant_testkit::command::{run, tool};
use fastrand::Rng;
use rustix::fs::XattrFlags;

/// Makes it in an existing directory, with this number of directories.
pub fn generate(dir: &Path, directories: u32) {
    let mut rng = Rng::with_seed(u64::from(directories));
    for number in 0..directories {
        let directory = match number % 5 {
            0 => dir.join(format!("d{number}")),
            depth => {
                let above = dir.join(format!("d{}", number - depth));
                above
                    .join("below/".repeat(depth as usize))
                    .join(format!("d{number}"))
            }
        };
        fs::create_dir_all(&directory).unwrap();
        fill(&directory, &mut rng);
    }
    let mode = Permissions::from_mode(0o2750);
    fs::set_permissions(dir.join("d0"), mode).unwrap();
    run(tool("mkfifo").arg(dir.join("d0/fifo"))).unwrap_or_else(|failure| panic!("{failure}"));
}

fn fill(directory: &Path, rng: &mut Rng) {
    for number in 0..12 {
        let name = match number % 4 {
            0 => format!("file {number}"),
            1 => format!("{}{number}", "long".repeat(55)),
            2 => format!("ümläut-{number}"),
            _ => format!("f{number}"),
        };
        let path = directory.join(name);
        let length = match number {
            0 => 0,
            1..8 => rng.usize(1..3000),
            _ => rng.usize(1..200_000),
        };
        let mut data = vec![0; length];
        rng.fill(&mut data);
        fs::write(&path, &data).unwrap();
        let mode = [0o644, 0o755, 0o400, 0o4711][number % 4];
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        if number == 3 {
            fs::hard_link(&path, directory.join("link")).unwrap();
            symlink("f3", directory.join("symlink")).unwrap();
            symlink("nowhere/".repeat(20), directory.join("dangling")).unwrap();
            rustix::fs::setxattr(&path, "user.kind", b"the third", XattrFlags::empty()).unwrap();
        }
    }
    let sparse = File::create(directory.join("sparse")).unwrap();
    sparse.write_all_at(b"far away", 5 << 20).unwrap();
    sparse.set_len(6 << 20).unwrap();
}
