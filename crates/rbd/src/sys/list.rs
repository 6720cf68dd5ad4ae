//! Lists of unknown length, as calls fill them.

use std::ffi::c_int;

use extant_space::Result;

use super::text::check;

/// The entries that `call` sets. It receives the place of the first and that of their number, at
/// first how many there is room for; it answers `ERANGE` with the number that it needs.
pub(super) fn filled<T: Clone>(
    empty: &T,
    mut room: usize,
    mut call: impl FnMut(*mut T, *mut usize) -> c_int,
) -> Result<Vec<T>> {
    loop {
        let mut entries = vec![empty.clone(); room];
        let mut count = room;
        let code = call(entries.as_mut_ptr(), &raw mut count);
        if code == -libc::ERANGE {
            room = count.max(room + 1);
            continue;
        }
        check(code)?;
        entries.truncate(count);
        return Ok(entries);
    }
}
