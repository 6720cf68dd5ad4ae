//! Plays steps on the files of a mount, and compares with the models.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use extant_mount::ioctl::fallocate_bits;
use fastrand::Rng;
use rustix::fs::{Advice, FallocateFlags, OFlags, SeekFrom};

use crate::companion::Companion;
use crate::model::{Grain, Model, Seek};
use crate::operation::{Fallocate, Operation, Read, Resize, Sync, Write};

type Result<T = ()> = std::result::Result<T, String>;

/// Bytes of an index block's worth of extents: no less fit into one.
const EXTENTS_OF_INDEX_BLOCK: u64 = 80;

/// The files of a worker on a mount.
pub struct Player {
    files: Vec<Open>,
    companion: Companion,
    cached: Grain,
    /// Bytes of kept mappings.
    reach: u64,
}

/// A file and the descriptors that are open.
struct Open {
    path: PathBuf,
    cached: Option<File>,
    direct: Option<File>,
    append: Option<File>,
}

impl Player {
    /// Opens or makes files; their content equals the models.
    ///
    /// `cached` is how writes to the kernel's cache reach the file system.
    pub fn new(
        paths: Vec<PathBuf>,
        program: &Path,
        cached: Grain,
        reach: u64,
        models: &[Model],
    ) -> Result<Self> {
        for (path, model) in paths.iter().zip(models) {
            let opened = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path);
            opened.map_err(|error| format!("{}: {error}", path.display()))?;
            judge_blocks(path, model)?;
        }
        let companion = Companion::start(program, &paths);
        let open = |path| Open {
            path,
            cached: None,
            direct: None,
            append: None,
        };
        Ok(Self {
            files: paths.into_iter().map(open).collect(),
            companion,
            cached,
            reach: reach.next_multiple_of(4096),
        })
    }

    /// Makes a step, in the model too, and compares the answers.
    pub fn play(&mut self, operation: &Operation, models: &mut [Model]) -> Result {
        match *operation {
            Operation::Read {
                file,
                way,
                offset,
                length,
            } => {
                let found = self.read(file, way, offset, length)?;
                same_bytes(models[file].read(offset, length), &found, offset)
            }
            Operation::Write {
                file,
                way,
                offset,
                length,
                seed,
            } => {
                let mut data = vec![0; length];
                Rng::with_seed(seed).fill(&mut data);
                self.write(file, way, offset, &data)?;
                let grain = match way {
                    Write::Direct | Write::Submitted(_) => Grain::Exact,
                    Write::Mapped(_) => Grain::Pages,
                    _ => self.cached,
                };
                models[file].write(offset, &data, grain);
                self.judge_size(file, &models[file])
            }
            Operation::Resize { file, way, size } => {
                let done = match way {
                    Resize::Descriptor => self.cached(file)?.set_len(size),
                    Resize::Open => OpenOptions::new()
                        .write(true)
                        .truncate(true)
                        .open(&self.files[file].path)
                        .map(|_| ()),
                };
                done.map_err(told)?;
                models[file].resize(size, self.cached);
                self.judge_size(file, &models[file])
            }
            Operation::Fallocate {
                file,
                way,
                mode,
                offset,
                length,
            } => {
                let wanted = models[file].fallocate(mode, offset, length);
                let found = match way {
                    Fallocate::SystemCall => {
                        let bits = fallocate_bits(mode).expect("a mode that has bits");
                        let flags = FallocateFlags::from_bits_retain(bits);
                        rustix::fs::fallocate(self.cached(file)?, flags, offset, length)
                    }
                    Fallocate::ControlCall => {
                        self.companion.fallocate(file, mode, offset, length)?
                    }
                };
                if wanted == found {
                    self.judge_size(file, &models[file])
                } else {
                    Err(format!("{found:?}, not {wanted:?}"))
                }
            }
            Operation::Seek { file, what, offset } => {
                let place = match what {
                    Seek::Data => SeekFrom::Data(offset),
                    Seek::Hole => SeekFrom::Hole(offset),
                };
                let answer = rustix::fs::seek(self.cached(file)?, place);
                models[file].judge_seek(what, offset, answer)
            }
            Operation::Copy {
                from,
                from_offset,
                to,
                to_offset,
                length,
            } => {
                let data = models[from].read(from_offset, length as usize).to_vec();
                let copied = self.copy((from, from_offset), (to, to_offset), length)?;
                if copied != data.len() as u64 {
                    return Err(format!("{copied} bytes copied, not {}", data.len()));
                }
                models[to].write(to_offset, &data, Grain::Exact);
                self.judge_size(to, &models[to])
            }
            Operation::Sync { file, what } => {
                let file = self.cached(file)?;
                match what {
                    Sync::All => file.sync_all().map_err(told),
                    Sync::Data => file.sync_data().map_err(told),
                    Sync::FileSystem => rustix::fs::syncfs(file).map_err(told),
                }
            }
            Operation::Close { file } => {
                let file = &mut self.files[file];
                (file.cached, file.direct, file.append) = (None, None, None);
                Ok(())
            }
            Operation::KeepMapping { file } => self.companion.keep(file, self.reach),
            Operation::DropMapping { file } => self.companion.drop_kept(file),
            Operation::SetSync { file, is_set } => self.companion.set_sync(file, is_set),
            Operation::Forget { file } => {
                let file = self.cached(file)?;
                rustix::fs::fadvise(file, 0, None, Advice::DontNeed).map_err(told)
            }
            Operation::Map { file } => {
                let extents = self.companion.extents(file)?;
                models[file].settle(&extents)
            }
            Operation::Compare { file } => self.compare(file, &models[file]),
        }
    }

    /// Compares size and content of a file.
    fn compare(&mut self, file: usize, model: &Model) -> Result {
        self.judge_size(file, model)?;
        let found = fs::read(&self.files[file].path).map_err(told)?;
        same_bytes(model.read(0, model.size() as usize), &found, 0)
    }

    fn read(&mut self, file: usize, way: Read, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut data = vec![0xEE; length];
        let read = match way {
            Read::Submitted(_) if length == 0 => return Ok(Vec::new()),
            Read::Submitted(parts) => {
                return self.companion.submit_read(file, parts, offset, length);
            }
            Read::Mapped(bits) => return self.companion.read(file, bits, offset, length),
            Read::Cached => self.cached(file)?.read_at(&mut data, offset),
            Read::Direct => self.direct(file)?.read_at(&mut data, offset),
            Read::Vectored(parts) => {
                let mut parts: Vec<_> = data
                    .chunks_mut(length.div_ceil(parts).max(1))
                    .map(IoSliceMut::new)
                    .collect();
                let file = self.cached(file)?;
                rustix::io::preadv(file, &mut parts, offset).map_err(io::Error::from)
            }
        };
        data.truncate(read.map_err(told)?);
        Ok(data)
    }

    fn write(&mut self, file: usize, way: Write, offset: u64, data: &[u8]) -> Result {
        match way {
            Write::Submitted(_) if data.is_empty() => Ok(()),
            Write::Submitted(parts) => self.companion.submit_write(file, parts, offset, data),
            Write::Mapped(bits) => self.companion.write(file, bits, offset, data),
            Write::Cached => self.cached(file)?.write_all_at(data, offset).map_err(told),
            Write::Direct => self.direct(file)?.write_all_at(data, offset).map_err(told),
            Write::Append => self.append(file)?.write_all(data).map_err(told),
            Write::Vectored(parts) => {
                let parts: Vec<_> = data
                    .chunks(data.len().div_ceil(parts).max(1))
                    .map(IoSlice::new)
                    .collect();
                let written = rustix::io::pwritev(self.cached(file)?, &parts, offset);
                match written.map_err(told)? {
                    written if written == data.len() => Ok(()),
                    written => Err(format!("{written} bytes written of {}", data.len())),
                }
            }
        }
    }

    fn copy(&mut self, from: (usize, u64), to: (usize, u64), length: u64) -> Result<u64> {
        self.cached(from.0)?;
        self.cached(to.0)?;
        let [source, target] = [from.0, to.0].map(|file| self.files[file].cached.as_ref());
        let (source, target) = (source.expect("just opened"), target.expect("just opened"));
        let (mut source_at, mut target_at) = (from.1, to.1);
        while source_at - from.1 < length {
            let rest = (length - (source_at - from.1)) as usize;
            let copied = rustix::fs::copy_file_range(
                source,
                Some(&mut source_at),
                target,
                Some(&mut target_at),
                rest,
            );
            if copied.map_err(told)? == 0 {
                break;
            }
        }
        Ok(source_at - from.1)
    }

    fn judge_size(&mut self, file: usize, model: &Model) -> Result {
        let size = self.cached(file)?.metadata().map_err(told)?.len();
        if size == model.size() {
            Ok(())
        } else {
            Err(format!("{size} bytes, not {}", model.size()))
        }
    }

    fn cached(&mut self, file: usize) -> Result<&File> {
        let Open { path, cached, .. } = &mut self.files[file];
        opened(path, cached, OFlags::empty())
    }

    fn direct(&mut self, file: usize) -> Result<&File> {
        let Open { path, direct, .. } = &mut self.files[file];
        opened(path, direct, OFlags::DIRECT)
    }

    fn append(&mut self, file: usize) -> Result<&File> {
        let Open { path, append, .. } = &mut self.files[file];
        opened(path, append, OFlags::APPEND)
    }
}

