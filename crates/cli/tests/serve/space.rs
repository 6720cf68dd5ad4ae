//! Allocated space while clients use it.

use std::path::Path;

use extant_testkit::{require, requires};

use crate::stand::{Stand, qemu_io};
use crate::support::{MIB, extant, run};

/// Bytes of the file in a state, as `extant map` counts them.
#[track_caller]
fn bytes(file: &Path, state: &str) -> u64 {
    let answer = run(extant().args(["map", "--json"]).arg(file)).success();
    answer.number(&format!("/files/0/summary/{state}_bytes"))
}

#[test]
fn space_is_kept_on_trim_and_zero_unless_configured_otherwise() {
    require!(requires::tool("qemu-io"));
    let stand = Stand::new();
    for (more, holes) in [(&[][..], 0), (&["--discard", "unmap"], 2 * MIB)] {
        let file = stand.path("a.raw");
        run(extant().arg("create").arg(&file).args([
            "4MiB",
            "--force",
            "--preallocation",
            "falloc",
        ]))
        .success();
        let serving = stand.serve(&[&["a.raw"], more].concat());
        let uri = serving.uri("a.raw");
        qemu_io(
            &uri,
            &[
                "write -P 3 0 4M",
                "discard 0 1M",
                "write -zu 1M 1M",
                "write -z 2M 64k",
                "flush",
            ],
        );
        qemu_io(
            &uri,
            &["read -P 0 1M 1M", "read -P 0 2M 64k", "read -P 3 3M 1M"],
        );
        serving.end();
        assert_eq!(bytes(&file, "hole"), holes, "{more:?}");
    }
}
