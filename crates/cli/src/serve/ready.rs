//! The server's ready message, with its addresses.

use extant_blockdev::Device;
use extant_export::{Access, Address, Scheme};
use serde::Serialize;

use super::Aio;
use super::source::Source;
use crate::print;

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
    size_bytes: u64,
    access: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    aio: Option<Aio>,
    uris: Vec<String>,
}

impl Ready {
    pub(super) fn of(sources: &[Source], addresses: &[Address], scheme: Scheme) -> Self {
        let exports = sources.iter().map(|source| ReadyExport {
            name: source.name.clone(),
            path: source.path.to_string_lossy().into_owned(),
            size_bytes: source.device.geometry().size,
            access: match source.access {
                Access::ReadOnly => "read-only",
                Access::ReadWrite => "read-write",
            },
            aio: source.aio,
            uris: addresses
                .iter()
                .map(|address| address.uri(&source.name, scheme))
                .collect(),
        });
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

    /// A line for each URI.
    pub(super) fn uris(&self) -> String {
        let uris: Vec<_> = self
            .exports
            .iter()
            .flat_map(|export| export.uris.iter().map(String::as_str))
            .collect();
        uris.join("\n")
    }
}
