//! Running a batch on a few threads.

use std::thread;

use extant_space::{ByteRange, Result};
use parking_lot::Mutex;

use crate::{Operation, Request};

/// Executes and completes `requests` on up to `threads` threads, the caller's among them. Assigns
/// run by `assign` on the caller's, in their order.
pub(super) fn run(
    requests: &mut [Request<'_>],
    threads: usize,
    execute: &(impl Fn(&mut Operation<'_>) -> Result<()> + Sync),
    assign: &mut impl FnMut(ByteRange) -> Result<()>,
) {
    let run_other = |request: &mut Request<'_>| {
        let result = execute(&mut request.operation);
        request.complete(result);
    };
    let mut run_any = |request: &mut Request<'_>| match request.operation {
        Operation::Assign(range) => request.complete(assign(range)),
        _ => run_other(request),
    };
    let waits = requests.iter().filter(|request| !is_free(request)).count();
    if waits <= 1 || threads == 1 {
        requests.iter_mut().for_each(run_any);
        return;
    }
    let (mut assigns, others): (Vec<_>, Vec<_>) = requests
        .iter_mut()
        .partition(|request| matches!(request.operation, Operation::Assign(_)));
    let lanes = others.len() + usize::from(!assigns.is_empty());
    let queue = Mutex::new(others.into_iter());
    let next = || queue.lock().next();
    let help = || {
        while let Some(request) = next() {
            run_other(request);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(lanes) {
            // Without another thread the work takes longer.
            let _ = thread::Builder::new().spawn_scoped(scope, help);
        }
        assigns.iter_mut().for_each(|request| run_any(request));
        help();
    });
}

/// Costs nothing here: the sync follows the batch.
fn is_free(request: &Request<'_>) -> bool {
    matches!(request.operation, Operation::Flush)
}
