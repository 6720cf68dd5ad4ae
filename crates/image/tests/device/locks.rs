//! An open image excludes others: QEMU's programs and ours, in both directions.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use extant_hostfs::{CreateOptions, Existing};
use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice};
use extant_image::{
    CopyOptions, Format, ImageOptions, ReferencedFiles, convert, create, open_path,
};
use extant_space::{CancelToken, Control, ErrorKind, Silent};
use extant_testkit::busy::try_while_in_use;
use extant_testkit::command;
use extant_testkit::requires::tool;
use extant_testkit::scratch::LoopDevice;
use extant_testkit::{require, requires};

use crate::support::{Ground, MIB, open, qcow2_options, qemu_img, write};

/// A qemu-nbd that serves an image until it is dropped.
struct QemuNbd(Child);

impl QemuNbd {
    fn serve(ground: &Ground, mode: &[&str]) -> Self {
        let socket = ground.path("socket");
        let _ = std::fs::remove_file(&socket);
        let mut command: Command = command::tool("qemu-nbd");
        command
            .args(mode)
            .args(["-f", "qcow2", "-t", "-e", "4", "-k"])
            .arg(&socket);
        command.arg(ground.path("image.qcow2")).stdin(Stdio::null());
        let child = Self(command.spawn().expect("qemu-nbd starts"));
        let deadline = Instant::now() + Duration::from_secs(20);
        // It listens before it has opened the image, and greets after.
        let is_greeted = |mut stream: UnixStream| {
            let wait = Some(Duration::from_secs(20));
            stream.set_read_timeout(wait).expect("a socket");
            stream.read_exact(&mut [0; 8]).is_ok()
        };
        while !UnixStream::connect(&socket).is_ok_and(is_greeted) {
            assert!(Instant::now() < deadline, "qemu-nbd does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read_only() -> DeviceOptions {
    DeviceOptions {
        access: ImageAccess::ReadOnly,
        ..qcow2_options()
    }
}

#[test]
fn image_of_a_running_qemu_is_refused() {
    require!(qemu_img(), tool("qemu-nbd"));
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", MIB);
    let writer = QemuNbd::serve(&ground, &[]);
    for options in [qcow2_options(), read_only()] {
        let error = ImageDevice::open(&path, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        assert_eq!(error.path(), Some(&*path));
    }
    drop(writer);
    let reader = QemuNbd::serve(&ground, &["--read-only"]);
    let error = ImageDevice::open(&path, &qcow2_options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    ImageDevice::open(&path, &read_only()).unwrap();
    drop(reader);
    open(&path);
}

#[test]
fn image_that_is_open_here_is_refused_by_qemu() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", MIB);
    let info = || {
        let mut command = command::tool("qemu-img");
        command
            .args(["info", "-f", "qcow2"])
            .arg(&path)
            .output()
            .expect("qemu-img runs")
    };
    let resize = || {
        let mut command = command::tool("qemu-img");
        command
            .args(["resize", "-f", "qcow2"])
            .arg(&path)
            .arg("2M")
            .output()
            .expect("runs")
    };
    let writer = open(&path);
    let refused = String::from_utf8_lossy(&info().stderr).into_owned();
    assert!(refused.contains("lock"), "{refused}");
    drop(writer);
    let reader = ImageDevice::open(&path, &read_only()).unwrap();
    assert!(info().status.success());
    let refused = String::from_utf8_lossy(&resize().stderr).into_owned();
    assert!(refused.contains("lock"), "{refused}");
    drop(reader);
    assert!(resize().status.success());
}

#[test]
fn image_has_one_writer_or_many_readers() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", MIB);
    let refused = |options: &DeviceOptions| ImageDevice::open(&path, options).unwrap_err().kind();
    let writer = open(&path);
    assert_eq!(refused(&qcow2_options()), ErrorKind::InUse);
    assert_eq!(refused(&read_only()), ErrorKind::InUse);
    drop(writer);
    let _readers = [(); 2].map(|()| ImageDevice::open(&path, &read_only()).unwrap());
    assert_eq!(refused(&qcow2_options()), ErrorKind::InUse);
}

/// The ways to make a new image of `path`.
fn replacements<'p>(
    path: &'p Path,
    source: &'p Path,
) -> [Box<dyn Fn() -> extant_space::Result<()> + 'p>; 3] {
    fn replace() -> CreateOptions {
        CreateOptions {
            existing: Existing::Replace,
            ..CreateOptions::new(1)
        }
    }
    fn silent<T>(work: impl FnOnce(Control<'_>) -> T) -> T {
        work(Control::new(&CancelToken::new(), &Silent))
    }
    let made = move |format| {
        let options = ImageOptions::new(format, MIB);
        silent(|control| create(path, &options, &replace(), control)).map(drop)
    };
    [
        Box::new(move || made(Format::Qcow2)),
        Box::new(move || made(Format::Raw)),
        Box::new(move || {
            let layer = open_path(source, Some(Format::Raw), ReferencedFiles::Ignore)?;
            let options = ImageOptions::new(Format::Qcow2, MIB);
            let copy = CopyOptions::default();
            silent(|control| convert(&layer, path, &options, &replace(), copy, control)).map(drop)
        }),
    ]
}

#[test]
fn image_in_use_is_not_replaced() {
    require!(qemu_img(), tool("qemu-nbd"), requires::root());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", MIB);
    write(&open(&path), 0, &[7; 4096]);
    let source = ground.path("source.raw");
    std::fs::write(&source, vec![1; MIB as usize]).unwrap();
    let before = std::fs::read(&path).unwrap();
    // Another process that knows no locks.
    let writer = |path: &Path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let mut sleep = Command::new("sleep");
        Sleeping(sleep.arg("60").stdout(file).spawn().unwrap())
    };
    let link = ground.path("link.qcow2");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    type Use<'u> = &'u dyn Fn() -> Box<dyn std::any::Any>;
    let uses: [(&str, Use<'_>); 5] = [
        ("written here", &|| Box::new(open(&path))),
        ("read here", &|| {
            Box::new(ImageDevice::open(&path, &read_only()).unwrap())
        }),
        ("served by QEMU", &|| Box::new(QemuNbd::serve(&ground, &[]))),
        ("a loop device", &|| Box::new(LoopDevice::attach(&path))),
        ("a program that writes", &|| Box::new(writer(&path))),
    ];
    for (number, (what, make)) in uses.into_iter().enumerate() {
        let held = make();
        // Each takes the full lock timeout.
        let ways = if number == 0 { 3 } else { 1 };
        for path in [&path, &link].into_iter().take(ways) {
            for replace in replacements(path, &source).iter().take(ways) {
                let error = replace().expect_err(what);
                assert_eq!(error.kind(), ErrorKind::InUse, "{what}: {error}");
            }
        }
        drop(held);
        assert!(std::fs::read(&path).unwrap() == before, "{what}");
    }
    for replace in replacements(&path, &source) {
        // A process that another test has just forked has the file open for a moment.
        try_while_in_use(&*replace).unwrap();
    }
}

/// A process that ends with its test.
struct Sleeping(Child);

impl Drop for Sleeping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
