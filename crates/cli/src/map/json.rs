//! The map as one JSON document, written as it is read:
//!
//! ```json
//! {"schema_version":1,
//!  "files":[{"path","depth","format","size_bytes","devices":[...],"extents":[...],
//!            "summary":{...}}],
//!  "total":{...}}
//! ```
//!
//! A file whose map broke off has `"error"` in the place of `"summary"`. The document is valid
//! however the run ends, short of a failure to write it.

use std::io::{self, Write};

use extant_space::{Error, Extent, MapSummary};
use serde::Serialize;

use super::listing::{Listing, Mapped, Opened};
use crate::print;

/// Writes the document to `out`.
pub(super) struct Json<W> {
    out: W,
    has_files: bool,
    has_extents: bool,
}

impl<W: Write> Json<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            has_files: false,
            has_extents: false,
        }
    }

    fn open_document(&mut self) -> io::Result<()> {
        if !self.has_files {
            self.open_list()?;
            self.has_files = true;
        } else {
            self.out.write_all(b",")?;
        }
        Ok(())
    }

    fn open_list(&mut self) -> io::Result<()> {
        let version = print::SCHEMA_VERSION;
        write!(self.out, "{{\"schema_version\":{version},\"files\":[")
    }

    fn value(&mut self, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value).map_err(io::Error::from)
    }
}

impl<W: Write> Listing for Json<W> {
    fn begin(&mut self, file: &Opened) -> io::Result<()> {
        self.open_document()?;
        self.has_extents = false;
        self.out.write_all(b"\n{\"path\":")?;
        self.value(&file.path)?;
        write!(
            self.out,
            ",\"depth\":{},\"format\":\"{}\",\"size_bytes\":{}",
            file.depth, file.format, file.size_bytes
        )?;
        if !file.devices.is_empty() {
            self.out.write_all(b",\"devices\":")?;
            self.value(&file.devices)?;
        }
        self.out.write_all(b",\"extents\":[")
    }

    fn extent(&mut self, extent: &Extent, _fragment: u64) -> io::Result<()> {
        let separator: &[u8] = if self.has_extents { b",\n " } else { b"\n " };
        self.has_extents = true;
        self.out.write_all(separator)?;
        self.value(extent)
    }

    fn end(&mut self, file: &Mapped) -> io::Result<()> {
        self.out.write_all(b"],\n \"summary\":")?;
        self.value(&file.summary)?;
        self.out.write_all(b"}")
    }

    fn fail(&mut self, error: &Error) -> io::Result<()> {
        self.out.write_all(b"],\n \"error\":")?;
        self.value(&error.to_string())?;
        self.out.write_all(b"}")
    }

    fn finish(&mut self, total: &MapSummary, _files: u64, _errors: u64) -> io::Result<()> {
        if !self.has_files {
            self.open_list()?;
        }
        self.out.write_all(b"],\n\"total\":")?;
        self.value(total)?;
        self.out.write_all(b"}\n")?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use extant_image::Format;
    use extant_space::ErrorKind;
    use serde_json::Value;

    use super::*;
    use crate::map::samples;

    fn document(write: impl FnOnce(&mut Json<&mut Vec<u8>>)) -> Value {
        let mut out = Vec::new();
        write(&mut Json::new(&mut out));
        serde_json::from_slice(&out).unwrap_or_else(|error| {
            panic!("{error} in {}", String::from_utf8_lossy(&out));
        })
    }

    #[test]
    fn document_of_no_files_is_valid() {
        let found = document(|json| json.finish(&MapSummary::default(), 0, 0).unwrap());
        assert_eq!(found["schema_version"], print::SCHEMA_VERSION);
        assert_eq!(found["files"], Value::Array(Vec::new()));
        assert_eq!(found["total"]["extents"], 0);
        assert_eq!(found["total"]["fragmentation_score"], Value::Null);
    }

    #[test]
    fn files_have_extents_and_summary_and_names_are_escaped() {
        let found = document(|json| {
            for name in ["a", "b\"\n"] {
                let opened = Opened::new(Path::new(name), Format::Raw, 64 << 20);
                samples::list(json, opened, &samples::four_states(), 1);
            }
            json.finish(&MapSummary::default(), 2, 0).unwrap();
        });
        assert_eq!(found["files"][1]["path"], "b\"\n");
        assert_eq!(found["files"][0]["size_bytes"], 64 << 20);
        let extents = found["files"][0]["extents"].as_array().unwrap();
        assert_eq!(extents.len(), 4);
        assert_eq!(extents[1]["flags"][0], "shared");
        assert_eq!(extents[1]["state"], "written");
        assert_eq!(found["files"][0]["summary"]["hole_bytes"], 16 << 20);
    }

    #[test]
    fn map_that_broke_off_leaves_a_valid_document() {
        let found = document(|json| {
            let opened = Opened::new(Path::new("a"), Format::Raw, 4096);
            json.begin(&opened).unwrap();
            json.extent(&samples::four_states()[0], 1).unwrap();
            json.fail(&Error::new(ErrorKind::Io).at("a")).unwrap();
            json.finish(&MapSummary::default(), 0, 0).unwrap();
        });
        assert_eq!(found["files"][0]["error"], "a: input/output error");
    }
}
