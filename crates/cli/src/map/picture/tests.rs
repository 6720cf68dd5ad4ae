//! Layout of pictures, without a renderer.

use std::path::Path;

use super::*;
use crate::map::listing::Opened;
use crate::map::samples;

fn file(name: &str, extents: &[extant_space::Extent]) -> Mapped {
    let size = extents.last().map_or(0, |last| last.logical.end());
    let opened = Opened::new(Path::new(name), extant_image::Format::Raw, size);
    samples::mapped(opened, extents, CELLS, |_, _| {})
}

fn picture(files: &[Mapped]) -> Picture {
    let mut total = MapSummary::default();
    files.iter().for_each(|file| total.merge(&file.summary));
    Picture::new(files, &total, files.len() as u64)
}

fn many() -> Vec<Mapped> {
    let long = format!("/srv/{}disk.raw", "very-long-directory-name/".repeat(20));
    let mut files = vec![
        file("empty", &[]),
        file(&long, &samples::scattered(10_000)),
        file("tiny", &samples::scattered(1)),
        file("hole", &samples::four_states()[3..]),
    ];
    files.extend((0..16).map(|i| file(&format!("disk-{i}"), &samples::four_states())));
    files
}

#[test]
fn every_element_is_inside_the_picture() {
    for files in [many(), many()[..3].to_vec(), Vec::new()] {
        let picture = picture(&files);
        assert_eq!(picture.bars.len(), files.len());
        for rect in picture.rects.iter().chain(&picture.bars) {
            assert!(rect.x + rect.width <= picture.width, "{rect:?}");
            assert!(rect.y + rect.height <= picture.height, "{rect:?}");
        }
        for label in &picture.labels {
            let width = label.text.chars().count() as u32 * label.style.advance();
            let left = match label.anchor {
                Anchor::Left => Some(label.x),
                Anchor::Middle => label.x.checked_sub(width / 2),
                Anchor::Right => label.x.checked_sub(width),
            };
            let left = left.unwrap_or_else(|| panic!("{label:?}"));
            assert!(left + width <= picture.width, "{label:?}");
            assert!(label.y + label.style.size() <= picture.height, "{label:?}");
        }
    }
}

#[test]
fn bar_is_cut_where_the_state_changes() {
    let picture = picture(&[file("states", &samples::four_states())]);
    let bar = picture.bars[0];
    let cuts: Vec<_> = picture
        .rects
        .iter()
        .filter(|rect| rect.y == bar.y && rect.height == bar.height && rect.width > 1)
        .map(|rect| (rect.x - bar.x, rect.width, rect.color))
        .collect();
    let quarter = PLOT_WIDTH / 4;
    assert_eq!(
        cuts,
        [
            (0, quarter, color_of(Fill::Written)),
            (quarter, quarter, color_of(Fill::Shared)),
            (2 * quarter, quarter, color_of(Fill::Unwritten)),
            (3 * quarter, quarter, color_of(Fill::Hole)),
        ]
    );
}

#[test]
fn fragments_begin_with_a_line() {
    let picture = picture(&[file("states", &samples::four_states())]);
    let bar = picture.bars[0];
    let lines: Vec<_> = picture
        .rects
        .iter()
        .filter(|rect| rect.y == bar.y && rect.width == 1)
        .map(|rect| rect.x - bar.x)
        .collect();
    assert_eq!(lines, [PLOT_WIDTH / 4, PLOT_WIDTH / 2]);
}

#[test]
fn stacked_cell_shows_the_smallest_part() {
    let mut extents = samples::scattered(1);
    let end = extents[0].logical.end();
    extents.push(extant_space::Extent::hole(extant_space::ByteRange::new(
        end,
        1 << 40,
    )));
    let mapped = file("almost a hole", &extents);
    let cells = mapped.cells.resampled(CELLS);
    let heights = stack(&cells[0], 32);
    assert_eq!(heights.iter().sum::<u32>(), 32);
    assert_eq!(heights[Fill::Hole as usize], 31);
}

#[test]
fn files_past_the_limit_are_counted() {
    let files = many();
    let picture = Picture::new(&files, &MapSummary::default(), 1000);
    let text = "and 980 more files not drawn";
    assert!(picture.labels.iter().any(|label| label.text == text));
}

#[test]
fn picture_of_many_files_stays_small() {
    const HEIGHT_MAX: u32 = 4500;
    let one = file("a", &samples::four_states());
    for count in [
        1,
        ROOMY_FILES_MAX,
        PLACED_FILES_MAX,
        PLACED_FILES_MAX + 1,
        FILES_MAX,
    ] {
        let files = vec![one.clone(); count];
        let mut total = MapSummary::default();
        files.iter().for_each(|file| total.merge(&file.summary));
        // More than are drawn.
        let picture = Picture::new(&files, &total, 2 * FILES_MAX as u64);
        assert_eq!(picture.bars.len(), count);
        assert!(picture.height <= HEIGHT_MAX, "{count}: {}", picture.height);
    }
}
