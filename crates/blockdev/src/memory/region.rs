//! 64 neighbouring pages of a memory device: which have space, which hold data, and the data.
//!
//! Invariants: a page that is `written` is `allocated`; a page has data exactly when it is
//! `written`. Copies share pages until one of them writes.

use std::sync::Arc;

pub(super) const PAGE: usize = 4096;
/// One bit of a word for each page.
const PAGES: usize = 64;
/// Bytes of a region.
pub(super) const REGION: usize = PAGES * PAGE;

type Page = [u8; PAGE];
type Pages = [Option<Arc<Page>>; PAGES];

/// Pages by their place in the region, bit 0 the first.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) allocated: u64,
    pub(super) written: u64,
}

#[derive(Clone, Default)]
pub(super) struct Region {
    allocation: Allocation,
    /// `None` while nothing is written: space that is only assigned costs no memory to speak of.
    pages: Option<Arc<Pages>>,
}

/// A part of one page.
struct Part {
    page: usize,
    start: usize,
    length: usize,
}

impl Part {
    fn is_whole_page(&self) -> bool {
        self.length == PAGE
    }
}

impl Region {
    pub(super) fn allocation(&self) -> Allocation {
        self.allocation
    }

    pub(super) fn is_hole(&self) -> bool {
        self.allocation == Allocation::default()
    }

    pub(super) fn read(&self, at: usize, into: &mut [u8]) {
        let mut rest = into;
        for part in parts(at, rest.len()) {
            let (now, later) = rest.split_at_mut(part.length);
            match self.page(part.page) {
                Some(page) => now.copy_from_slice(&page[part.start..][..part.length]),
                None => now.fill(0),
            }
            rest = later;
        }
    }

    /// Pages without space among those that `length` bytes from `at` touch.
    pub(super) fn missing(&self, at: usize, length: usize) -> u32 {
        (touched(at, length) & !self.allocation.allocated).count_ones()
    }

    pub(super) fn write(&mut self, at: usize, from: &[u8]) {
        let mut rest = from;
        for part in parts(at, from.len()) {
            let (now, later) = rest.split_at(part.length);
            let slot = &mut self.pages_mut()[part.page];
            match slot {
                // A page that a copy shares is replaced as a whole without being copied first.
                Some(page) if !part.is_whole_page() || Arc::strong_count(page) == 1 => {
                    Arc::make_mut(page)[part.start..][..part.length].copy_from_slice(now);
                }
                _ => *slot = Some(new_page(part.start, now)),
            }
            self.allocation.allocated |= 1 << part.page;
            self.allocation.written |= 1 << part.page;
            rest = later;
        }
    }

    pub(super) fn assign(&mut self, at: usize, length: usize) {
        self.allocation.allocated |= touched(at, length);
    }

    /// Whole pages become holes, parts of pages zeros; returns how many pages lost their space.
    pub(super) fn punch(&mut self, at: usize, length: usize) -> u32 {
        let whole = self.zero(at, length);
        let freed = (whole & self.allocation.allocated).count_ones();
        self.allocation.allocated &= !whole;
        freed
    }

    /// Everything touched has space and reads as zeros.
    pub(super) fn zero_allocated(&mut self, at: usize, length: usize) {
        self.zero(at, length);
        self.assign(at, length);
    }

    /// Everything touched holds data, which is zeros.
    pub(super) fn zero_written(&mut self, at: usize, length: usize) {
        for part in parts(at, length) {
            self.write(part.page * PAGE + part.start, &[0; PAGE][..part.length]);
        }
    }

    /// Drops the data of whole pages, which are returned, and clears parts of pages.
    fn zero(&mut self, at: usize, length: usize) -> u64 {
        let mut whole = 0;
        for part in parts(at, length) {
            if part.is_whole_page() {
                whole |= 1 << part.page;
            } else if self.allocation.written & 1 << part.page != 0 {
                let page = self.pages_mut()[part.page].as_mut();
                let page = page.expect("a written page has data");
                Arc::make_mut(page)[part.start..][..part.length].fill(0);
            }
        }
        let dropped = whole & self.allocation.written;
        self.allocation.written &= !whole;
        if self.allocation.written == 0 {
            self.pages = None;
        } else if dropped != 0 {
            let pages = self.pages_mut();
            for page in (0..PAGES).filter(|page| dropped & 1 << page != 0) {
                pages[page] = None;
            }
        }
        whole
    }

