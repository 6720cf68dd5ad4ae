//! A directory that another user may write to: after a check, a file may be renamed or replaced at
//! any moment.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use extant_pool::{OnStop, Operation};
use extant_space::Preallocation;
use extant_testkit::require;
use extant_testkit::requires::root;
use extant_testkit::scratch::Filesystem;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::jobs::run_until;
use crate::stand::{KIB, MIB, create, download, in_memory, name, perform, pool_at, run, submit};

/// The other user, by names and owners. Only root can act as two users in one process.
const OTHER: u32 = 65534;

#[test]
fn operations_stay_in_the_directory_while_another_user_exchanges_the_pools_directory() {
    require!(root(), Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let [pool, target] = ["pool", "target"].map(|name| scratch.path().join(name));
    fs::create_dir(&pool).unwrap();
    fs::create_dir(&target).unwrap();
    perform(&pool_at(&pool), create("first", KIB, Preallocation::Off)).unwrap();
    // A directory of the other user, in which the pool's names are links to other places.
    let trap = pool.join("trap");
    fs::create_dir(&trap).unwrap();
    for link in ["work", "jobs"] {
        std::os::unix::fs::symlink(&target, trap.join(link)).unwrap();
    }
    chown(&trap, Some(OTHER), Some(OTHER)).unwrap();
    let own = pool.join(".extant");
    let has_ended = AtomicBool::new(false);
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut made = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                for pause_us in [30, 1500] {
                    let _ = renameat_with(CWD, &own, CWD, &trap, RenameFlags::EXCHANGE);
                    std::thread::sleep(Duration::from_micros(pause_us));
                }
            }
        });
        let names = (0..).take_while(|_| Instant::now() < deadline);
        for number in names {
            // Some fail, because the directory is not the pool's at some moment.
            let volume = create(&format!("v{number}"), KIB, Preallocation::Full);
            made += u32::from(perform(&pool_at(&pool), volume).is_ok());
        }
        has_ended.store(true, Ordering::Relaxed);
    });
    let escaped: Vec<_> = fs::read_dir(&target).unwrap().flatten().collect();
    assert!(escaped.is_empty(), "{escaped:?}");
    assert!(made > 0);
}

#[test]
fn volume_to_be_served_is_the_file_that_was_judged() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let pool = pool_at(scratch.path());
    perform(&pool, create("a", KIB, Preallocation::Full)).unwrap();
    let path = scratch.path().join("a");
    let place = pool.place_of(&name("a"), true).unwrap();
    assert_eq!(place.path, path);
    let judged = fs::File::options().write(true).open(&path).unwrap();
    fs::rename(&path, scratch.path().join("moved")).unwrap();
    fs::write(scratch.path().join("elsewhere"), "other").unwrap();
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    judged.write_all_at(b"judged", 0).unwrap();
    let mut first = [0; 6];
    let mut opened = fs::File::open(place.path_of_file().unwrap()).unwrap();
    opened.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"judged");
}

/// The unfinished file of a download in `dir`.
fn unfinished_in(dir: &Path) -> std::path::PathBuf {
    let mut found = fs::read_dir(dir).unwrap();
    found.next().unwrap().unwrap().path()
}

#[test]
fn download_takes_up_its_own_file_and_no_other() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let shared = scratch.directory_beside("shared");
    let pool = pool_at(scratch.path());
    perform(&pool, create("a", 8 * MIB, Preallocation::Full)).unwrap();
    let target = shared.join("target");
    for is_exchanged in [false, true] {
        let job = submit(&pool, Operation::Download(download("a", &target))).unwrap();
        let id = job.id();
        run_until(3, job, OnStop::Interrupt).unwrap_err();
        let unfinished = unfinished_in(&shared);
        let own = fs::metadata(&unfinished).unwrap().ino();
        if is_exchanged {
            // Another file of our own user gets the name, with its mode.
            fs::rename(&unfinished, shared.join("kept")).unwrap();
            fs::write(&unfinished, "content of another user").unwrap();
            fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o644)).unwrap();
        }
        run(pool.resume(id).unwrap()).unwrap();
        let made = fs::metadata(&target).unwrap();
        assert_eq!(made.mode() & 0o7777, 0o600);
        assert_eq!(made.ino() == own, !is_exchanged);
        assert!(fs::read(&target).unwrap() == vec![0; 8 * MIB as usize]);
        fs::remove_file(&target).unwrap();
    }
}
