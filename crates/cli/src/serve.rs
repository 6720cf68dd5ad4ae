//! `extant serve`: files, disks and files inside images as NBD exports and vhost-user disks.
//!
//! One source for each export (`crate::source`), one server for all of them. The server says where
//! it can be reached when it can, on stdout, as URIs. It ends by a signal: received requests are
//! completed, the devices are flushed, an image is closed.
//!
//! The files stay locked meanwhile, so that two writers exclude each other.

mod activation;
mod events;
mod listen;
mod pid_file;
mod ready;
mod server;
mod ublk;
mod vhost;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use extant_image::hold::cluster_image;
use extant_space::{ByteSize, CancelToken, Error, ErrorKind, Result};

use crate::arguments::parse_size;
use crate::background::{self, RunMode, Started};
use crate::exit::{self, Style};
use crate::print;
use crate::source::{Discard, SourceArgs, Wanted};

/// Serve files, images and disks to NBD clients (virtual machines, qemu-img, nbdcopy, nbd-client),
/// and to virtual machines as vhost-user disks.
///
/// Prints the URI of each export, or its vhost-user socket, when it is ready for clients, and
/// serves until SIGINT, SIGTERM or SIGHUP: then received requests are completed and made durable. A
/// file that grew is larger for the next NBD client that connects, and within a second for a
/// running virtual machine with a vhost-user disk. Files are locked; nothing else of this program
/// writes to them meanwhile.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant serve vm.raw --socket /run/vm.sock         nbd+unix:///vm.raw?socket=/run/vm.sock
  extant serve vm.qcow2 --socket /run/vm.sock       the disk in a qcow2 image
  extant serve boot=a.raw data=/dev/sdb1 --listen 127.0.0.1
  extant serve vm.raw --socket s --cache none --aio io_uring
  extant serve -r vm.raw --socket s --fork --pid-file s.pid
  extant serve --in disk.img /vm/a.raw --socket s   a file inside an ext4 image
  extant serve --pool vms web.qcow2 --socket s      a volume of a pool
  extant serve rbd:vms/web:id=me --socket s         an image of a Ceph cluster, in QEMU's syntax
  extant serve vm.qcow2 --vhost-user /run/vm.sock   a disk of a virtual machine, with shared memory
  extant serve vm.qcow2 --ublk                      /dev/ublkb0, a disk of this machine
  extant serve vm.raw --listen 0.0.0.0:10809 --tls-creds /etc/pki/qemu
  nbdinfo [ extant serve vm.raw ]                   by a socket that the client hands over, as systemd does

A client that names no export gets the first. A name may not contain '/': for a file a=b say ./a=b.
DIR of --tls-creds holds server-cert.pem, server-key.pem and ca-cert.pem, as for QEMU and libnbd; pre-shared
keys are not supported.
Without TLS, every host that can reach a TCP port can use the exports. A socket is open to those who may write
to it, which the umask decides.
A vhost-user socket is open to its owner alone, and has one client at a time; after a restart of either side
the other one continues. With FileDescriptorName=vhost-user in the unit of a socket, systemd can hand one over
for each file, in their order. docs/guide/vhost-user.md has the options of QEMU, cloud-hypervisor and libvirt.
SIGINT, SIGTERM or SIGHUP ends the server; a second SIGTERM ends it as a crash would. With --fork its
process number is printed on stderr, or written to --pid-file or --json: kill $(cat s.pid).
With --ublk a disk in use is served until it is released. If the server is killed, users of the disk wait
until the same command with --ublk=N continues it; extant ublk list shows such disks.
SIGUSR1 prints what clients have done so far.
Exit status: see extant --help.")]
pub struct ServeArgs {
    /// File to serve, under its file name or the name before the '='
    #[arg(value_name = "[NAME=]FILE|VOLUME", required = true)]
    #[arg(value_parser = OsStringValueParser::new().map(|word| Served::of(&word)))]
    pub files: Vec<Served>,

    #[command(flatten)]
    pub source: SourceArgs,

    /// Listen on a socket in the file system
    #[arg(long, short, value_name = "PATH")]
    pub socket: Vec<PathBuf>,

    /// Listen on a TCP address; port 0 uses a free one [default port: 10809]
    #[arg(long, short, value_name = "HOST[:PORT]")]
    pub listen: Vec<String>,

    /// Listen on a vhost-user socket, for virtual machines: given once for each file, or once with
    /// a directory, where each file has the socket NAME.sock
    #[arg(long, value_name = "PATH")]
    pub vhost_user: Vec<PathBuf>,

    /// Queues that a virtual machine can set up on a vhost-user disk
    #[arg(long, value_name = "N", default_value = "4", requires = "vhost_user")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub queues: u16,

