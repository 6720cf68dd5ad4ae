//! Two users of one image that share no state, like two processes, at the moments when the image
//! changes hands between them.

use std::ops::ControlFlow;
use std::thread::sleep;

use extant_hostfs::Access;
use extant_space::ByteRange;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::requires::tool;
use extant_testkit::{command, require};

use super::super::{Ext4Image, Ext4Storage, Opening};
use super::*;
use crate::fair_lock::LockMode;
use crate::name::VolumeName;
use crate::storage::{Storage, VolumeFile};

/// An image and two users of it: like two processes, they share nothing but files.
struct Stand {
    dir: tempfile::TempDir,
    own: Directory,
    job: Ext4Image,
    others: Ext4Image,
    cancel: CancelToken,
}

impl Stand {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.img");
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(32 << 20).unwrap();
        let mut make = command::tool("mke2fs");
        command::must(make.args(["-q", "-F", "-t", "ext4"]).arg(&image));
        std::fs::create_dir(dir.path().join("own")).unwrap();
        let place = || Ext4Image::new(&image, Path::new("/"), None);
        Self {
            own: Directory::open(&dir.path().join("own")).unwrap(),
            job: place(),
            others: place(),
            cancel: CancelToken::new(),
            dir,
        }
    }

    fn try_open(&self, place: &Ext4Image, purpose: Purpose) -> Option<Pin> {
        let mut waiter = ImageWaiter::default();
        match place
            .try_open(purpose, Some(&self.own), &mut waiter)
            .unwrap()
        {
            Opening::Open(pin) => Some(pin),
            Opening::Busy => None,
        }
    }

    fn storage_of_job(&self, purpose: Purpose) -> Ext4Storage {
        let pin = self.try_open(&self.job, purpose).unwrap();
        Ext4Storage::of_job(&pin, &self.cancel)
    }

    fn storage_of_others(&self) -> Ext4Storage {
        Ext4Storage::new(self.try_open(&self.others, Purpose::Change).unwrap())
    }

    /// Another process waits, and the job has had the image for its minimum holding time.
    fn give_way(&self) {
        let _waits = VisibleWaiter::new_one(&self.own).unwrap();
        sleep(KEEP_MAX);
        self.job.give_way();
    }

    fn assert_clean(&self) {
        assert!(self.try_open(&self.others, Purpose::Change).is_some());
        assert_e2fsck_clean(&self.dir.path().join("disk.img"));
    }
}

