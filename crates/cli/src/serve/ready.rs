//! The server's ready message, with its addresses.

use std::path::Path;

use extant_blockdev::Device;
use extant_export::{Access, Address, Scheme};
use extant_ublk::Disk;
use serde::Serialize;

use super::vhost::Disks;
use crate::print;
use crate::source::{Aio, Source};

#[derive(Debug, Serialize)]
pub(super) struct Ready {
    event: &'static str,
    pid: u32,
    exports: Vec<ReadyExport>,
}

#[derive(Debug, Serialize)]
struct ReadyExport {
    name: String,
    path: String,
    capacity_bytes: u64,
    access: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    aio: Option<Aio>,
    uris: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vhost_user: Option<String>,
    /// The disk of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
}

impl Ready {
    pub(super) fn of(
        sources: &[Source],
        access: Access,
        addresses: &[Address],
        scheme: Scheme,
        disks: &Disks,
    ) -> Self {
        let exports = sources.iter().enumerate().map(|(at, source)| ReadyExport {
            uris: addresses
                .iter()
                .map(|address| address.uri(&source.name, scheme))
                .collect(),
            vhost_user: disks.path(at).map(text),
            ..ReadyExport::of(source, access)
        });
        Self::new(exports)
    }

    pub(super) fn of_disks(sources: &[Source], access: Access, disks: &[Disk]) -> Self {
        let exports = sources.iter().zip(disks);
        Self::new(exports.map(|(source, disk)| ReadyExport {
            device: Some(text(&disk.path())),
            ..ReadyExport::of(source, access)
        }))
    }

    fn new(exports: impl Iterator<Item = ReadyExport>) -> Self {
        Self {
            event: "serving",
            pid: std::process::id(),
            exports: exports.collect(),
        }
    }

    /// On one line.
    pub(super) fn json(&self) -> String {
        print::json_line(self)
    }

    /// A line for each URI, each vhost-user socket and each disk.
    pub(super) fn lines(&self) -> String {
        let lines = self.exports.iter().flat_map(|export| {
            let uris = export.uris.iter().chain(&export.vhost_user);
            uris.chain(&export.device).map(String::as_str)
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl ReadyExport {
    fn of(source: &Source, access: Access) -> Self {
        Self {
            name: source.name.clone(),
            path: text(&source.path),
            capacity_bytes: source.device.geometry().size,
            access: access.name(),
            aio: source.aio,
            uris: Vec::new(),
            vhost_user: None,
            device: None,
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