    /// Make a disk of this machine, /dev/ublkbN, instead of an export: with the first free number
    /// or this one. A disk with this number that lost its server is continued (Linux 6.5)
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "any",
        value_parser = ublk::parse_number,
        conflicts_with_all = ["socket", "listen", "vhost_user", "name", "description", "tls_creds"]
    )]
    pub ublk: Option<ublk::DiskNumber>,

    /// Remove the disk when the server dies, instead of letting its users wait for the next server
    #[arg(long, requires = "ublk")]
    pub no_recovery: bool,

    /// The name of the export, with one file
    #[arg(long, short = 'x')]
    pub name: Option<String>,

    /// A description of the export for clients, with one file
    #[arg(
        long,
        short = 'D',
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub description: String,

    /// Treatment of space that clients trim or zero
    #[arg(long, value_name = "WHAT", default_value = "ignore")]
    pub discard: Discard,

    /// Connections at a time, three quarters of them from one TCP address; more are closed
    #[arg(long, value_name = "N", default_value = "64")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: u32,

    /// Bytes of the largest read or write: a power of two from 64 KiB to 1 GiB
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_request)]
    pub max_request: u32,

    /// Use TLS with the certificate in DIR; clients must use it, and show one by its authority
    #[arg(long, value_name = "DIR")]
    pub tls_creds: Option<PathBuf>,

    /// Let clients do without TLS
    #[arg(long, requires = "tls_creds")]
    pub tls_optional: bool,

    /// Ask clients for no certificate
    #[arg(long, requires = "tls_creds")]
    pub tls_any_client: bool,

    /// Detach when ready for clients
    #[arg(long)]
    pub fork: bool,

    /// Write the number of the server process to FILE; removed at the end
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,

    /// Print as JSON, on one line, the addresses for clients
    #[arg(long)]
    pub json: bool,

    /// Log connections and disconnections, and statistics at the end
    #[arg(long, short)]
    pub verbose: bool,

    /// This process is the server, started by one that waits for its ready message
    #[arg(long, hide = true)]
    pub background_server: bool,
}

/// A file and the name that it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    name: Option<OsString>,
    path: PathBuf,
}

impl Served {
    fn of(word: &OsStr) -> Self {
        let bytes = word.as_encoded_bytes();
        let at = bytes.iter().position(|&byte| byte == b'=');
        match at.filter(|&at| !bytes[..at].contains(&b'/')) {
            None => Self {
                name: None,
                path: word.into(),
            },
            Some(at) => {
                use std::os::unix::ffi::OsStrExt;
                Self {
                    name: Some(OsStr::from_bytes(&bytes[..at]).into()),
                    path: OsStr::from_bytes(&bytes[at + 1..]).into(),
                }
            }
        }
    }
}

impl ServeArgs {
    /// The files with the names that clients ask for.
    fn wanted(&self) -> Result<Vec<Wanted>> {
        if self.files.len() > 1 && (self.name.is_some() || !self.description.is_empty()) {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("--name and --description are for one file")
                .advice("give names as NAME=FILE"));
        }
        let named = |served: &Served| {
            let name = match (&self.name, &served.name) {
                (Some(name), _) => OsStr::new(name),
                (None, Some(name)) => name,
                (None, None) => match cluster_image(&served.path)? {
                    Some(image) => {
                        return Ok(Wanted {
                            name: image.own_name(),
                            path: served.path.clone(),
                        });
                    }
                    None => served.path.file_name().unwrap_or_default(),
                },
            };
            let name = name.to_str().map(str::to_owned).ok_or_else(|| {
                Error::new(ErrorKind::InvalidArgument)
                    .at(&served.path)
                    .detail("names of exports are UTF-8")
                    .advice("give it one as NAME=FILE")
            })?;
            Ok(Wanted {
                name,
                path: served.path.clone(),
            })
        };
        self.files.iter().map(named).collect()
    }
}

/// Serves; `words` are the arguments of this program.
pub fn run(args: &ServeArgs, words: &[OsString], cancel: &CancelToken) -> ExitCode {
    let done = match (args.fork, args.background_server) {
        (_, true) => server::run(args, RunMode::Background, cancel),
        (false, _) => server::run(args, RunMode::Foreground, cancel),
        (true, _) => {
            background::start(&to_server_arguments(words), cancel).map(|started| match started {
                Started::Ready(line) => print::text(line),
                Started::Failed(status) => status,
            })
        }
    };
    done.unwrap_or_else(|error| exit::report(&error, Style::Line))
}

/// The arguments of a process that is to be the server: the same, and a word to it.
fn to_server_arguments(words: &[OsString]) -> Vec<OsString> {
    let mut arguments = vec![words[1].clone(), "--background-server".into()];
    arguments.extend_from_slice(&words[2..]);
    arguments
}

fn parse_request(text: &str) -> std::result::Result<u32, String> {
    let ByteSize(bytes) = parse_size(text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes.is_power_of_two() && (1 << 16..=1 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("not a power of two from 64KiB to 1GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_stands_before_the_first_equals_sign_and_has_no_slash() {
        for (word, name, path) in [
            ("vm.raw", None, "vm.raw"),
            ("boot=/a=b/vm.raw", Some("boot"), "/a=b/vm.raw"),
            ("./a=b", None, "./a=b"),
            ("=vm", Some(""), "vm"),
        ] {
            let wanted = Served {
                name: name.map(OsString::from),
                path: path.into(),
            };
            assert_eq!(Served::of(OsStr::new(word)), wanted, "{word}");
        }
    }

    #[test]
    fn largest_request_is_a_power_of_two_in_bounds() {
        assert_eq!(parse_request("64k"), Ok(1 << 16));
        assert_eq!(parse_request("1GiB"), Ok(1 << 30));
        for wrong in ["32k", "3M", "2GiB", "1TiB", ""] {
            assert!(parse_request(wrong).is_err(), "{wrong}");
        }
    }
}
