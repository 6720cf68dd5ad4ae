//! Who has an image open keeps others out: QEMU's programs and ours, each way round.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice};
use extant_space::ErrorKind;
use extant_testkit::command;
use extant_testkit::require;
use extant_testkit::requires::tool;

use crate::support::{Ground, MIB, open, qcow2_options, qemu_img};

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
