//! Running a batch on a few threads.

use std::sync::{Mutex, PoisonError};
use std::thread;

use extant_space::Result;

use crate::{Operation, Request};

/// Executes and completes `requests` on up to `threads` threads, the caller's among them. Assigns run in
/// their order, one at a time.
pub(super) fn run(
    requests: &mut [Request<'_>],
    threads: usize,
    execute: &(impl Fn(&mut Operation<'_>) -> Result<()> + Sync),
) {
    let run_one = |request: &mut Request<'_>| {
        let result = execute(&mut request.operation);
        request.complete(result);
    };
    let waits = requests.iter().filter(|request| !is_free(request)).count();
    if waits <= 1 || threads == 1 {
        requests.iter_mut().for_each(run_one);
        return;
    }
    let (mut assigns, others): (Vec<_>, Vec<_>) = requests
        .iter_mut()
        .partition(|request| matches!(request.operation, Operation::Assign(_)));
    let lanes = others.len() + usize::from(!assigns.is_empty());
    let queue = Mutex::new(others.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let help = || {
        while let Some(request) = next() {
            run_one(request);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(lanes) {
            // Without another thread the work takes longer, and is done all the same.
            let _ = thread::Builder::new().spawn_scoped(scope, help);
        }
        assigns.iter_mut().for_each(|request| run_one(request));
        help();
    });
}

/// Costs nothing here: the sync comes after the batch.
fn is_free(request: &Request<'_>) -> bool {
    matches!(request.operation, Operation::Flush)
}
