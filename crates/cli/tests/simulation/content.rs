//! The content that a volume may have: for each sector the durable version and later ones.

use extant_blockdev::Device;

pub const SECTOR: u64 = 512;

/// Each sector is filled with one byte.
#[derive(Clone)]
pub struct Content {
    /// The durable version, then later ones in order.
    sectors: Vec<Vec<u8>>,
    /// A change has failed: what was written last may not be the content.
    is_unsure: bool,
}

impl Content {
    /// Zeros.
    pub fn new(bytes: u64) -> Self {
        Self {
            sectors: vec![vec![0]; (bytes / SECTOR) as usize],
            is_unsure: false,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR
    }

    /// Whether all reads are determined.
    pub fn is_known(&self) -> bool {
        !self.is_unsure
    }

    /// A change of a range is on its way.
    pub fn change(&mut self, start: u64, bytes: u64, value: u8) {
        for sector in self.range(start, bytes) {
            sector.push(value);
        }
    }

    /// The last change of a range is durable.
    pub fn settle(&mut self, start: u64, bytes: u64) {
        for sector in self.range(start, bytes) {
            sector.drain(..sector.len() - 1);
        }
    }

    /// A change has failed.
    pub fn fail(&mut self) {
        self.is_unsure = true;
    }

    /// Everything written is durable.
    pub fn flush(&mut self) {
        if !self.is_unsure {
            self.settle(0, self.bytes());
        }
    }

    /// The size is now this; a new part is zeros.
    pub fn resize(&mut self, bytes: u64) {
        self.sectors.resize((bytes / SECTOR) as usize, vec![0]);
    }

    fn range(&mut self, start: u64, bytes: u64) -> &mut [Vec<u8>] {
        &mut self.sectors[(start / SECTOR) as usize..((start + bytes) / SECTOR) as usize]
    }

    /// Reads a range, which must be as the last changes made it, or if they may be lost, or have
    /// failed, as one of the versions.
    pub fn compare(
        &self,
        device: &dyn Device,
        start: u64,
        bytes: u64,
        may_be_lost: bool,
    ) -> Result<(), String> {
        let mut data = vec![0xEE; bytes as usize];
        device
            .read_at(&mut data, start)
            .map_err(|error| format!("read: {error}"))?;
        let first = (start / SECTOR) as usize;
        for (number, seen) in (first..).zip(data.chunks(SECTOR as usize)) {
            let versions = &self.sectors[number];
            let allowed = if may_be_lost || self.is_unsure {
                &versions[..]
            } else {
                &versions[versions.len() - 1..]
            };
            let is_allowed = allowed
                .iter()
                .any(|version| seen.iter().all(|byte| byte == version));
            if !is_allowed {
                return Err(format!(
                    "sector {number} holds {:?}.., of {versions:?} it may be {allowed:?}",
                    &seen[..4]
                ));
            }
        }
        Ok(())
    }

    /// The content read now is durable: after a restart of the disk.
    pub fn adopt(&mut self, device: &dyn Device) -> Result<(), String> {
        let mut data = vec![0; self.bytes() as usize];
        device
            .read_at(&mut data, 0)
            .map_err(|error| format!("read: {error}"))?;
        for (sector, seen) in self.sectors.iter_mut().zip(data.chunks(SECTOR as usize)) {
            *sector = vec![seen[0]];
        }
        self.is_unsure = false;
        Ok(())
    }
}
