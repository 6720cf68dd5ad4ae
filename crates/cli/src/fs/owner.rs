//! Owners: numbers, as names are those of this machine and the image has its own.

use std::str::FromStr;

/// A user and a group; `None` leaves it unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl FromStr for Owner {
    type Err = String;

    /// `UID`, `UID:GID`, `UID:`, `:GID`.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| match part {
            "" => Ok(None),
            "root" => Ok(Some(0)),
            part => part.parse().map(Some).map_err(|_| {
                format!(
                    "'{text}' is not an owner: numbers as UID:GID (names are those of this machine)"
                )
            }),
        };
        let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
        let owner = Self {
            uid: number(uid)?,
            gid: number(gid)?,
        };
        match owner {
            Self {
                uid: None,
                gid: None,
            } => Err("neither user nor group".to_owned()),
            owner => Ok(owner),
        }
    }
}

/// Owner of the copied files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOwner {
    /// The owner of the source.
    Source,
    /// This.
    Fixed { uid: u32, gid: u32 },
}

impl FromStr for CopyOwner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "host" {
            return Ok(Self::Source);
        }
        let owner: Owner = text.parse()?;
        Ok(Self::Fixed {
            uid: owner.uid.unwrap_or(0),
            gid: owner.gid.unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_in_halves() {
        let owner = |uid, gid| Ok(Owner { uid, gid });
        assert_eq!("5".parse(), owner(Some(5), None));
        assert_eq!("5:7".parse(), owner(Some(5), Some(7)));
        assert_eq!(":7".parse(), owner(None, Some(7)));
        assert_eq!("root:root".parse(), owner(Some(0), Some(0)));
        for text in ["", ":", "joe", "5:x", "-1"] {
            assert!(text.parse::<Owner>().is_err(), "{text}");
        }
    }
}
