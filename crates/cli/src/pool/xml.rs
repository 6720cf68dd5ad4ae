//! Files of XML, as libvirt's tools write them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use extant_space::{Error, ErrorKind, Result};

use crate::signals::EndAtOnce;

/// The parser refuses more.
const BYTES_MAX: u64 = 1 << 20;

/// The text of a file, `-` for standard input.
pub fn read(path: &Path) -> Result<String> {
    let fail = |source| Error::from(source).at(path);
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(fail)?)
    };
    let _ends = EndAtOnce::new();
    let mut bytes = Vec::new();
    input
        .take(BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    String::from_utf8(bytes).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument)
            .at(path)
            .detail("XML: not UTF-8")
    })
}
