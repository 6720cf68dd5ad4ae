//! Reads and writes of a batch.
//!
//! Mapped clusters, and those that are mapped at once, are sent to the file as one batch. A cluster
//! that must be built from earlier contents is written separately (`rewrite.rs`), after that.

use extant_blockdev::{Device, Operation, Persistence, ReadBuffers, Request, WriteBuffers};
use extant_space::{ByteRange, Result};

use super::Qcow2;
use super::file::read_or_zero;
use super::mapped::{Source, WriteTarget};
use super::metadata::Metadata;
use super::plan::{DeviceRequests, ReadCursor, WriteCursor, first_error};
use crate::format::CompressedPlace;

/// A batch on its way.
#[derive(Default)]
struct Plan<'s> {
    parts: DeviceRequests<'s>,
    /// Reads beyond the end of a file that is open read-only.
    cut_off: Vec<(usize, u64, ReadBuffers<'s>)>,
    backing: DeviceRequests<'s>,
    /// Reads beyond the end of the backing file.
    past_backing: Vec<(usize, u64, ReadBuffers<'s>)>,
    compressed: Vec<(usize, CompressedPlace, u64, ReadBuffers<'s>)>,
    rewrites: Vec<(usize, ByteRange, WriteBuffers<'s>)>,
}

impl Qcow2 {
    /// Runs the reads and writes among `requests`; the others, and those that have failed, are left
    /// alone. Returns whether the durable ones among them are, without a flush.
    pub(super) fn transfer(
        &self,
        requests: &mut [Request<'_>],
        results: &mut [Result<()>],
    ) -> bool {
        let mut plan = Plan::default();
        let mut metadata = self.metadata();
        let epoch = metadata.epoch.clone();
        // A durable write whose entry is not durable yet waits for a commit anyway.
        let is_clean = metadata.is_clean();
        for (owner, request) in requests.iter_mut().enumerate() {
            if results[owner].is_err() {
                continue;
            }
            let planned = match &mut request.operation {
                Operation::Read { offset, into } => {
                    self.plan_read(&mut metadata, &mut plan, owner, *offset, into)
                }
                Operation::Write {
                    offset,
                    from,
                    persistence,
                } => {
                    let persistence = if is_clean {
                        *persistence
                    } else {
                        Persistence::Cached
                    };
                    self.plan_write(&mut metadata, &mut plan, owner, *offset, from, persistence)
                }
                _ => Ok(()),
            };
            if let Err(error) = planned {
                first_error(results, owner, error);
            }
        }
        drop(metadata);
        let Plan {
            parts,
            cut_off,
            backing,
            past_backing,
            compressed,
            rewrites,
        } = plan;
        parts.run(self.data_device(), &mut |owner, error| {
            first_error(results, owner, error)
        });
        for (owner, offset, into) in cut_off {
            if let Err(error) = read_parts(self.data_device(), offset, into) {
                first_error(results, owner, error);
            }
        }
        if let Some(behind) = &self.backing {
            backing.run(behind, &mut |owner, error| {
                first_error(results, owner, error)
            });
        }
        for (owner, offset, into) in past_backing {
            if let Err(error) = self.read_backing(offset, into) {
                first_error(results, owner, error);
            }
        }
        // Neighbours are often read together, and from one cluster.
        let mut expanded: Option<(CompressedPlace, Vec<u8>)> = None;
        for (owner, place, within, into) in compressed {
            if expanded.as_ref().is_none_or(|(there, _)| *there != place) {
                match self.expand(place) {
                    Ok(bytes) => expanded = Some((place, bytes)),
                    Err(error) => {
                        first_error(results, owner, error);
                        continue;
                    }
                }
            }
            let (_, bytes) = expanded.as_ref().expect("expanded now or before");
            let mut at = within as usize;
            for part in into {
                part.copy_from_slice(&bytes[at..at + part.len()]);
                at += part.len();
            }
        }
        drop(epoch);
        let is_written = rewrites.is_empty();
        for (owner, range, from) in rewrites {
            if results[owner].is_ok()
                && let Err(error) = self.rewrite(range, &from)
            {
                first_error(results, owner, error);
            }
        }
        // If the entries are durable by now, so is the data: it was written as such, or before the
        // commit began.
        is_written && is_clean && self.metadata().is_clean()
    }

    fn plan_read<'s>(
        &self,
        metadata: &mut Metadata,
        plan: &mut Plan<'s>,
        owner: usize,
        offset: u64,
        into: &'s mut ReadBuffers<'_>,
    ) -> Result<()> {
        let length: u64 = into.iter().map(|part| part.len() as u64).sum();
        let mut cursor = ReadCursor::new(into);
        let mut rest = ByteRange::new(offset, offset + length);
        while !rest.is_empty() {
            let (source, length) = self.find(metadata, rest)?;
            let at = rest.start();
            let into = cursor.take(length);
            match source {
                Source::Host(host) | Source::Shared(host) if self.ends_before(host + length) => {
                    plan.cut_off.push((owner, host, into));
                }
                Source::Host(host) | Source::Shared(host) => {
                    plan.parts.read(owner, host, length, into);
                }
                Source::Zero | Source::AllocatedZero(_) => fill(into),
                Source::Backing if at + length > self.behind().geometry().size => {
                    plan.past_backing.push((owner, at, into));
                }
                Source::Backing => plan.backing.read(owner, at, length, into),
                Source::Compressed(place) => {
                    plan.compressed.push((owner, place, self.within(at), into));
                }
            }
            rest = ByteRange::new(at + length, rest.end());
        }
        Ok(())
    }

    fn plan_write<'s>(
        &self,
        metadata: &mut Metadata,
        plan: &mut Plan<'s>,
        owner: usize,
        offset: u64,
        from: &'s [&'s [u8]],
        persistence: Persistence,
    ) -> Result<()> {
        let length: u64 = from.iter().map(|part| part.len() as u64).sum();
        let mut cursor = WriteCursor::new(from);
        let mut rest = ByteRange::new(offset, offset + length);
        while !rest.is_empty() {
            let (target, length) = self.find_target(metadata, rest)?;
            let range = ByteRange::new(rest.start(), rest.start() + length);
            let from = cursor.take(length);
            match target {
                WriteTarget::Host(host) => plan.parts.write(owner, host, length, from, persistence),
                WriteTarget::Rewrite => plan.rewrites.push((owner, range, from)),
            }
            rest = ByteRange::new(range.end(), rest.end());
        }
        Ok(())
    }

    /// Reads from the backing file; beyond its end, zeros.
    pub(super) fn read_backing(&self, offset: u64, into: ReadBuffers<'_>) -> Result<()> {
        let backing = self.backing.as_ref();
        read_parts(
            backing.expect("only with one there is such a source"),
            offset,
            into,
        )
    }

    /// Whether the file was truncated inside a cluster. A file open for writing was extended on
    /// opening.
    pub(super) fn ends_before(&self, end: u64) -> bool {
        !self.is_writable() && end > self.data_device().geometry().size
    }

    /// The bytes of a compressed cluster.
    pub(super) fn expand(&self, place: CompressedPlace) -> Result<Vec<u8>> {
        let block = u64::from(self.file.block_bytes());
        let start = place.offset & !(block - 1);
        let end = (place.offset + place.length_bytes).next_multiple_of(block);
        let mut data = vec![0; (end - start) as usize];
        self.file.read(start, &mut data)?;
        let mut cluster = vec![0; self.geometry.cluster_bytes() as usize];
        let data = &data[(place.offset - start) as usize..][..place.length_bytes as usize];
        crate::compressed::expand(self.compression, data, &mut cluster).map_err(|error| {
            error.in_range(ByteRange::new(
                place.offset,
                place.offset + place.length_bytes,
            ))
        })?;
        Ok(cluster)
    }
}

/// Reads existing bytes, and zeros past the end.
fn read_parts(device: &(impl Device + ?Sized), offset: u64, into: ReadBuffers<'_>) -> Result<()> {
    let mut at = offset;
    for part in into {
        read_or_zero(device, at, part)?;
        at += part.len() as u64;
    }
    Ok(())
}

fn fill(into: ReadBuffers<'_>) {
    for part in into {
        part.fill(0);
    }
}
