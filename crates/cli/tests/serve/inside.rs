//! Files inside an ext4 image as exports.

use extant_testkit::command::tool;
use extant_testkit::{require, requires};

use crate::image::Image;
use crate::stand::{Stand, assert_same, qemu_io, said};
use crate::support::run;

#[test]
fn files_inside_an_image_are_served_and_written_through_its_journal() {
    require!(requires::tool("mke2fs"), requires::tool("nbdcopy"));
    let stand = Stand::new();
    let image = Image::new(128);
    let path = image.path.to_str().unwrap();
    let data = stand.data("a.raw", 3, 8);
    image
        .fs(&["put", "IMAGE", data.to_str().unwrap(), "/"])
        .success();
    image.fs(&["mkdir", "IMAGE", "/vm"]).success();
    let create = ["--in", path, "/vm/b", "8MiB", "--preallocation", "falloc"];
    let mut command = crate::support::extant();
    run(command.arg("create").args(create)).success();
    let serving = stand.serve(&["--in", path, "/a.raw", "b=/vm/b"]);
    let (a, b) = (serving.uri("a.raw"), serving.uri("b"));
    let map = said(tool("nbdinfo").args(["--map=extant:state", &b]));
    // Unwritten.
    assert!(map.split_whitespace().eq(["0", "8388608", "2"]), "{map}");
    said(tool("nbdcopy").args(["--flush", &a, &b]));
    let map = said(tool("nbdinfo").args(["--map=extant:state", &b]));
    assert!(map.split_whitespace().eq(["0", "8388608", "0"]), "{map}");
    // The image is locked.
    image.fs(&["mkdir", "IMAGE", "/no"]).refused(4, &["in use"]);
    serving.end();
    image.assert_clean();
    let out = stand.path("out");
    image
        .fs(&["get", "IMAGE", "/vm/b", out.to_str().unwrap()])
        .success();
    assert_same(&out, &data);
}

#[test]
fn read_only_server_leaves_the_image_as_it_is() {
    require!(requires::tool("mke2fs"), requires::tool("qemu-io"));
    let stand = Stand::new();
    let image = Image::new(32);
    let path = image.path.to_str().unwrap();
    let data = stand.data("a.raw", 4, 1);
    image
        .fs(&["put", "IMAGE", data.to_str().unwrap(), "/"])
        .success();
    let before = std::fs::read(&image.path).unwrap();
    let serving = stand.serve(&["--in", path, "-r", "/a.raw", "twice=/a.raw"]);
    for name in ["a.raw", "twice"] {
        let copy = stand.path(name).with_extension("copy");
        said(
            tool("qemu-img")
                .args(["convert", "-f", "raw", "-O", "raw", &serving.uri(name)])
                .arg(&copy),
        );
        assert_same(&copy, &data);
    }
    serving.end();
    assert!(std::fs::read(&image.path).unwrap() == before);
}

#[test]
fn file_of_an_image_that_cannot_be_served_is_refused_and_the_image_closed() {
    require!(requires::tool("mke2fs"));
    let stand = Stand::new();
    let image = Image::new(32);
    let path = image.path.to_str().unwrap();
    let data = stand.data("a.raw", 4, 1);
    image
        .fs(&["put", "IMAGE", data.to_str().unwrap(), "/"])
        .success();
    let serve = |words: &[&str]| run(stand.command(&["--socket", "s", "--in", path]).args(words));
    serve(&["/none"]).refused(4, &["/none"]);
    serve(&["/lost+found"]).refused(4, &["lost+found"]);
    serve(&["/a.raw", "b=/a.raw"]).refused(4, &["served twice"]);
    serve(&["/a.raw", "--cache", "none"]).refused(2, &["--cache"]);
    image.assert_clean();
    let serving = stand.serve(&["--in", path, "/a.raw"]);
    qemu_io(&serving.uri(""), &["read 0 64k"]);
    serving.end();
}
