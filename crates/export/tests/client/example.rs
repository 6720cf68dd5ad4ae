//! The program in `examples`.

use extant_testkit::command::{self, must, tool};
use extant_testkit::{require, requires};

#[test]
fn example_serves_an_image_that_qemu_reads() {
    require!(requires::tool("qemu-io"));
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk.qcow2");
    let text = command::text(command::example("serve_image").arg(&image)).unwrap();
    assert!(
        text.ends_with(": 67108864 bytes, written and read\n"),
        "{text}"
    );
    must(
        tool("qemu-io")
            .args(["-c", "read -P 0x5a 4096 512"])
            .arg(&image),
    );
}
