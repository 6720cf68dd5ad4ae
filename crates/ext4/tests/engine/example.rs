//! The program in `examples`.

use extant_testkit::command::{self, must, tool};
use extant_testkit::{require, requires};

#[test]
fn example_writes_a_file_that_it_reads_and_e2fsck_accepts() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk.img");
    let text = command::text(command::example("ext4_file").arg(&image)).unwrap();
    assert_eq!(
        text,
        "/log has 1048576 bytes and begins with \"a record\\n\"\n"
    );
    must(tool("e2fsck").arg("-fn").arg(&image));
}
