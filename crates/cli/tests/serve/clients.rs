//! Third-party tools on exports, and the resulting content of the files.

use extant_testkit::command::{run_any_status, tool};
use extant_testkit::{require, requires};

use crate::stand::{Stand, assert_same, nbdsh, qemu_io, said, size};
use crate::support::{MIB, extant, noise};

#[test]
fn several_exports_are_listed_and_each_is_its_own_file() {
    require!(requires::tool("nbdinfo"), requires::tool("qemu-io"));
    let stand = Stand::new();
    for name in ["a.raw", "b.raw"] {
        stand.sparse(name, 1);
    }
    let serving = stand.serve(&["a.raw", "second=b.raw"]);
    let listed = said(tool("nbdinfo").args(["--list", &serving.uri("")]));
    for name in ["export=\"a.raw\"", "export=\"second\""] {
        assert!(listed.contains(name), "{listed}");
    }
    qemu_io(&serving.uri("second"), &["write -P 5 0 64k"]);
    // No name: the first.
    qemu_io(&serving.uri(""), &["write -P 6 64k 64k"]);
    serving.end();
    let byte = |name: &str, at: usize| std::fs::read(stand.path(name)).unwrap()[at];
    assert_eq!([byte("a.raw", 0), byte("a.raw", 65_536)], [0, 6]);
    assert_eq!([byte("b.raw", 0), byte("b.raw", 65_536)], [5, 0]);
}

#[test]
fn file_that_ends_inside_a_sector_is_copied_whole() {
    require!(
        requires::tool("nbdcopy"),
        requires::tool("nbdsh"),
        requires::tool("mke2fs")
    );
    let stand = Stand::new();
    let bytes = noise(3, 1000);
    std::fs::write(stand.path("a.raw"), &bytes).unwrap();
    stand.sparse("disk.img", 16);
    said(
        tool("mke2fs")
            .args(["-q", "-t", "ext4"])
            .arg(stand.path("disk.img")),
    );
    let mut put = extant();
    put.args(["fs", "put", "disk.img", "a.raw", "/a.raw"]);
    said(put.current_dir(stand.work.path()));
    for (words, name) in [
        (&["a.raw"][..], "a.raw"),
        (&["--in", "disk.img", "/a.raw"], "a.raw"),
    ] {
        let serving = stand.serve(words);
        let uri = serving.uri(name);
        assert_eq!(size(&uri), 1000);
        let out = stand.path("out");
        said(tool("nbdcopy").arg(&uri).arg(&out));
        assert!(std::fs::read(&out).unwrap() == bytes, "{words:?}");
        said(&mut nbdsh(
            &uri,
            "h.pwrite(b'the end', 993)\nh.zero(10, 3)\nh.flush()",
        ));
        said(tool("nbdcopy").arg(&uri).arg(&out));
        serving.end();
        let mut wanted = bytes.clone();
        wanted[993..].copy_from_slice(b"the end");
        wanted[3..13].fill(0);
        assert!(std::fs::read(&out).unwrap() == wanted, "{words:?}");
    }
    let mut direct = stand.command(&["a.raw", "-s", "s", "--cache", "none"]);
    let answer = crate::support::Running::start(&mut direct).wait();
    assert_eq!(answer.code, Some(5), "{answer}");
    assert!(answer.stderr.contains("1000 bytes"), "{answer}");
}

#[test]
fn images_are_copied_out_and_in_and_compare_equal() {
    require!(requires::tool("qemu-img"), requires::tool("nbdcopy"));
    let stand = Stand::new();
    let data = stand.data("a.raw", 7, 9);
    let original = noise(7, 9 * MIB as usize);
    stand.sparse("b.raw", 9);
    for cache in ["writeback", "none"] {
        let serving = stand.serve(&["a.raw", "b.raw", "--cache", cache]);
        let (a, b) = (serving.uri("a.raw"), serving.uri("b.raw"));
        let qcow2 = stand.path("copy.qcow2");
        said(
            tool("qemu-img")
                .args(["convert", "-f", "raw", "-O", "qcow2", &a])
                .arg(&qcow2),
        );
        said(
            tool("qemu-img")
                .args(["convert", "-n", "-O", "raw"])
                .arg(&qcow2)
                .arg(&b),
        );
        let compare = ["compare", "-f", "raw", "-F", "raw", &a, &b];
        assert!(said(tool("qemu-img").args(compare)).contains("identical"));
        let out = stand.path("out.raw");
        said(tool("nbdcopy").arg(&b).arg(&out));
        assert_same(&out, &data);
        qemu_io(&b, &["write -P 1 0 9M"]);
        said(tool("nbdcopy").arg("--flush").arg(&out).arg(&b));
        serving.end();
        assert_same(&stand.path("b.raw"), &data);
    }
    assert!(std::fs::read(data).unwrap() == original, "only read from");
}

#[test]
fn read_only_export_can_be_read_and_not_changed() {
    require!(requires::tool("nbdsh"));
    let stand = Stand::new();
    let file = stand.data("a.raw", 8, 1);
    let before = std::fs::read(&file).unwrap();
    let serving = stand.serve(&["a.raw", "--read-only"]);
    let code = r#"
import errno
assert h.is_read_only() and len(h.pread(65536, 0)) == 65536
h.set_strict_mode(0)
for change in (lambda: h.pwrite(b'1' * 512, 0), lambda: h.zero(512, 0), lambda: h.trim(512, 0)):
    try:
        change()
    except nbd.Error as error:
        assert error.errnum == errno.EPERM, error.errnum
    else:
        raise AssertionError("changed")
"#;
    said(&mut nbdsh(&serving.uri("a.raw"), code));
    serving.end();
    assert!(std::fs::read(&file).unwrap() == before);
}

#[test]
fn fio_verifies_its_direct_writes() {
    require!(requires::tool("fio"));
    let help = run_any_status(tool("fio").arg("--enghelp=nbd")).unwrap();
    require!(requires::Requirement::new(
        "fio with its nbd engine",
        help.status.success()
    ));
    let stand = Stand::new();
    stand.sparse("a.raw", 16);
    let serving = stand.serve(&["a.raw", "--cache", "none"]);
    let uri = format!("--uri={}", serving.uri("a.raw"));
    let job = [
        "--name=job",
        "--ioengine=nbd",
        "--size=16m",
        "--bs=4k",
        "--rw=randwrite",
    ];
    let verify = [
        "--iodepth=64",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--fsync=100",
    ];
    said(tool("fio").args(job).args(verify).arg(uri));
    serving.end();
}

#[test]
fn connections_beyond_the_limit_are_refused_and_logged() {
    require!(requires::tool("nbdsh"), requires::tool("nbdinfo"));
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let serving = stand.serve(&["a.raw", "--connections", "1", "--max-request", "64k"]);
    let uri = serving.uri("a.raw");
    let code = r#"
import subprocess
assert h.get_block_size(nbd.SIZE_MAXIMUM) == 65536
assert subprocess.run(["nbdinfo", h.get_uri()], capture_output=True).returncode != 0
"#;
    said(&mut nbdsh(&uri, code));
    let answer = serving.end();
    assert!(answer.stderr.contains("--connections"), "{answer}");
}
