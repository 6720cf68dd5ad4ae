//! Compressed clusters: read, and never made.

use std::io::Read;

use extant_space::{Error, ErrorKind, Result};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

use crate::format::Compression;

/// Fills `cluster` from compressed data, which may end before `data` does.
pub(crate) fn expand(compression: Compression, data: &[u8], cluster: &mut [u8]) -> Result<()> {
    let is_whole = match compression {
        Compression::Zlib => inflate(data, cluster),
        Compression::Zstd => ruzstd::decoding::StreamingDecoder::new(data)
            .is_ok_and(|mut decoder| decoder.read_exact(cluster).is_ok()),
    };
    if is_whole {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::Corrupt).detail(format!(
            "qcow2 compressed cluster: no {} data of a whole cluster",
            compression.name()
        )))
    }
}

fn inflate(data: &[u8], cluster: &mut [u8]) -> bool {
    let mut state = Box::<DecompressorOxide>::default();
    let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, _, written) = decompress(&mut state, data, cluster, 0, flags);
    // The stream may be longer than a cluster; the rest is ignored.
    matches!(status, TINFLStatus::Done | TINFLStatus::HasMoreOutput) && written == cluster.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_and_short_streams_are_corrupt() {
        let stream = miniz_oxide::deflate::compress_to_vec(&[7; 4096], 6);
        let mut cluster = [0; 4096];
        expand(Compression::Zlib, &stream, &mut cluster).unwrap();
        assert_eq!(cluster, [7; 4096]);
        for (data, bytes) in [
            (&stream[..], 8192),
            (&stream[..4], 4096),
            (&[0xff; 64], 4096),
            (&[], 512),
        ] {
            for compression in [Compression::Zlib, Compression::Zstd] {
                let error = expand(compression, data, &mut vec![0; bytes]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
        }
    }
}
