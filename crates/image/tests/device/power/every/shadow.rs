//! The contents that a disk may have after a power cut.
//!
//! Model: each sector has its durable version and those written since; a cut leaves any of them.
//! A flush leaves the last one alone.

use extant_blockdev::Persistence;

use super::super::SECTOR;

pub type Sector = [u8; SECTOR as usize];

const ZEROS: Sector = [0; SECTOR as usize];

#[derive(Clone)]
pub struct Shadow {
    /// Possible numbers of sectors, the present one last.
    lengths: Vec<usize>,
    /// Possible versions of each sector, the present one last.
    sectors: Vec<Vec<Sector>>,
}

fn sectors_of(bytes: &[u8]) -> impl Iterator<Item = Sector> {
    let whole = |sector: &[u8]| sector.try_into().expect("whole sectors");
    bytes.chunks(SECTOR as usize).map(whole)
}

impl Shadow {
    /// A durable disk.
    pub fn of(disk: &[u8]) -> Self {
        let sectors: Vec<_> = sectors_of(disk).map(|sector| vec![sector]).collect();
        Self {
            lengths: vec![sectors.len()],
            sectors,
        }
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        *self.lengths.last().expect("one") as u64 * SECTOR
    }

    fn present(&mut self, start: u64) -> impl Iterator<Item = &mut Vec<Sector>> {
        let length = *self.lengths.last().expect("one");
        let first = (start / SECTOR) as usize;
        self.sectors[..length].iter_mut().skip(first)
    }

    pub fn write(&mut self, start: u64, data: &[u8], persistence: Persistence) {
        for (versions, sector) in self.present(start).zip(sectors_of(data)) {
            if persistence == Persistence::Fua {
                versions.clear();
            }
            versions.push(sector);
        }
    }

    /// The range may be zeros from now on; it reads as `found`.
    pub fn discard(&mut self, start: u64, found: &[u8]) {
        for (versions, sector) in self.present(start).zip(sectors_of(found)) {
            versions.push(ZEROS);
            versions.push(sector);
        }
    }

    pub fn flush(&mut self) {
        let length = *self.lengths.last().expect("one");
        self.lengths = vec![length];
        self.sectors.truncate(length);
        for versions in &mut self.sectors {
            let last = *versions.last().expect("one");
            *versions = vec![last];
        }
    }

    /// The disk is flushed and gets another size; `flush` ends that.
    pub fn resize(&mut self, bytes: u64) {
        self.flush();
        let length = (bytes / SECTOR) as usize;
        let old = self.lengths[0];
        self.lengths.push(length);
        // Space behind the new end may be freed before the end moves.
        for versions in self.sectors.iter_mut().skip(length) {
            versions.push(ZEROS);
        }
        self.sectors.resize(old.max(length), vec![ZEROS]);
    }

    /// The difference to what the disk reads as now.
    pub fn differs(&self, found: &[u8]) -> Option<usize> {
        let now = |(versions, sector): (&Vec<Sector>, Sector)| versions.last() != Some(&sector);
        let mut both = self.sectors.iter().zip(sectors_of(found));
        both.position(now)
    }

    /// Why a cut cannot leave `found` while a step goes from this one to `next`.
    pub fn explain(&self, next: Option<&Self>, found: &[u8]) -> Result<(), String> {
        let both = || [Some(self), next].into_iter().flatten();
        let length = found.len() / SECTOR as usize;
        if !both().any(|shadow| shadow.lengths.contains(&length)) {
            return Err(format!("{length} sectors"));
        }
        for (number, sector) in sectors_of(found).enumerate() {
            let is_known = |shadow: &Self| {
                let versions = shadow.sectors.get(number);
                versions.is_some_and(|versions| versions.contains(&sector))
            };
            if !both().any(is_known) {
                return Err(format!("sector {number}: {:02x?}..", &sector[..16]));
            }
        }
        Ok(())
    }
}