fn bytes(file: &dyn VolumeFile) -> Vec<u8> {
    let mut bytes = vec![0; file.size().unwrap() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

fn inode(storage: &Ext4Storage, work: &str) -> InodeNumber {
    let inside = storage.hold.enter().unwrap();
    let dir = storage.find_work(&inside).unwrap().unwrap();
    dir.lookup(work.as_bytes()).unwrap().number()
}

fn volume(storage: &Ext4Storage, name: &str) -> VolumeName {
    let volume = name.parse().unwrap();
    storage.new_work(name, 0).unwrap();
    let refuse = extant_hostfs::Existing::Refuse;
    storage.publish(name, &volume, refuse).unwrap();
    volume
}

#[test]
fn file_of_a_job_continues_after_others_owned_the_image() {
    require!(tool("mke2fs"));
    let stand = Stand::new();
    let storage = stand.storage_of_job(Purpose::Change);
    let file = storage.new_work("1.copy", 0).unwrap();
    file.write_at(b"before", 0).unwrap();
    sleep(KEEP_MIN);
    stand.job.give_way();
    assert!(
        stand.try_open(&stand.others, Purpose::Look).is_none(),
        "no process waited"
    );
    stand.give_way();
    {
        let others = stand.storage_of_others();
        // Earlier changes are visible to them without a sync.
        let seen = others.open_work("1.copy").unwrap().unwrap();
        assert_eq!(bytes(&*seen), b"before");
        volume(&others, "theirs");
    }
    file.write_at(b" and after", 6).unwrap();
    assert!(stand.try_open(&stand.others, Purpose::Look).is_none());
    assert_eq!(bytes(&*file), b"before and after");
    assert!(storage.has_name(&"theirs".parse().unwrap()).unwrap());
    drop((file, storage));
    stand.assert_clean();
}

#[test]
fn file_that_was_removed_meanwhile_is_an_error_and_never_another_file() {
    require!(tool("mke2fs"));
    let stand = Stand::new();
    let storage = stand.storage_of_job(Purpose::Change);
    let file = storage.new_work("1.copy", 0).unwrap();
    file.write_at(b"1", 0).unwrap();
    let number = inode(&storage, "1.copy");
    stand.give_way();
    {
        let others = stand.storage_of_others();
        others.remove_work("1.copy").unwrap();
        // One of them gets the number that has become free.
        let mut new = (2..200).map(|id| format!("{id}.copy"));
        let same = new.find(|name| {
            let file = others.new_work(name, 0).unwrap();
            file.write_at(b"2", 0).unwrap();
            inode(&others, name) == number
        });
        assert!(same.is_some());
    }
    for _ in 0..2 {
        let error = file.write_at(b"wrong", 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("removed"), "{error}");
    }
    for other in storage.work_files().unwrap() {
        let other = storage.open_work(&other.name).unwrap().unwrap();
        assert_eq!(bytes(&*other), b"2");
    }
    drop((file, storage));
    stand.assert_clean();
}

#[test]
fn image_is_not_given_away_within_a_call() {
    require!(tool("mke2fs"));
    let stand = Stand::new();
    let storage = stand.storage_of_job(Purpose::Change);
    let file = storage.new_work("1.copy", 0).unwrap();
    file.write_at(&[1; 5000], 0).unwrap();
    let mut looks = 0;
    file.for_each_extent(ByteRange::new(0, 5000), &mut |_| {
        stand.give_way();
        // A call inside the call does not wait for its end.
        assert_eq!(file.size().unwrap(), 5000);
        assert!(stand.try_open(&stand.others, Purpose::Look).is_none());
        looks += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(looks, 1);
    // It is at the end of it.
    assert!(stand.try_open(&stand.others, Purpose::Change).is_some());
    assert_eq!(file.size().unwrap(), 5000);
    // An operation that is short is not held up at all.
    let pin = stand.try_open(&stand.job, Purpose::Change).unwrap();
    stand.give_way();
    assert!(stand.try_open(&stand.others, Purpose::Look).is_none());
    drop(pin);
    assert!(stand.try_open(&stand.others, Purpose::Look).is_some());
    drop((file, storage));
    stand.assert_clean();
}

#[test]
fn volume_of_a_job_stays_locked_while_others_have_their_turn() {
    require!(tool("mke2fs"));
    let stand = Stand::new();
    let storage = stand.storage_of_job(Purpose::Change);
    let name = volume(&storage, "a");
    let file = storage.open(&name, Access::ReadWrite).unwrap();
    assert!(file.try_lock(LockMode::Exclusive).unwrap());
    stand.give_way();
    {
        let others = stand.storage_of_others();
        let same = others.open(&name, Access::Read).unwrap();
        assert!(!same.try_lock(LockMode::Exclusive).unwrap());
        assert!(!same.try_lock(LockMode::Shared).unwrap());
        let other = volume(&others, "b");
        let other = others.open(&other, Access::Read).unwrap();
        assert!(other.try_lock(LockMode::Exclusive).unwrap());
        other.unlock();
    }
    assert_eq!(file.size().unwrap(), 0);
    file.unlock();
    assert!(file.try_lock(LockMode::Shared).unwrap());
    stand.give_way();
    {
        let others = stand.storage_of_others();
        let same = others.open(&name, Access::Read).unwrap();
        assert!(!same.try_lock(LockMode::Exclusive).unwrap());
        assert!(same.try_lock(LockMode::Shared).unwrap());
        same.unlock();
        file.unlock();
        assert!(same.try_lock(LockMode::Exclusive).unwrap());
        same.unlock();
    }
    drop((file, storage));
    stand.assert_clean();
}

#[test]
fn job_that_waits_for_its_turn_is_cancelled() {
    require!(tool("mke2fs"));
    let stand = Stand::new();
    let storage = stand.storage_of_job(Purpose::Change);
    let file = storage.new_work("1.copy", 0).unwrap();
    stand.give_way();
    let others = stand.storage_of_others();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| file.write_at(b"late", 0));
        sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        stand.cancel.cancel();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
    drop(others);
    // The roll-back opens the image again.
    let undo = Ext4Storage::new(stand.try_open(&stand.job, Purpose::Change).unwrap());
    undo.remove_work("1.copy").unwrap();
    drop((file, undo, storage));
    stand.assert_clean();
}

#[test]
fn reading_job_does_not_block_a_writer_of_its_own_process() {
    require!(tool("mke2fs"));
    let stand = Stand::new();
    let name = volume(&stand.storage_of_others(), "a");
    let storage = stand.storage_of_job(Purpose::Look);
    let file = storage.open(&name, Access::Read).unwrap();
    assert!(stand.try_open(&stand.job, Purpose::Change).is_none());
    // Readers at the same time.
    assert!(stand.try_open(&stand.others, Purpose::Look).is_some());
    stand.give_way();
    let pin = stand.try_open(&stand.job, Purpose::Change).unwrap();
    let changing = Ext4Storage::new(pin);
    volume(&changing, "b");
    let shared = stand.try_open(&stand.job, Purpose::Look).unwrap();
    drop((changing, shared));
    assert_eq!(file.size().unwrap(), 0);
    assert!(storage.has_name(&"b".parse().unwrap()).unwrap());
    drop((file, storage));
    stand.assert_clean();
}

#[test]
fn another_image_in_its_place_is_not_written_to() {
    require!(tool("mke2fs"));
    let stand = Stand::new();
    let storage = stand.storage_of_job(Purpose::Change);
    let file = storage.new_work("1.copy", 0).unwrap();
    stand.give_way();
    let image = stand.dir.path().join("disk.img");
    let copy = stand.dir.path().join("copy");
    std::fs::copy(&image, &copy).unwrap();
    std::fs::rename(&copy, &image).unwrap();
    let before = std::fs::read(&image).unwrap();
    let error = file.write_at(b"wrong", 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(std::fs::read(&image).unwrap() == before);
}

#[test]
fn failed_close_of_the_image_ends_the_job_and_not_its_successors() {
    require!(tool("mke2fs"));
    let stand = Stand::new();
    let storage = stand.storage_of_job(Purpose::Change);
    let file = storage.new_work("1.copy", 0).unwrap();
    stand.give_way();
    // The state after a failed close.
    storage.hold.image().state().lost = Some((ErrorKind::Io, "the disk".to_owned()));
    for _ in 0..2 {
        let error = file.sync(extant_space::SyncMode::All).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("the disk"), "{error}");
    }
    let undo = Ext4Storage::new(stand.try_open(&stand.job, Purpose::Change).unwrap());
    undo.remove_work("1.copy").unwrap();
    drop((file, undo, storage));
    stand.assert_clean();
}

#[test]
fn job_waits_for_a_user_outside_the_pool_until_its_timeout() {
    require!(tool("mke2fs"));
    let stand = Stand::new();
    let storage = stand.storage_of_job(Purpose::Change);
    let file = storage.new_work("1.copy", 0).unwrap();
    stand.give_way();
    let image = stand.dir.path().join("disk.img");
    let options = extant_blockdev::HostOptions::default();
    let stranger = extant_image::hold::hold_device(&image, &options).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| file.write_at(b"after", 0));
        sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        drop(stranger);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(bytes(&*file), b"after");
    drop((file, storage));
    stand.assert_clean();
}