fn opened<'f>(path: &Path, file: &'f mut Option<File>, flags: OFlags) -> Result<&'f File> {
    if file.is_none() {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(flags.bits() as i32);
        *file = Some(options.open(path).map_err(told)?);
    }
    Ok(file.as_ref().expect("just opened"))
}

/// `st_blocks` of a closed file: its blocks and those of the extent tree.
fn judge_blocks(path: &Path, model: &Model) -> Result {
    let found = fs::metadata(path).map_err(told)?.blocks() * 512;
    let (least, most) = model.allocated();
    let extents = most / model.block_bytes();
    let index = (extents.div_ceil(EXTENTS_OF_INDEX_BLOCK) + 2) * model.block_bytes();
    if (least..=most + index).contains(&found) {
        Ok(())
    } else {
        Err(format!(
            "{} takes {found} bytes, not {least} to {most} and some for the tree",
            path.display()
        ))
    }
}

fn same_bytes(wanted: &[u8], found: &[u8], offset: u64) -> Result {
    if wanted == found {
        return Ok(());
    }
    if wanted.len() != found.len() {
        return Err(format!("{} bytes read, not {}", found.len(), wanted.len()));
    }
    let differs = |(wanted, found): (&u8, &u8)| wanted != found;
    let pairs = || wanted.iter().zip(found);
    let first = pairs().position(differs).expect("they differ");
    let last = pairs().rposition(differs).expect("they differ");
    Err(format!(
        "other bytes from {} to {}: {:02x?}, not {:02x?}",
        offset + first as u64,
        offset + last as u64,
        &found[first..found.len().min(first + 8)],
        &wanted[first..wanted.len().min(first + 8)]
    ))
}

fn told(error: impl Into<io::Error>) -> String {
    let error: io::Error = error.into();
    error.to_string()
}
