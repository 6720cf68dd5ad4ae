//! Merging neighbours of one status during a scan of a device.

use std::ops::ControlFlow;

use extant_space::ByteRange;

use crate::RangeStatus;

/// Passes maximal runs of one status to a visitor.
pub(crate) struct Runs<'v> {
    visit: &'v mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    run: Option<(ByteRange, RangeStatus)>,
}

impl<'v> Runs<'v> {
    pub(crate) fn new(visit: &'v mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>) -> Self {
        Self { visit, run: None }
    }

    /// The next range, right after the last one.
    pub(crate) fn push(&mut self, range: ByteRange, status: RangeStatus) -> ControlFlow<()> {
        if range.is_empty() {
            return ControlFlow::Continue(());
        }
        match &mut self.run {
            Some((run, same)) if *same == status => {
                assert_eq!(run.end(), range.start(), "ranges come without gaps");
                *run = ByteRange::new(run.start(), range.end());
                ControlFlow::Continue(())
            }
            run => match run.replace((range, status)) {
                Some((before, status)) => (self.visit)(before, status),
                None => ControlFlow::Continue(()),
            },
        }
    }

    /// Hands over the last run; not to be called after a break.
    pub(crate) fn finish(self) {
        if let Some((run, status)) = self.run {
            let _ = (self.visit)(run, status);
        }
    }
}
