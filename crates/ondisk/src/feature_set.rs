//! A set of features: bits of one word, under the names that e2fsprogs prints.
//!
//! A bit without a name is kept, and named by its place.

macro_rules! feature_set {
    ($($(#[$attribute:meta])* $name:ident $letter:literal { $($flag:ident = $bit:literal, $text:literal;)* })+) => {$(
        bitflags::bitflags! {
            $(#[$attribute])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
            pub struct $name: u32 {
                $(
                    #[doc = concat!("`", $text, "`")]
                    const $flag = $bit;
                )*
                // Unknown bits are kept and named.
                const _ = !0;
            }
        }

        impl $name {
            /// The names of the features, `FEATURE_X31` for a bit without one.
            pub fn names(self) -> impl Iterator<Item = String> {
                const NAMES: &[($name, &str)] = &[$(($name::$flag, $text)),*];
                (0..u32::BITS)
                    .map(|bit| (bit, Self::from_bits_retain(1 << bit)))
                    .filter(move |&(_, flag)| self.contains(flag))
                    .map(|(bit, flag)| match NAMES.iter().find(|&&(known, _)| known == flag) {
                        Some(&(_, name)) => name.to_owned(),
                        None => format!("FEATURE_{}{bit}", $letter),
                    })
            }
        }
    )+};
}

pub(crate) use feature_set;
