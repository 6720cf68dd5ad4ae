//! Compressed clusters: read, and never made.
//!
//! Both decoders write into the cluster alone, whatever the data declares: memory is bounded by the
//! cluster and a state of fixed size.

use extant_space::{Error, ErrorKind, Result};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};
use zstd_safe::{DCtx, find_frame_compressed_size};

use crate::format::Compression;

/// Fills `cluster` from compressed data, which may end before `data` does.
pub(crate) fn expand(compression: Compression, data: &[u8], cluster: &mut [u8]) -> Result<()> {
    let is_whole = match compression {
        Compression::Zlib => inflate(data, cluster),
        Compression::Zstd => decode_frames(data, cluster),
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

/// Decodes frames until the cluster is full, which has to be the end of a frame, as in QEMU.
fn decode_frames(mut data: &[u8], mut cluster: &mut [u8]) -> bool {
    let Some(mut context) = DCtx::try_create() else {
        return false;
    };
    while !cluster.is_empty() {
        // Data behind the last frame, up to the end of its unit, is ignored.
        let Ok(frame_bytes) = find_frame_compressed_size(data) else {
            return false;
        };
        let (frame, rest) = data.split_at(frame_bytes);
        let Ok(written) = context.decompress(cluster, frame) else {
            return false;
        };
        data = rest;
        cluster = &mut cluster[written..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_BYTES_MAX: usize = 128 << 10;

    /// A frame of blocks that repeat a byte. It declares its length, or a window of 2 MiB.
    fn frame(declared: Option<u64>, blocks: &[(u8, usize)]) -> Vec<u8> {
        let mut bytes = 0xfd2f_b528_u32.to_le_bytes().to_vec();
        match declared {
            Some(length) => {
                bytes.push(0xe0);
                bytes.extend(length.to_le_bytes());
            }
            None => bytes.extend([0, 11 << 3]),
        }
        for (number, (byte, length)) in blocks.iter().enumerate() {
            let is_last = number + 1 == blocks.len();
            let header = (*length as u32) << 3 | 1 << 1 | u32::from(is_last);
            bytes.extend(&header.to_le_bytes()[..3]);
            bytes.push(*byte);
        }
        bytes
    }

    fn peak_memory_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.unwrap().trim().trim_end_matches(" kB");
        kib.parse::<usize>().unwrap() << 10
    }

    #[test]
    fn zstd_frames_follow_each_other_up_to_the_end_of_the_cluster() {
        let mut data = frame(None, &[(1, 1000), (2, 24)]);
        // Frames without contents, one of which is skippable.
        data.extend(frame(None, &[(9, 0)]));
        data.extend([0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 0xff, 0xff]);
        data.extend(frame(Some(3072), &[(3, 3072)]));
        data.extend([0xff; 100]);
        let mut cluster = [0; 4096];
        expand(Compression::Zstd, &data, &mut cluster).unwrap();
        assert!(cluster[..1000].iter().all(|byte| *byte == 1));
        assert!(cluster[1000..1024].iter().all(|byte| *byte == 2));
        assert!(cluster[1024..].iter().all(|byte| *byte == 3));
        let longer = frame(None, &[(1, 4097)]);
        expand(Compression::Zstd, &longer, &mut cluster).unwrap_err();
    }

    #[test]
    fn zstd_frame_that_expands_to_much_more_than_a_cluster_is_corrupt_in_little_memory() {
        let before = peak_memory_bytes();
        let blocks = vec![(0, BLOCK_BYTES_MAX); 4096];
        for declared in [Some(1 << 62), Some(2 << 20), None] {
            let bomb = frame(declared, &blocks);
            let error = expand(Compression::Zstd, &bomb, &mut vec![0; 2 << 20]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        let taken = peak_memory_bytes() - before;
        assert!(taken < 128 << 20, "{taken} bytes for a cluster of 2 MiB");
    }

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
