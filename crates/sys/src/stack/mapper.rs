//! Devices of the device mapper whose places never change: linear and striped, as thick logical
//! volumes of LVM are.
//!
//! Format: Documentation/admin-guide/device-mapper/{linear,striped}.rst.

use extant_space::ByteRange;

use super::SECTOR_BYTES;
use super::segment::{Layout, Segment};
use crate::device_mapper::Target;

/// Segments over members, which are known by their device numbers.
pub(super) type Table = (Vec<Segment>, Vec<u64>);

/// The segments of a table.
///
/// # Errors
/// The reason why a target has no places that stay.
pub(super) fn segments(targets: &[Target]) -> Result<Table, String> {
    let mut members = Vec::new();
    let segments = targets.iter().map(|target| segment(target, &mut members));
    Ok((segments.collect::<Result<_, _>>()?, members))
}

/// The types of the targets, each once.
pub(super) fn kinds(targets: &[Target]) -> Vec<String> {
    let mut kinds: Vec<String> = targets.iter().map(|target| target.kind.clone()).collect();
    kinds.dedup();
    kinds
}

fn segment(target: &Target, members: &mut Vec<u64>) -> Result<Segment, String> {
    let broken = || {
        format!(
            "has a table that is not understood: {} {}",
            target.kind, target.parameters
        )
    };
    let length = bytes(target.length_sectors);
    let range = bytes(target.start_sectors)
        .zip(length)
        .and_then(|(start, length)| ByteRange::at(start, length))
        .ok_or_else(broken)?;
    let mut words = target.parameters.split_ascii_whitespace();
    let (layout, count) = match &*target.kind {
        "linear" => (Layout::Copies, 1),
        "striped" => {
            let mut number = || words.next()?.parse::<u64>().ok();
            let (count, chunk) = number().zip(number()).ok_or_else(broken)?;
            let chunk_bytes = bytes(chunk).filter(|&chunk| chunk > 0).ok_or_else(broken)?;
            (Layout::Stripes { chunk_bytes }, count)
        }
        "crypt" => {
            return Err(
                "is encrypted by the device mapper (target crypt): zeros written above \
                        are not zeros below"
                    .to_owned(),
            );
        }
        kind => {
            return Err(format!(
                "is made by the device mapper with target {kind}, whose places may change"
            ));
        }
    };
    let mut starts = Vec::new();
    for _ in 0..count {
        let start = start(&mut words).ok_or_else(broken)?;
        let known = members.iter().position(|member| *member == start.0);
        let member = known.unwrap_or_else(|| {
            members.push(start.0);
            members.len() - 1
        });
        starts.push((member, start.1));
    }
    if starts.is_empty() || words.next().is_some() {
        return Err(broken());
    }
    Ok(Segment {
        range,
        layout,
        starts,
    })
}

/// A device and its first byte: `8:0 2048`.
fn start<'t>(words: &mut impl Iterator<Item = &'t str>) -> Option<(u64, u64)> {
    let (major, minor) = words.next()?.split_once(':')?;
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    Some((device, bytes(words.next()?.parse().ok()?)?))
}

fn bytes(sectors: u64) -> Option<u64> {
    sectors.checked_mul(SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    /// Of `dmsetup table`.
    fn table(lines: &str) -> Vec<Target> {
        let lines = lines.lines().map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut number = || words.next().unwrap().parse().unwrap();
            Target {
                start_sectors: number(),
                length_sectors: number(),
                kind: words.next().unwrap().to_owned(),
                parameters: words.next().unwrap_or_default().to_owned(),
            }
        });
        lines.collect()
    }

    #[test]
    fn logical_volume_in_two_pieces_of_one_disk_and_one_of_another() {
        let lvm = "0 8192 linear 8:3 2048\n8192 4096 linear 8:3 20480\n12288 8 linear 259:1 384";
        let (segments, members) = segments(&table(lvm)).unwrap();
        assert_eq!(members, [makedev(8, 3), makedev(259, 1)]);
        let found: Vec<_> = segments
            .iter()
            .map(|segment| (segment.range.start() >> 9, segment.starts[0]))
            .collect();
        let wanted = [
            (0, (0, 2048 << 9)),
            (8192, (0, 20_480 << 9)),
            (12_288, (1, 384 << 9)),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn stripes_have_a_chunk_and_a_start_on_each_member() {
        let (segments, members) = segments(&table("0 65536 striped 2 128 7:0 0 7:1 2048")).unwrap();
        let chunk_bytes = 64 << 10;
        assert_eq!(segments[0].layout, Layout::Stripes { chunk_bytes });
        assert_eq!(segments[0].starts, [(0, 0), (1, 1 << 20)]);
        assert_eq!(members.len(), 2);
    }

    #[test]
    fn other_targets_are_refused_by_name() {
        let crypt = "0 8 crypt aes-xts-plain64 :64:logon:cryptsetup:x 0 8:3 32768";
        let thin = "0 8 linear 8:3 0\n8 16 thin 254:2 1";
        for (lines, name) in [
            (crypt, "crypt"),
            (thin, "thin"),
            ("0 8 cache 254:1", "cache"),
        ] {
            let reason = segments(&table(lines)).unwrap_err();
            assert!(reason.contains(&format!("target {name}")), "{reason}");
        }
    }

    #[test]
    fn table_that_makes_no_sense_is_refused() {
        for line in [
            "0 8 linear",
            "0 8 linear sda 0",
            "0 8 linear 8:3 0 0",
            "0 8 linear 8:3 -1",
            "0 8 striped 2 128 7:0 0",
            "0 8 striped 0 128",
            "0 8 striped 1 0 7:0 0",
            "36028797018963968 8 linear 8:3 0",
        ] {
            let reason = segments(&table(line)).unwrap_err();
            assert!(reason.contains("not understood"), "{line}: {reason}");
        }
    }
}
