//! Digging and reporting against a naive model: a file in memory with a list of blocks.

use std::sync::Mutex;

use extant_space::{CancelToken, Error, ErrorKind, Extent, Silent, SyncMode};
use proptest::prelude::*;

use super::*;

const BLOCK: u64 = 512;

/// Bytes, and which blocks have space.
#[derive(Debug)]
struct Model {
    bytes: Vec<u8>,
    allocated: Mutex<Vec<bool>>,
    /// Returned by `size`; larger than `bytes` after an append.
    size: u64,
    punched: Mutex<Vec<ByteRange>>,
}

impl Model {
    /// `blocks`: `None` is a hole, else the offset of one byte that is not zero, if in the block.
    fn new(blocks: &[Option<u64>], size: u64) -> Self {
        let mut bytes = vec![0; size as usize];
        for (index, block) in blocks.iter().enumerate() {
            let byte = block.map(|byte| index * BLOCK as usize + byte as usize);
            if let Some(byte) = byte.filter(|&byte| byte < (index + 1) * BLOCK as usize)
                && let Some(byte) = bytes.get_mut(byte)
            {
                *byte = 1;
            }
        }
        Self {
            bytes,
            allocated: Mutex::new(blocks.iter().map(Option::is_some).collect()),
            size,
            punched: Mutex::default(),
        }
    }

    fn is_allocated(&self, offset: u64) -> bool {
        self.allocated.lock().unwrap()[(offset / BLOCK) as usize]
    }

    fn allocated(&self) -> Vec<bool> {
        self.allocated.lock().unwrap().clone()
    }

    fn dig(&self, range: Option<ByteRange>, cancel: &CancelToken) -> Result<HoleReport> {
        let control = Control::new(cancel, &Silent);
        dig(self, &Scan::new(self, self, BLOCK, range, control)?)
    }

    fn report(&self, range: Option<ByteRange>) -> (HoleReport, Vec<Span>) {
        let cancel = CancelToken::new();
        let control = Control::new(&cancel, &Silent);
        let scan = Scan::new(self, self, BLOCK, range, control).unwrap();
        let mut spans = Vec::new();
        let report = report(&scan, &mut |span| {
            spans.push(span);
            ControlFlow::Continue(())
        });
        (report.unwrap(), spans)
    }

    /// The same, a block at a time and without any state.
    fn expected(&self, range: ByteRange) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        let mut at = range.start();
        let mut grid = at;
        while at < range.end() {
            if !self.is_allocated(at) {
                let end = (at / BLOCK + 1) * BLOCK;
                push(&mut spans, SpanKind::Hole, at, end.min(range.end()));
                at = end;
                grid = end;
                continue;
            }
            let data_end = (at..range.end()).find(|&byte| !self.is_allocated(byte));
            let end = (grid + BLOCK).min(data_end.unwrap_or(range.end()));
            let is_zero = self.bytes[at as usize..end as usize]
                .iter()
                .all(|&byte| byte == 0);
            let kind = if is_zero {
                SpanKind::Zeros
            } else {
                SpanKind::Data
            };
            push(&mut spans, kind, at, end);
            at = end;
            grid = end;
        }
        spans
    }
}

fn push(spans: &mut Vec<Span>, kind: SpanKind, start: u64, end: u64) {
    match spans.last_mut() {
        Some(last) if last.kind == kind => last.range = ByteRange::new(last.range.start(), end),
        _ => spans.push(Span {
            kind,
            range: ByteRange::new(start, end),
        }),
    }
}

impl DataMap for Model {
    fn size_bytes(&self) -> Result<u64> {
        self.size()
    }

    fn next_data(&self, range: ByteRange) -> Result<Option<ByteRange>> {
        let mut pieces = range.chunks(BLOCK);
        let Some(first) = pieces.find(|piece| self.is_allocated(piece.start())) else {
            return Ok(None);
        };
        let end = pieces.find(|piece| !self.is_allocated(piece.start()));
        let end = end.map_or(range.end(), ByteRange::start);
        Ok(Some(ByteRange::new(first.start(), end)))
    }
}

impl SpaceFile for Model {
    fn size(&self) -> Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let rest = self.bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        assert_eq!(mode, FallocateMode::PunchHole);
        let inside = range
            .intersection(ByteRange::new(0, self.bytes.len() as u64))
            .unwrap();
        let bytes = &self.bytes[inside.start() as usize..inside.end() as usize];
        assert!(bytes.iter().all(|&byte| byte == 0), "{range} holds data");
        let whole = range.shrink_to_blocks(BLOCK);
        let mut allocated = self.allocated.lock().unwrap();
        for block in whole.start() / BLOCK..whole.end() / BLOCK {
            if let Some(block) = allocated.get_mut(block as usize) {
                *block = false;
            }
        }
        self.punched.lock().unwrap().push(range);
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        unreachable!("digging writes nothing")
    }

    fn resize(&self, _: u64) -> Result<()> {
        unreachable!("digging keeps the size")
    }

    fn for_each_extent(
        &self,
        _: ByteRange,
        _: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        unreachable!("the caller syncs")
    }
}

