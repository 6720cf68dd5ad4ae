//! Size, space and contents of a new file.
//!
//! A file of an interrupted run is resumed: its extent map is the record of progress. Its written
//! part is kept, and space beyond the requested part is freed. The map shows nothing of contents,
//! so a file with contents must not be resumed; the caller is called before the first byte of them.

use extant_space::{
    ByteRange, ByteSize, Control, Error, ErrorKind, FallocateMode, Preallocation, Remedy, Result,
    SpaceFile,
};

use crate::make_written::Provisioned;
use crate::provisioner::Provisioner;
use crate::verify::{Contents, Verified};

/// The order of writing contents and allocating space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentOrder {
    /// After the space is complete. For small contents: an interrupted run resumes the allocation.
    AfterSpace,
    /// Into reserved space, before the rest becomes written: nothing is written twice. An
    /// interrupted run starts again.
    BeforeZeros,
}

/// Writes contents into a new file that has its size.
pub struct ContentWriter<'a> {
    /// When it runs.
    pub order: ContentOrder,
    /// Writes them, inside the file's size; with [`Preallocation::Off`] it may truncate the file.
    /// It reports progress, and stops when it is cancelled.
    pub fill: &'a dyn Fn(&dyn SpaceFile, Control<'_>) -> Result<()>,
}

/// A new file. The range of its [`Provisioner`] is the part to allocate.
pub struct NewFile<'a> {
    /// Its size, bytes.
    pub size_bytes: u64,
    /// The kind of space.
    pub preallocation: Preallocation,
    /// Its contents; `None`: zeros.
    pub contents: Option<&'a ContentWriter<'a>>,
    /// Called before the first byte of contents is written.
    pub before_contents: &'a dyn Fn() -> Result<()>,
    /// If the map does not show unwritten space: how many of the first bytes an interrupted run has
    /// written, as the file's size shows.
    pub resumed_bytes: u64,
    /// The caller syncs the file afterwards. Space alone is not synced before that.
    pub is_synced_later: bool,
}

/// Result of [`Provisioner::provision_new`].
#[derive(Clone, Debug)]
pub struct NewFileReport {
    /// Report of the provisioning.
    pub provisioned: Provisioned,
    /// How the result was verified.
    pub verified: Verified,
    /// Size of the file, bytes.
    pub size_bytes: u64,
}

