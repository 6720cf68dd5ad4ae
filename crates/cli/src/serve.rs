//! `extant serve`: files, disks and files inside images as NBD exports.
//!
//! One source for each export (`source`), one server for all of them. The server says where it can
//! be reached when it can, on stdout, as URIs. It ends by a signal: received requests are
//! completed, the devices are flushed, an image is closed.
//!
//! The files stay locked meanwhile, so that two writers exclude each other.

mod activation;
mod events;
mod format;
mod listen;
mod pid_file;
mod ready;
mod server;
mod source;
mod volumes;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use extant_blockdev::{HostCache, HostEngine};
use extant_export::DiscardPolicy;
use extant_space::{ByteSize, CancelToken};
use serde::Serialize;

use crate::arguments::parse_size;
use crate::background::{self, RunMode, Started};
use crate::exit::{self, Style};
use crate::image_format::ImageFormat;
use crate::in_image::InImageArgs;
use crate::pool::ConfigArgs;
use crate::print;

/// Serve files, images and disks to NBD clients: virtual machines, qemu-img, nbdcopy, nbd-client.
///
/// Prints the URI of each export when it is ready for clients, and serves until SIGINT, SIGTERM or
/// SIGHUP: then received requests are completed and made durable. A file that grew is larger for
/// the next client that connects. Files are locked; nothing else of this program writes to them
/// meanwhile.
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
  extant serve vm.raw --listen 0.0.0.0:10809 --tls-creds /etc/pki/qemu
  nbdinfo [ extant serve vm.raw ]                   by a socket that the client hands over, as systemd does

A client that names no export gets the first. A name may not contain '/': for a file a=b say ./a=b.
DIR of --tls-creds holds server-cert.pem, server-key.pem and ca-cert.pem, as for QEMU and libnbd; pre-shared
keys are not supported.
Without TLS, every host that can reach a TCP port can use the exports. A socket is open to those who may write
to it, which the umask decides.
SIGINT, SIGTERM or SIGHUP ends the server; a second SIGTERM ends it as a crash would. With --fork its
process number is printed on stderr, or written to --pid-file or --json: kill $(cat s.pid).
SIGUSR1 prints what clients have done so far.
Exit status: see extant --help.")]
pub struct ServeArgs {
    /// File to serve, under its file name or the name before the '='
    #[arg(value_name = "[NAME=]FILE|VOLUME", required = true)]
    #[arg(value_parser = OsStringValueParser::new().map(|word| Served::of(&word)))]
    pub files: Vec<Served>,

    #[command(flatten)]
    pub inside: InImageArgs,

    /// The files are volumes of this pool, with their formats in the pool: its name; with a slash
    /// or dots, a directory or an ext4 image, which no other process may use meanwhile
    #[arg(long, value_name = "POOL", conflicts_with = "image")]
    pub pool: Option<PathBuf>,

    #[command(flatten)]
    pub config: ConfigArgs,

    /// Listen on a socket in the file system
    #[arg(long, short, value_name = "PATH")]
    pub socket: Vec<PathBuf>,

    /// Listen on a TCP address; port 0 uses a free one [default port: 10809]
    #[arg(long, short, value_name = "HOST[:PORT]")]
    pub listen: Vec<String>,

    /// Let clients change nothing
    #[arg(long, short)]
    pub read_only: bool,

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

    /// Format of the files [default: qcow2 by the extension; else raw, refused if the contents have
    /// another format]
    #[arg(long, short, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    /// Open the backing and data files that a qcow2 image names, and those that they name
    #[arg(long)]
    pub chain: bool,

    /// Caching of data before a client flushes
    #[arg(
        long,
        value_name = "WHERE",
        default_value = "writeback",
        conflicts_with = "image"
    )]
    pub cache: Cache,

    /// How reads and writes reach the kernel, for files and disks of the host
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        conflicts_with = "image"
    )]
    pub aio: Aio,

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

/// Caching of data between client and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// In the page cache of this machine
    Writeback,
    /// Nowhere (O_DIRECT)
    None,
}

impl From<Cache> for HostCache {
    fn from(cache: Cache) -> Self {
        match cache {
            Cache::Writeback => Self::Buffered,
            Cache::None => Self::Direct,
        }
    }
}

/// How reads and writes reach the kernel; QEMU's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Aio {
    /// native for direct writes and streams of requests, else io_uring; threads without io_uring
    Auto,
    /// System calls that block, from several threads
    Threads,
    /// Linux AIO; needs --cache none
    Native,
    /// io_uring, also for single requests
    #[value(name = "io_uring")]
    IoUring,
}

impl Aio {
    /// What is at work where this was chosen.
    fn at_work(self) -> Self {
        match HostEngine::from(self).at_work() {
            HostEngine::Threads => Self::Threads,
            _ => self,
        }
    }
}

impl From<Aio> for HostEngine {
    fn from(aio: Aio) -> Self {
        match aio {
            Aio::Auto => Self::Auto,
            Aio::Threads => Self::Threads,
            Aio::Native => Self::Native,
            Aio::IoUring => Self::Uring,
        }
    }
}

/// Treatment of discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Discard {
    /// It is kept, so that preallocation survives: trims are not offered, zeros leave space behind
    Ignore,
    /// It is freed in the file system or disk below
    Unmap,
}

impl From<Discard> for DiscardPolicy {
    fn from(discard: Discard) -> Self {
        match discard {
            Discard::Ignore => Self::Ignore,
            Discard::Unmap => Self::Unmap,
        }
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

fn parse_request(text: &str) -> Result<u32, String> {
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