    /// The data of each written page, by its offset in the region.
    pub(super) fn data(&self) -> impl Iterator<Item = (usize, &Page)> {
        let pages = self.pages.iter().flat_map(|pages| pages.iter().enumerate());
        pages.filter_map(|(at, page)| Some((at * PAGE, &**page.as_ref()?)))
    }

    /// The first byte in which the contents differ.
    pub(super) fn first_difference(&self, other: &Self) -> Option<usize> {
        match (&self.pages, &other.pages) {
            (None, None) => return None,
            (Some(a), Some(b)) if Arc::ptr_eq(a, b) => return None,
            _ => {}
        }
        (0..PAGES).find_map(|at| {
            let (a, b) = match (self.page(at), other.page(at)) {
                (None, None) => return None,
                (Some(a), Some(b)) if Arc::ptr_eq(a, b) => return None,
                (Some(a), Some(b)) => (&**a, &**b),
                (Some(a), None) => (&**a, &[0; PAGE]),
                (None, Some(b)) => (&[0; PAGE], &**b),
            };
            let inside = (0..PAGE).find(|&byte| a[byte] != b[byte])?;
            Some(at * PAGE + inside)
        })
    }

    fn page(&self, page: usize) -> Option<&Arc<Page>> {
        self.pages.as_ref()?[page].as_ref()
    }

    fn pages_mut(&mut self) -> &mut Pages {
        let pages = self
            .pages
            .get_or_insert_with(|| Arc::new([const { None }; PAGES]));
        Arc::make_mut(pages)
    }
}

fn new_page(start: usize, data: &[u8]) -> Arc<Page> {
    match data.try_into() {
        Ok(whole) => Arc::new(whole),
        Err(_) => {
            let mut page = [0; PAGE];
            page[start..][..data.len()].copy_from_slice(data);
            Arc::new(page)
        }
    }
}

/// The pages of `length` bytes from `at`, which are inside the region.
fn touched(at: usize, length: usize) -> u64 {
    if length == 0 {
        return 0;
    }
    let (first, last) = (at / PAGE, (at + length - 1) / PAGE);
    (u64::MAX >> (PAGES - 1 - (last - first))) << first
}

/// `length` bytes from `at`, page by page.
fn parts(at: usize, length: usize) -> impl Iterator<Item = Part> {
    let (mut at, end) = (at, at + length);
    std::iter::from_fn(move || {
        let start = at % PAGE;
        let part = Part {
            page: at / PAGE,
            start,
            length: (PAGE - start).min(end - at),
        };
        at += part.length;
        (part.length > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_are_those_with_a_byte_in_the_range() {
        assert_eq!(touched(0, 0), 0);
        assert_eq!(touched(4095, 2), 0b11);
        assert_eq!(touched(4096, 4096), 0b10);
        assert_eq!(touched(0, REGION), u64::MAX);
        assert_eq!(touched(REGION - 1, 1), 1 << 63);
    }

    #[test]
    fn punch_of_parts_of_pages_keeps_their_space_and_neighbours() {
        let mut region = Region::default();
        region.write(0, &[7; 3 * PAGE]);
        assert_eq!(region.punch(512, 2 * PAGE), 1);
        assert!(region.allocation().written == 0b101 && region.allocation().allocated == 0b101);
        let mut seen = [1; 3 * PAGE];
        region.read(0, &mut seen);
        assert!(seen[..512].iter().all(|&byte| byte == 7));
        assert!(seen[512..][..2 * PAGE].iter().all(|&byte| byte == 0));
        assert!(seen[512 + 2 * PAGE..].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn copy_keeps_its_contents_when_the_original_changes() {
        let mut region = Region::default();
        region.write(100, &[1; 2 * PAGE]);
        let copy = region.clone();
        region.write(0, &[2; PAGE]);
        region.write(PAGE + 5, &[3; 1]);
        let mut seen = [0; 2 * PAGE];
        copy.read(100, &mut seen);
        assert_eq!(seen, [1; 2 * PAGE]);
        assert_eq!(copy.first_difference(&region), Some(0));
        region.zero_allocated(0, 3 * PAGE);
        assert_eq!(copy.first_difference(&region), Some(100));
        assert_eq!(region.first_difference(&Region::default()), None);
    }
}
