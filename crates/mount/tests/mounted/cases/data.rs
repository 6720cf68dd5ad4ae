//! Data.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use extant_fuse::operations::DSYNC;
use rustix::fs::{FlockOperation, OFlags, copy_file_range, fcntl_lock, fdatasync, flock, fsync};
use rustix::io::Errno;

use super::{Case, Expect, same};
use crate::notes::Notes;

pub const CASES: &[Case] = &[
    same("read, write", "read and write", reads_and_writes),
    same("read, write", "two descriptors", two_descriptors),
    same("write with O_APPEND", "append", appends),
    same("open with O_DIRECT", "direct", direct),
    same("open with O_SYNC, O_DSYNC", "synchronous", synchronous),
    same("fsync, fdatasync, syncfs", "sync", syncs),
    same("copy_file_range", "copy", copies),
    same("RLIMIT_FSIZE", "limit of the process", limit),
    same("flock, fcntl locks", "locks", locks),
    same("mmap", "executed from the mount", executed),
    Case {
        name: "write past the largest file",
        row: "write past the largest file (EFBIG)",
        expect: Expect::LimitOfWriteback,
        run: past_the_largest,
    },
];

fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

fn reads_and_writes(notes: &mut Notes) {
    let file = read_write().open(notes.at("f")).unwrap();
    let data: Vec<u8> = (0..100_000).map(|at| (at / 13) as u8).collect();
    for (offset, length) in [
        (0, 1),
        (1, 4095),
        (5000, 60_000),
        (100, 5000),
        (200_000, 100_000),
    ] {
        let answer = file.write_at(&data[..length], offset);
        notes.answer("write", answer);
    }
    file.sync_all().unwrap();
    notes.stat("f");
    let mut buffer = vec![1; 70_000];
    for offset in [0, 4000, 65_000, 150_000, 299_999, 300_000, 1 << 43] {
        let read = file.read_at(&mut buffer, offset).unwrap();
        let sum: u64 = buffer[..read].iter().map(|&byte| u64::from(byte)).sum();
        notes.note("read", (read, sum));
    }
    notes.answer("write nothing", file.write_at(&[], 1 << 40));
    let reading = File::open(notes.at("f")).unwrap();
    notes.answer("write to what is open to read", reading.write_at(b"x", 0));
    let writing = OpenOptions::new().write(true).open(notes.at("f")).unwrap();
    notes.answer(
        "read of what is open to write",
        writing.read_at(&mut buffer, 0),
    );
    notes.answer("write far", file.write_at(b"far", 1 << 40));
    notes.mode("f");
    let directory = File::open(notes.directory()).unwrap();
    notes.answer("read a directory", directory.read_at(&mut buffer, 0));
}

fn two_descriptors(notes: &mut Notes) {
    let one = read_write().open(notes.at("f")).unwrap();
    let two = read_write().open(notes.at("f")).unwrap();
    let mut buffer = [0; 8];
    one.write_all_at(b"from one", 0).unwrap();
    notes.answer("read", two.read_at(&mut buffer, 0));
    notes.note("bytes", buffer);
    two.write_all_at(b"two", 5).unwrap();
    notes.answer("read", one.read_at(&mut buffer, 0));
    notes.note("bytes", buffer);
    two.set_len(3).unwrap();
    notes.answer("after a cut", one.read_at(&mut buffer, 0));
    drop((one, two));
    notes.answer("by name", fs::read(notes.at("f")));
}

fn appends(notes: &mut Notes) {
    fs::write(notes.at("f"), "start").unwrap();
    let file = OpenOptions::new().append(true).open(notes.at("f")).unwrap();
    let other = OpenOptions::new().append(true).open(notes.at("f")).unwrap();
    for round in 0..20 {
        use std::io::Write;
        (&file)
            .write_all(format!(" one {round}").as_bytes())
            .unwrap();
        (&other).write_all(&vec![b'x'; 3000]).unwrap();
    }
    let content = fs::read(notes.at("f")).unwrap();
    let sum: u64 = content.iter().map(|&byte| u64::from(byte)).sum();
    notes.note("content", (content.len(), sum));
    notes.answer("at a place", file.write_at(b"end", 0));
    notes.mode("f");
}

fn direct(notes: &mut Notes) {
    let mut options = read_write();
    let file = options
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(notes.at("f"));
    let file = notes.call("open", file).unwrap();
    drop(file);
    notes.shell(
        0,
        "dd if=/dev/urandom of=src bs=4096 count=64 2>/dev/null; \
         dd if=src of=f bs=16k oflag=direct 2>/dev/null; cmp src f; \
         dd if=f of=copy bs=8k iflag=direct 2>/dev/null; cmp src copy; \
         printf tail >>f; dd if=src of=f bs=4k count=1 seek=3 skip=9 conv=notrunc oflag=direct 2>/dev/null; \
         dd if=src of=src bs=4k count=1 seek=3 skip=9 conv=notrunc 2>/dev/null; printf tail >>src; cmp src f; stat -c %s f",
    );
}

