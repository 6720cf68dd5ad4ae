//! The program in `examples`.

use extant_testkit::command::{self, must, tool};
use extant_testkit::{require, requires};

#[test]
fn example_writes_through_an_image_that_qemu_accepts() {
    require!(requires::tool("qemu-img"), requires::tool("qemu-io"));
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk.qcow2");
    let text = command::text(command::example("qcow2_disk").arg(&image)).unwrap();
    assert!(text.contains("a disk of 67108864 bytes"), "{text}");
    must(tool("qemu-img").arg("check").arg(&image));
    must(
        tool("qemu-io")
            .args(["-c", "read -P 0x5a 10M 4k"])
            .arg(&image),
    );
}
