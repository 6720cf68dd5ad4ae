//! Structured input.

use arbitrary::{Arbitrary, Unstructured};

/// The structure that the bytes encode; `None` if there are too few.
pub(crate) fn parse<'a, T: Arbitrary<'a>>(data: &'a [u8]) -> Option<T> {
    T::arbitrary(&mut Unstructured::new(data)).ok()
}

/// Elements until the bytes end, at most `count`.
pub(crate) fn list<'a, T: Arbitrary<'a>>(
    from: &mut Unstructured<'a>,
    count: usize,
) -> arbitrary::Result<Vec<T>> {
    let mut all = Vec::new();
    while all.len() < count && !from.is_empty() && from.arbitrary()? {
        all.push(from.arbitrary()?);
    }
    Ok(all)
}