fn synchronous(notes: &mut Notes) {
    for flags in [OFlags::SYNC, DSYNC, DSYNC | OFlags::DIRECT] {
        let mut options = read_write();
        let file = options
            .custom_flags(flags.bits() as i32)
            .open(notes.at("f"))
            .unwrap();
        // Direct writes need aligned memory; their answers are in `direct`.
        if !flags.contains(OFlags::DIRECT) {
            notes.answer("write", file.write_at(&[3; 9000], 100));
        }
    }
    notes.stat("f");
    notes.shell(
        0,
        "chattr +S f; printf more >>f; cat f | wc -c; stat -c '%s %b' f; chattr -S f",
    );
}

fn syncs(notes: &mut Notes) {
    let file = read_write().open(notes.at("f")).unwrap();
    file.write_all_at(&[1; 50_000], 0).unwrap();
    notes.answer("fdatasync", fdatasync(&file));
    notes.stat("f");
    notes.answer("fsync", fsync(&file));
    notes.answer("directory", fsync(File::open(notes.directory()).unwrap()));
    notes.answer("syncfs", rustix::fs::syncfs(&file));
    notes.answer(
        "of what is open to read",
        fsync(File::open(notes.at("f")).unwrap()),
    );
}

fn copies(notes: &mut Notes) {
    let data: Vec<u8> = (0..3 << 20).map(|at| (at / 11) as u8).collect();
    fs::write(notes.at("from"), &data).unwrap();
    let from = read_write().open(notes.at("from")).unwrap();
    let to = read_write().open(notes.at("to")).unwrap();
    let copy = |from_at: u64, to_at: u64, length: usize| {
        let (mut a, mut b) = (from_at, to_at);
        let mut done = 0;
        while done < length {
            let some = copy_file_range(&from, Some(&mut a), &to, Some(&mut b), length - done)?;
            if some == 0 {
                break;
            }
            done += some;
        }
        Ok::<_, Errno>(done)
    };
    let answers = [
        copy(100, 0, 1 << 20),
        copy(3 << 20, 0, 10),
        copy((3 << 20) - 5, 1 << 21, 10),
    ];
    for answer in answers {
        notes.answer("copy", answer);
    }
    to.sync_all().unwrap();
    notes.stat("to");
    let copied = fs::read(notes.at("to")).unwrap();
    notes.note("same", copied[..1 << 20] == data[100..][..1 << 20]);
    let (mut a, mut b) = (0, 10);
    let overlap = copy_file_range(&from, Some(&mut a), &from, Some(&mut b), 100);
    notes.answer("onto itself", overlap);
}

fn limit(notes: &mut Notes) {
    notes.shell(
        0,
        "trap '' XFSZ; ulimit -f 64; \
         dd if=/dev/zero of=f bs=1k count=40 2>/dev/null; echo $?; stat -c %s f; \
         truncate -s 1M f; echo $?; fallocate -l 1M f; echo $?; stat -c %s f",
    );
}

fn locks(notes: &mut Notes) {
    let one = read_write().open(notes.at("f")).unwrap();
    let two = read_write().open(notes.at("f")).unwrap();
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    notes.answer("one", flock(&one, exclusive));
    notes.answer("two", flock(&two, exclusive));
    notes.answer("unlock", flock(&one, FlockOperation::Unlock));
    notes.answer("two", flock(&two, FlockOperation::NonBlockingLockShared));
    notes.answer("one", flock(&one, FlockOperation::NonBlockingLockShared));
    notes.answer("record", fcntl_lock(&one, exclusive));
    notes.answer("of the same process", fcntl_lock(&two, exclusive));
}

fn executed(notes: &mut Notes) {
    notes.shell(
        0,
        "cp /bin/true t && ./t; echo $?; cp /bin/true u; (sleep 0.3 & exec 9>u; echo held) 2>&1; \
         cp /bin/sleep s; ./s 1 & sleep 0.2; echo x >s; echo $?; wait",
    );
}

fn past_the_largest(notes: &mut Notes) {
    let file = read_write().open(notes.at("f")).unwrap();
    let most = (1u64 << 44) - 4096;
    notes.answer("across the end", file.write_at(b"0123456789", most - 4));
    notes.answer("behind it", file.write_at(b"x", most));
    notes.mode("f");
}
