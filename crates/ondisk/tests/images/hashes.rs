//! Hashes of names against debugfs.

use extant_ondisk::ext4::directory::{HashKind, HashSeed, HashVersion, NameHash, Sign, name_hash};
use extant_testkit::require;

use crate::image::{Image, e2fsprogs};

const SEED: &str = "00112233-4455-6677-8899-aabbccddeeff";

#[test]
fn hashes_of_names_are_those_of_debugfs() {
    require!(e2fsprogs());
    let image = Image::empty(1);
    let mut names: Vec<String> = [1, 3, 4, 15, 16, 17, 31, 32, 33, 64, 100, 254, 255]
        .map(|length| "Aa0.-z_".chars().cycle().take(length).collect())
        .to_vec();
    names.extend(
        [
            "gr\u{fc}n",
            "\u{65e5}\u{672c}\u{8a9e}\u{2026}",
            "\u{ff}\u{fe}x",
        ]
        .map(String::from),
    );
    let kinds = [HashKind::Legacy, HashKind::HalfMd4, HashKind::Tea];
    let seeds = [
        ("", HashSeed::new([0; 4])),
        // A UUID's bytes, taken as words of the superblock.
        (
            SEED,
            HashSeed::new([0x3322_1100, 0x7766_5544, 0xBBAA_9988, 0xFFEE_DDCC]),
        ),
    ];
    let (mut script, mut expected) = (Vec::new(), Vec::new());
    for name in &names {
        for kind in kinds {
            for (sign, offset) in [(Sign::Signed, 0), (Sign::Unsigned, 3)] {
                for (text, seed) in &seeds {
                    let seed_option = match *text {
                        "" => String::new(),
                        text => format!("-s {text}"),
                    };
                    let number = kind.raw() + offset;
                    script.push(format!("dx_hash -h {number} {seed_option} {name}"));
                    let hash = name_hash(name.as_bytes(), HashVersion { kind, sign }, *seed);
                    expected.push((name, kind, sign, hash));
                }
            }
        }
    }
    std::fs::write(image.beside("script"), script.join("\n")).unwrap();
    let mut debugfs = extant_testkit::command::tool("debugfs");
    let answer = extant_testkit::command::text(debugfs.arg("-f").arg(image.beside("script")));
    let answer = answer.unwrap();
    let found = answer.lines().filter_map(parse).collect::<Vec<_>>();
    assert_eq!(found.len(), expected.len());
    for (found, (name, kind, sign, hash)) in found.iter().zip(expected) {
        assert_eq!(*found, hash, "{kind:?} {sign:?} of {name}");
    }
}

/// `Hash of NAME is 0x1 (minor 0x2)`
fn parse(line: &str) -> Option<NameHash> {
    let (_, numbers) = line.strip_prefix("Hash of ")?.rsplit_once(" is 0x")?;
    let (major, minor) = numbers.strip_suffix(')')?.split_once(" (minor 0x")?;
    Some(NameHash {
        major: u32::from_str_radix(major, 16).ok()?,
        minor: u32::from_str_radix(minor, 16).ok()?,
    })
}