impl Provisioner<'_> {
    /// Gives a new file its size, space and contents; durable and verified on return.
    ///
    /// # Errors
    /// `NoSpace` with the missing bytes, `TooLarge`, `Unsupported` where the file system cannot
    /// reserve space, `NotKept`, `Cancelled`; those of the device and of the contents.
    pub fn provision_new(&self, new: &NewFile<'_>) -> Result<NewFileReport> {
        self.pace.check(self.file, self.control.progress)?;
        let contents = |order| new.contents.filter(|contents| contents.order == order);
        let provisioned = match contents(ContentOrder::BeforeZeros) {
            None => self.make_new(new)?,
            Some(early) => self.make_filled(new, early)?,
        };
        let mut verified = match (new.preallocation, contents(ContentOrder::BeforeZeros)) {
            (Preallocation::Full, None) => self.verify_written(Contents::Zeros)?,
            (Preallocation::Full, Some(_)) => self.verify_written(Contents::Any)?,
            _ => self.verify_state(new.preallocation.state())?,
        };
        if let Some(late) = contents(ContentOrder::AfterSpace) {
            (new.before_contents)()?;
            (late.fill)(self.file, self.control)?;
            self.sync()?;
            verified = self.verify_state(new.preallocation.state())?;
        }
        let size_bytes = self.file.size()?;
        let may_be_shorter = new.contents.is_some() && new.preallocation == Preallocation::Off;
        if size_bytes != new.size_bytes && !(may_be_shorter && size_bytes < new.size_bytes) {
            return Err(Error::new(ErrorKind::NotKept).detail(format!(
                "the file system shows {size_bytes} bytes instead of {}",
                new.size_bytes
            )));
        }
        self.control.cancel.check()?;
        Ok(NewFileReport {
            provisioned,
            verified,
            size_bytes,
        })
    }

    fn make_new(&self, new: &NewFile<'_>) -> Result<Provisioned> {
        match new.preallocation {
            Preallocation::Off => {
                self.file.resize(0)?;
                self.resize(new)?;
                Ok(Provisioned::default())
            }
            Preallocation::Falloc => self.reserve(new),
            Preallocation::Full if self.map_hides_unwritten()? => self.write_by_size(new),
            Preallocation::Full => {
                self.size_up(new)?;
                self.make_written()
            }
        }
    }

    /// Space is reserved, then filled, and the rest is zeroed.
    fn make_filled(&self, new: &NewFile<'_>, contents: &ContentWriter<'_>) -> Result<Provisioned> {
        (new.before_contents)()?;
        match new.preallocation {
            Preallocation::Off => {
                self.file.resize(0)?;
                self.resize(new)?;
            }
            Preallocation::Falloc => {
                self.reserve(new)?;
            }
            Preallocation::Full => {
                self.size_up(new)?;
                // If it is refused, the contents and the zeros are allocated as they are written.
                self.allocate()?;
            }
        }
        (contents.fill)(self.file, self.control)?;
        match new.preallocation {
            Preallocation::Full => self.make_written(),
            _ => {
                self.sync()?;
                Ok(Provisioned::default())
            }
        }
    }

    fn reserve(&self, new: &NewFile<'_>) -> Result<Provisioned> {
        self.size_up(new)?;
        if let Some(refused) = self.allocate()? {
            let source = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(Error::from(source)
                .detail(format!("this file system cannot reserve space: {refused}"))
                .remedy(Remedy::WriteZeros));
        }
        if !new.is_synced_later {
            self.sync()?;
        }
        Ok(Provisioned::default())
    }

    /// If the map does not distinguish unwritten from written space, the size is the record of
    /// progress: it grows with the zeros.
    fn write_by_size(&self, new: &NewFile<'_>) -> Result<Provisioned> {
        let resumed = new.resumed_bytes.min(self.range.end());
        self.file.resize(resumed)?;
        let rest = Provisioner {
            range: ByteRange::new(resumed, self.range.end()),
            ..*self
        };
        let provisioned = rest.write_in_order(resumed)?;
        self.resize(new)?;
        self.sync()?;
        Ok(provisioned)
    }

    /// Sets the size of the file and checks that the missing space fits.
    fn size_up(&self, new: &NewFile<'_>) -> Result<()> {
        self.resize(new)?;
        self.trim(new)?;
        let allocated = self.file.allocated_bytes()?;
        self.check_space(self.range.len().saturating_sub(allocated))
    }

    fn resize(&self, new: &NewFile<'_>) -> Result<()> {
        self.file
            .resize(new.size_bytes)
            .map_err(|error| match error.kind() {
                ErrorKind::TooLarge | ErrorKind::InvalidArgument => {
                    error.with_kind(ErrorKind::TooLarge).detail(format!(
                        "{} is past the largest file of this file system",
                        ByteSize(new.size_bytes)
                    ))
                }
                _ => error,
            })
    }

    /// An earlier run may have been asked for more: the rest is sparse.
    fn trim(&self, new: &NewFile<'_>) -> Result<()> {
        let rest = ByteRange::new(self.range.end(), new.size_bytes);
        if rest.is_empty() || self.file.allocated_bytes()? == 0 {
            return Ok(());
        }
        self.file
            .fallocate(FallocateMode::PunchHole, rest)
            .or_else(|error| match error.kind() {
                // Then a shorter file has fewer blocks as well.
                ErrorKind::Unsupported => {
                    self.file.resize(rest.start())?;
                    self.resize(new)
                }
                _ => Err(error),
            })
    }
}
