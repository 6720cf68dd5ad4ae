//! Report of a check.

use std::fmt;

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    /// Data may get lost.
    Corruption,
    /// Space is lost.
    Leak,
}

/// One error in the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its severity.
    pub kind: FindingKind,
    /// Description and location.
    pub detail: String,
}

/// Report of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Uses that no refcount covers, and entries that cannot be.
    pub corruptions: u64,
    /// Clusters that nothing uses and nothing can use.
    pub leaks: u64,
    /// Clusters of the guest's disk.
    pub total_clusters: u64,
    /// Allocated clusters.
    pub allocated_clusters: u64,
    /// Compressed clusters.
    pub compressed_clusters: u64,
    /// Clusters not contiguous with the one before in the same L2 table, and all compressed ones.
    pub fragmented_clusters: u64,
    /// End of the last cluster of the file that is in use or counted, as in QEMU.
    pub image_end_bytes: u64,
    /// The first findings.
    pub findings: Vec<Finding>,
    #[serde(skip)]
    findings_max: usize,
}

impl CheckReport {
    pub(super) fn new(findings_max: usize, total_clusters: u64) -> Self {
        Self {
            corruptions: 0,
            leaks: 0,
            total_clusters,
            allocated_clusters: 0,
            compressed_clusters: 0,
            fragmented_clusters: 0,
            image_end_bytes: 0,
            findings: Vec::new(),
            findings_max,
        }
    }

    /// Neither corruption nor leak.
    pub fn is_clean(&self) -> bool {
        self.corruptions == 0 && self.leaks == 0
    }

    pub(super) fn corrupt(&mut self, detail: impl fmt::Display) {
        self.corruptions += 1;
        self.find(FindingKind::Corruption, detail);
    }

    pub(super) fn leak(&mut self, detail: impl fmt::Display) {
        self.leaks += 1;
        self.find(FindingKind::Leak, detail);
    }

    fn find(&mut self, kind: FindingKind, detail: impl fmt::Display) {
        if self.findings.len() < self.findings_max {
            self.findings.push(Finding {
                kind,
                detail: detail.to_string(),
            });
        }
    }
}
