//! One run of the guest.
//!
//! Host and guest share a control directory: the host writes the script there, the guest its output
//! and status. A run without a status is a guest that died or took too long.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Bus, Disk, Options, Output, accelerator, qemu, root};
use crate::command;
use crate::lab::Result;
use crate::workdir::Workdir;

const START: &str = include_str!("start.sh");
const CONSOLE_LINES: usize = 40;

pub(super) fn run(lab: &Path, script: &str, options: &Options) -> Result<Output> {
    let work = Workdir::new();
    let control = &work.directory("control");
    write_program(&control.join("start"), START)?;
    write_program(&control.join("script"), script)?;
    let disks: String = (0..options.disks.len())
        .map(|number| format!("disk{number}\n"))
        .collect();
    fs::write(control.join("disks"), disks)?;

    let qemu_says = control.join("qemu");
    let mut command = machine(lab, control, options)?;
    let status = command
        .stdin(Stdio::null())
        .stdout(File::create(&qemu_says)?)
        .stderr(File::options().append(true).open(&qemu_says)?)
        .status()?;

    let read = |name: &str| {
        let bytes = fs::read(control.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    match read("status").trim().parse() {
        Ok(status) => Ok(Output {
            status,
            text: read("output"),
        }),
        Err(_) => {
            let console = read("console");
            let lines: Vec<_> = console.lines().collect();
            let tail = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n");
            let reason = match status.code() {
                Some(124 | 137) => format!("no status after {:?}", options.timeout),
                _ => format!("no status; QEMU: {status}"),
            };
            let line = command::line(&command);
            let (qemu_says, output) = (read("qemu"), read("output"));
            Err(
                format!("{reason}\n`{line}`\n{qemu_says}\nconsole:\n{tail}\noutput:\n{output}")
                    .into(),
            )
        }
    }
}

fn machine(lab: &Path, control: &Path, options: &Options) -> Result<Command> {
    let root = root(lab);
    let (accelerator, processor) = accelerator();
    let mut words = String::from("console=ttyS0 quiet panic=-1 mitigations=off");
    if options.shared.is_some() {
        words.push_str(" extant.host");
    }

    // Shared with the processes that serve disks.
    let memory = format!(
        "memory-backend-memfd,id=memory,share=on,size={}M",
        options.memory_mib
    );
    let mut command = qemu(lab, options.timeout)?;
    command
        .args([
            "-object",
            &memory,
            "-M",
            "q35,memory-backend=memory",
            "-accel",
            accelerator,
            "-cpu",
            processor,
        ])
        .args(["-smp", &options.processors.to_string()])
        .args(["-m", &format!("{}M", options.memory_mib)])
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none"])
        .arg("-kernel")
        .arg(lab.join("vmlinux"))
        .arg("-initrd")
        .arg(lab.join("initrd"))
        .args(["-append", &words])
        .arg("-serial")
        .arg(format!("file:{}", escape(&control.join("console"))))
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
    share(&mut command, &root, "root", ",readonly=on");
    share(&mut command, control, "control", "");
    if let Some(directory) = &options.shared {
        share(&mut command, directory, "host", "");
    }
    for (number, disk) in options.disks.iter().enumerate() {
        attach(&mut command, number, disk);
    }
    Ok(command)
}

fn share(command: &mut Command, directory: &Path, tag: &str, further: &str) {
    command.arg("-virtfs").arg(format!(
        "local,path={},mount_tag={tag},security_model=none,multidevs=remap{further}",
        escape(directory)
    ));
}

fn attach(command: &mut Command, number: usize, disk: &Disk) {
    let device = match disk.bus {
        Bus::VhostUser => {
            let socket = escape(&disk.file);
            command
                .arg("-chardev")
                .arg(format!(
                    "socket,id=socket{number},path={socket},reconnect-ms=200"
                ))
                .arg("-device")
                .arg(format!("vhost-user-blk-pci,chardev=socket{number}"));
            return;
        }
        Bus::Nvme => "nvme",
        Bus::Virtio => "virtio-blk-pci",
    };
    command
        .arg("-drive")
        .arg(format!(
            "file={},if=none,id=drive{number},format=raw,discard=unmap",
            escape(&disk.file)
        ))
        .arg("-device")
        .arg(format!("{device},drive=drive{number},serial=disk{number}"));
}

/// In QEMU's lists of options a comma is written twice.
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o755))?)
}
