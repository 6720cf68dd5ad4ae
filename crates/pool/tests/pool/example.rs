//! The program in `examples`.

use extant_testkit::command;
use extant_testkit::require;
use extant_testkit::scratch::{Filesystem, Scratch};

#[test]
fn example_defines_a_pool_and_follows_the_job_of_a_volume() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 256 << 20);
    let text = command::text(command::example("pool_volume").arg(scratch.path())).unwrap();
    assert!(text.contains("job 1: 64 MiB of 64 MiB\n"), "{text}");
    assert!(
        text.ends_with("vms/disk: 64 MiB of 64 MiB written\n"),
        "{text}"
    );
    assert!(scratch.path().join("definitions/vms.json").exists());
}
