//! The server's ready message, with its addresses.

use extant_blockdev::Device;
use extant_export::{Access, Address, Scheme};
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
    size_bytes: u64,
    access: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    aio: Option<Aio>,
    uris: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vhost_user: Option<String>,
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
            name: source.name.clone(),
            path: source.path.to_string_lossy().into_owned(),
            size_bytes: source.device.geometry().size,
            access: match access {
                Access::ReadOnly => "read-only",
                Access::ReadWrite => "read-write",
            },
            aio: source.aio,
            uris: addresses
                .iter()
                .map(|address| address.uri(&source.name, scheme))
                .collect(),
            vhost_user: disks
                .path(at)
                .map(|path| path.to_string_lossy().into_owned()),
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

    /// A line for each URI and each vhost-user socket.
    pub(super) fn uris(&self) -> String {
        let uris: Vec<_> = self
            .exports
            .iter()
            .flat_map(|export| export.uris.iter().chain(&export.vhost_user))
            .map(String::as_str)
            .collect();
        uris.join("\n")
    }
}
