//! Mapping of owners between programs and the image.
//!
//! A user who builds an image without being root owns the files outside, and root owns them in the
//! image. The map exchanges two ids, so it is a bijection and loses nothing.

/// An exchange of two numbers; the others are unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    /// The other side's number for 0.
    root: u32,
}

/// The maps of users and groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The map of users.
    pub users: IdMap,
    /// The map of groups.
    pub groups: IdMap,
}

impl IdMap {
    /// Exchanges root in the image and `id` for programs. 0 changes nothing.
    pub fn root_as(id: u32) -> Self {
        Self { root: id }
    }

    /// The other side's number, in either direction.
    pub fn other(self, id: u32) -> u32 {
        match id {
            0 => self.root,
            id if id == self.root => 0,
            id => id,
        }
    }

    fn is_plain(self) -> bool {
        self.root == 0
    }
}

const USER: u16 = 0x02;
const GROUP: u16 = 0x08;

impl Owners {
    /// Exchanges the numbers in an access control list, as programs see them: 4 bytes of version,
    /// then entries of a tag and permissions with 2 bytes each, and a number.
    pub(super) fn exchange_in_list(self, list: &mut [u8]) {
        if self.users.is_plain() && self.groups.is_plain() {
            return;
        }
        let Some((_, entries)) = list.split_first_chunk_mut::<4>() else {
            return;
        };
        for entry in entries.as_chunks_mut::<8>().0 {
            let map = match u16::from_le_bytes([entry[0], entry[1]]) {
                USER => self.users,
                GROUP => self.groups,
                _ => continue,
            };
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&map.other(id).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_is_its_own_reverse_and_touches_two_numbers_only() {
        let map = IdMap::root_as(1000);
        assert_eq!((map.other(0), map.other(1000)), (1000, 0));
        for id in [0, 1, 999, 1000, 1001, u32::MAX] {
            assert_eq!(map.other(map.other(id)), id);
        }
        assert_eq!(map.other(5), 5);
        assert_eq!(IdMap::default().other(0), 0);
    }

    #[test]
    fn list_has_named_users_and_groups_exchanged() {
        let owners = Owners {
            users: IdMap::root_as(1000),
            groups: IdMap::root_as(50),
        };
        let entry = |tag: u16, id: u32| {
            let mut bytes = tag.to_le_bytes().to_vec();
            bytes.extend([7, 0]);
            bytes.extend(id.to_le_bytes());
            bytes
        };
        let list = |entries: [(u16, u32); 4]| {
            let mut bytes = 2u32.to_le_bytes().to_vec();
            bytes.extend(entries.iter().flat_map(|&(tag, id)| entry(tag, id)));
            bytes
        };
        let mut bytes = list([(0x01, u32::MAX), (USER, 1000), (GROUP, 0), (GROUP, 1000)]);
        owners.exchange_in_list(&mut bytes);
        let expected = list([(0x01, u32::MAX), (USER, 0), (GROUP, 50), (GROUP, 1000)]);
        assert_eq!(bytes, expected);
    }
}
