//! Hashes of names, by which the trees of directories are sorted.
//!
//! Three functions: the legacy one, half of MD4 (the default) and TEA, the Tiny Encryption
//! Algorithm by Wheeler and Needham, both run over the name in parts and beginning with the file
//! system's seed. Each takes the bytes of a name as signed or as unsigned, like the `char` of the
//! machine that made the file system; the superblock records which.
//!
//! The lowest bit of a hash is reserved: in a tree it marks that names with the hash continue in
//! the next block. The highest value stands for the end of a directory.

use extant_space::Error;

use crate::ext4::superblock::SuperblockFlags;
use crate::fault::unsupported;
use crate::narrow::fit32;

/// The function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashKind {
    /// The first one, weak.
    Legacy,
    /// Half of MD4.
    HalfMd4,
    /// TEA.
    Tea,
}

/// How bytes of a name become numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sign {
    /// 0x80 to 0xFF are negative.
    Signed,
    /// All are positive.
    Unsigned,
}

/// The function with its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashVersion {
    /// The function.
    pub kind: HashKind,
    /// The sign.
    pub sign: Sign,
}

/// Seed of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashSeed([u32; 4]);

/// The hash of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash {
    /// Sort key of the tree; even.
    pub major: u32,
    /// Sort key of names with the same major hash, as readers see them.
    pub minor: u32,
}

/// The major hash that no name has.
pub const HASH_END: u32 = 0xFFFF_FFFE;

impl HashKind {
    /// The number in the superblock and in the root of a tree. `None` for any other, among
    /// them SipHash, which needs a key from the user.
    pub fn from_raw(value: u8) -> Option<Self> {
        match value {
            0 => Some(Self::Legacy),
            1 => Some(Self::HalfMd4),
            2 => Some(Self::Tea),
            _ => None,
        }
    }

    /// The number on the disk.
    pub fn raw(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
        }
    }

    /// The function with the sign that the superblock notes.
    pub fn with_sign_of(self, flags: SuperblockFlags) -> HashVersion {
        let sign = if flags.contains(SuperblockFlags::UNSIGNED_HASH) {
            Sign::Unsigned
        } else {
            Sign::Signed
        };
        HashVersion { kind: self, sign }
    }
}

/// The refusal of a number in `field` that stands for no known function.
pub(in crate::ext4) fn unknown_hash(structure: &str, field: &str, value: u8) -> Error {
    const SIPHASH: u8 = 6;
    let name = if value == SIPHASH { " (siphash)" } else { "" };
    unsupported(structure, format_args!("{field} is {value}{name}"))
}

impl HashSeed {
    /// From `s_hash_seed`; all zeros stand for the numbers that MD4 begins with.
    pub fn new(words: [u32; 4]) -> Self {
        const OF_MD4: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];
        Self(if words == [0; 4] { OF_MD4 } else { words })
    }
}

/// The hash of `name`, which is not empty.
pub fn name_hash(name: &[u8], version: HashVersion, seed: HashSeed) -> NameHash {
    let mut state = seed.0;
    let (major, minor) = match version.kind {
        HashKind::Legacy => (legacy(name, version.sign), 0),
        HashKind::HalfMd4 => {
            for_each_piece::<8>(name, version.sign, |piece| half_md4(&mut state, piece));
            (state[1], state[2])
        }
        HashKind::Tea => {
            for_each_piece::<4>(name, version.sign, |piece| tea(&mut state, piece));
            (state[0], state[1])
        }
    };
    let major = match major & !1 {
        HASH_END => HASH_END - 2,
        major => major,
    };
    NameHash { major, minor }
}

fn number(byte: u8, sign: Sign) -> u32 {
    match sign {
        Sign::Signed => i32::from(byte.cast_signed()).cast_unsigned(),
        Sign::Unsigned => byte.into(),
    }
}

fn legacy(name: &[u8], sign: Sign) -> u32 {
    let (mut last, mut before) = (0x12A3_FE2D_u32, 0x37AB_E8F9_u32);
    for &byte in name {
        let mixed = last ^ number(byte, sign).wrapping_mul(7_152_373);
        let mut next = before.wrapping_add(mixed);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7FFF_FFFF);
        }
        (last, before) = (next, last);
    }
    last << 1
}

/// Divides a name into blocks of `WORDS` words, high byte first. The last block is padded: every
/// missing byte is the number of bytes left before it.
fn for_each_piece<const WORDS: usize>(
    name: &[u8],
    sign: Sign,
    mut take: impl FnMut(&[u32; WORDS]),
) {
    let mut rest = name;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(WORDS * 4));
        // Names are shorter than 256 bytes.
        let padding = fit32(rest.len()) * 0x0101_0101;
        let mut words = [padding; WORDS];
        for (word, bytes) in words.iter_mut().zip(piece.chunks(4)) {
            for &byte in bytes {
                // A negative number takes from the bytes above it.
                *word = (*word << 8).wrapping_add(number(byte, sign));
            }
        }
        take(&words);
        rest = after;
    }
}

/// Sixteen rounds of TEA, with the piece as key.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let [mut left, mut right, ..] = *state;
    let mut sum = 0_u32;
    let mix = |half: u32, sum: u32, one: u32, two: u32| {
        (half << 4).wrapping_add(one) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(two)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        left = left.wrapping_add(mix(right, sum, key[0], key[1]));
        right = right.wrapping_add(mix(left, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

/// The three rounds of MD4, each over 8 words instead of 16.
fn half_md4(state: &mut [u32; 4], piece: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    const ROUNDS: [(Mix, u32, [u32; 4], [usize; 8]); 3] = [
        (
            |x, y, z| z ^ (x & (y ^ z)),
            0,
            [3, 7, 11, 19],
            [0, 1, 2, 3, 4, 5, 6, 7],
        ),
        (
            |x, y, z| (x & y).wrapping_add((x ^ y) & z),
            0x5A82_7999,
            [3, 5, 9, 13],
            [1, 3, 5, 7, 0, 2, 4, 6],
        ),
        (
            |x, y, z| x ^ y ^ z,
            0x6ED9_EBA1,
            [3, 9, 11, 15],
            [3, 7, 2, 6, 1, 5, 0, 4],
        ),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, shifts, order) in ROUNDS {
        for (step, word) in order.into_iter().enumerate() {
            let sum = a
                .wrapping_add(mix(b, c, d))
                .wrapping_add(piece[word])
                .wrapping_add(constant);
            // The four rotate: the one changed now is the second of the next step.
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn major(name: &[u8], kind: HashKind, sign: Sign) -> u32 {
        let seed = HashSeed::new([0; 4]);
        name_hash(name, HashVersion { kind, sign }, seed).major
    }

    #[test]
    fn sign_matters_for_bytes_past_ascii_only() {
        for kind in [HashKind::Legacy, HashKind::HalfMd4, HashKind::Tea] {
            let differ =
                |name: &[u8]| major(name, kind, Sign::Signed) != major(name, kind, Sign::Unsigned);
            assert!(!differ(b"plain"), "{kind:?}");
            assert!(differ("gr\u{fc}n".as_bytes()), "{kind:?}");
        }
    }

    #[test]
    fn lowest_bit_is_free_and_the_end_has_no_owner() {
        for number in 0..2000_u32 {
            let name = number.to_string();
            for kind in [HashKind::Legacy, HashKind::HalfMd4, HashKind::Tea] {
                let hash = major(name.as_bytes(), kind, Sign::Signed);
                assert!(hash.is_multiple_of(2) && hash < HASH_END);
            }
        }
    }
}