prop_compose! {
    fn models()(
        // Every third block is a hole, another third holds a byte, the rest zeros.
        blocks in prop::collection::vec(prop::option::of(0..2 * BLOCK), 1..24),
        cut in 0..BLOCK,
    ) -> Model {
        Model::new(&blocks, blocks.len() as u64 * BLOCK - cut)
    }
}

fn ranges() -> impl Strategy<Value = Option<ByteRange>> {
    let start = prop_oneof![(0..26u64).prop_map(|block| block * BLOCK), 0..26 * BLOCK];
    let length = prop_oneof![(1..26u64).prop_map(|block| block * BLOCK), 1..26 * BLOCK];
    prop::option::of(
        (start, length).prop_map(|(start, length)| ByteRange::new(start, start + length)),
    )
}

proptest! {
    #[test]
    fn report_matches_a_naive_look(model in models(), range in ranges()) {
        let (report, spans) = model.report(range);
        prop_assert_eq!(&spans, &model.expected(report.range));
        let count = |kind| {
            let of_kind = spans.iter().filter(|span| span.kind == kind);
            (of_kind.clone().count() as u64, of_kind.map(|span| span.range.len()).sum::<u64>())
        };
        prop_assert_eq!((report.zero_runs, report.zero_bytes), count(SpanKind::Zeros));
        prop_assert_eq!((report.holes, report.hole_bytes), count(SpanKind::Hole));
    }

    #[test]
    fn dig_frees_only_whole_blocks_of_reported_ranges(
        model in models(),
        range in ranges(),
    ) {
        let before = model.allocated();
        let (reported, spans) = model.report(range);
        let dug = model.dig(range, &CancelToken::new()).unwrap();
        prop_assert_eq!(dug, reported);
        for (index, &had_space) in before.iter().enumerate() {
            let start = index as u64 * BLOCK;
            let block = ByteRange::new(start, (start + BLOCK).min(model.size));
            let is_zero = spans
                .iter()
                .any(|span| span.kind == SpanKind::Zeros && span.range.contains(block));
            prop_assert_eq!(model.allocated()[index], had_space && !is_zero);
        }
    }
}

#[test]
fn dig_of_a_long_run_punches_early_and_counts_one_run() {
    let blocks = vec![Some(2 * BLOCK); (3 * RUN_MAX / BLOCK) as usize];
    let model = Model::new(&blocks, 3 * RUN_MAX - 5);
    let report = model.dig(Some(ByteRange::new(100, u64::MAX)), &CancelToken::new());
    let report = report.unwrap();
    assert_eq!(
        (report.zero_runs, report.zero_bytes),
        (1, 3 * RUN_MAX - 105)
    );
    let punched = model.punched.lock().unwrap().clone();
    assert!(punched.iter().all(|range| range.len() <= RUN_MAX));
    assert!(punched.len() >= 3);
    assert_eq!(model.allocated().iter().filter(|&&is| is).count(), 1);
}

#[test]
fn dig_at_the_end_of_a_file_that_has_grown_touches_nothing_past_the_old_end() {
    let mut model = Model::new(&[Some(2 * BLOCK); 2], 2 * BLOCK);
    let cancel = CancelToken::new();
    model.size = BLOCK + 10;
    let grown = Model::new(&[Some(2 * BLOCK); 2], 2 * BLOCK);
    let scan = Scan::new(&model, &model, BLOCK, None, Control::new(&cancel, &Silent)).unwrap();
    dig(&grown, &scan).unwrap();
    assert_eq!(
        grown.punched.into_inner().unwrap(),
        [ByteRange::new(0, BLOCK + 10)]
    );
    dig(&model, &scan).unwrap();
    let punched = model.punched.lock().unwrap();
    assert_eq!(*punched, [ByteRange::new(0, 2 * BLOCK)]);
}

#[test]
fn cancelled_dig_punches_nothing() {
    let model = Model::new(&[Some(2 * BLOCK); 4], 4 * BLOCK);
    let cancel = CancelToken::new();
    cancel.cancel();
    let error = model.dig(None, &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(model.punched.lock().unwrap().is_empty());
}

#[test]
fn report_stops_where_the_visitor_does() {
    let model = Model::new(&[Some(0), None, Some(0), None], 4 * BLOCK);
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let scan = Scan::new(&model, &model, BLOCK, None, control).unwrap();
    let mut seen = 0;
    report(&scan, &mut |_| {
        seen += 1;
        ControlFlow::Break(())
    })
    .unwrap();
    assert_eq!(seen, 1);
}
