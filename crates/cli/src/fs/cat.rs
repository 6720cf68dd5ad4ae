//! `extant fs cat`.
//!
//! Holes are not read. If stdout is a regular file positioned at its end, they become holes there
//! too.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_ext4::FollowLast;
use extant_space::{ByteRange, CancelToken, ExtentState, Result, SpaceFile};

use super::copy::PIECE;
use crate::fs_image::{At, Image};
use crate::print;

/// Write files of an image to stdout.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs cat disk.img /etc/hostname
  extant fs cat disk.img /var/lib/vm.raw > vm.raw      holes stay holes")]
pub struct CatArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Files in it
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
}

/// Writes.
pub(super) fn run(args: &CatArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let image = Image::look(&args.image)?;
    let mut out = Out::stdout().map_err(print::output_error)?;
    for path in &args.files {
        let node = image.resolve(path, FollowLast::Yes)?;
        let inner = path.as_os_str().as_encoded_bytes();
        let file = node.file().at_inner(&image, inner)?;
        write(&file, &mut out, cancel, &image, inner)?;
    }
    out.finish().map_err(print::output_error)?;
    Ok(ExitCode::SUCCESS)
}

fn write(
    file: &dyn SpaceFile,
    out: &mut Out,
    cancel: &CancelToken,
    image: &Image,
    inner: &[u8],
) -> Result<()> {
    let size = file.size().at_inner(image, inner)?;
    let mut buffer = vec![0; PIECE];
    let extents = file
        .extents(ByteRange::new(0, size))
        .at_inner(image, inner)?;
    for extent in extents {
        for piece in extent.logical.chunks(PIECE as u64) {
            cancel.check()?;
            if extent.state != ExtentState::Written {
                out.zeros(piece.len()).map_err(print::output_error)?;
                continue;
            }
            let buffer = &mut buffer[..piece.len() as usize];
            let read = file.read_at(buffer, piece.start()).at_inner(image, inner)?;
            out.bytes(&buffer[..read]).map_err(print::output_error)?;
        }
    }
    Ok(())
}

/// Standard output.
struct Out {
    file: File,
    /// Zeros can be left out.
    sparse: bool,
    zeros: Vec<u8>,
}

impl Out {
    fn stdout() -> io::Result<Self> {
        let mut file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let metadata = file.metadata()?;
        let appends = rustix::fs::fcntl_getfl(&file)?.contains(rustix::fs::OFlags::APPEND);
        let sparse = metadata.is_file() && !appends && file.stream_position()? >= metadata.len();
        Ok(Self {
            file,
            sparse,
            zeros: Vec::new(),
        })
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn zeros(&mut self, count: u64) -> io::Result<()> {
        if self.sparse {
            self.file.seek(SeekFrom::Current(count as i64))?;
            return Ok(());
        }
        self.zeros.resize(PIECE, 0);
        let zeros = &self.zeros[..count as usize];
        self.file.write_all(zeros)
    }

    /// A hole at the end is one of the size alone.
    fn finish(mut self) -> io::Result<()> {
        if self.sparse {
            let end = self.file.stream_position()?;
            self.file.set_len(end)?;
        }
        Ok(())
    }
}
