//! Runs a sequence on the engine and on the reference, and makes a failing one short.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_blockdev::MemoryDevice;
use extant_space::{ErrorKind, FallocateMode};

use crate::engine::Engine;
use crate::image;
use crate::operation::{Operation, Outcome, Place};
use crate::reference::{FileData, Format, Reference};
use crate::tree::difference;

/// Steps between two full verifications.
const CHECK_INTERVAL: usize = 40;
/// How long a failing sequence is made shorter.
const SHRINK_FOR: Duration = Duration::from_secs(60);

/// Whether space can run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Ample,
    Scarce,
}

/// Start of a sequence.
pub struct Start {
    device: Arc<MemoryDevice>,
    format: Format,
    room: Room,
    ran_out: Cell<u32>,
}

impl Start {
    pub fn new(device: Arc<MemoryDevice>, format: Format, room: Room) -> Self {
        Self {
            device,
            format,
            room,
            ran_out: Cell::new(0),
        }
    }

    /// Runs `steps` steps that `next` makes; how many of them found no space.
    ///
    /// # Panics
    /// With the steps of a shorter sequence that fails.
    pub fn run(&self, steps: usize, next: &mut dyn FnMut(&Reference) -> Operation) -> u32 {
        let mut done = Vec::new();
        let failed = self.caught(&mut |reference| {
            let operation = (done.len() < steps).then(|| next(reference))?;
            done.push(operation.clone());
            Some(operation)
        });
        let Some(text) = failed else {
            return self.ran_out.take();
        };
        eprintln!("fails after {} steps: {text}", done.len());
        let (short, text) = self.shrink(done, text);
        let lines: Vec<_> = short
            .iter()
            .map(|operation| format!("  {operation:?}"))
            .collect();
        panic!("{text}\n{}", lines.join("\n"));
    }

    /// Removes the steps that the failure does not need.
    fn shrink(&self, mut failing: Vec<Operation>, mut text: String) -> (Vec<Operation>, String) {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let begun = Instant::now();
        let mut length = failing.len() / 2;
        while length > 0 {
            let mut at = 0;
            while at < failing.len() && begun.elapsed() < SHRINK_FOR {
                let mut shorter = failing.clone();
                shorter.drain(at..(at + length).min(failing.len()));
                let mut rest: VecDeque<_> = shorter.iter().cloned().collect();
                match self.caught(&mut |_| rest.pop_front()) {
                    Some(other) => (failing, text) = (shorter, other),
                    None => at += length,
                }
            }
            length /= 2;
        }
        std::panic::set_hook(hook);
        (failing, text)
    }

    /// Plays a sequence; the failure, which may be a panic.
    fn caught(&self, next: &mut dyn FnMut(&Reference) -> Option<Operation>) -> Option<String> {
        match catch_unwind(AssertUnwindSafe(|| self.play(next))) {
            Ok(Ok(())) => None,
            Ok(Err(text)) => Some(text),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                Some(format!("panic: {}", text.unwrap_or_default()))
            }
        }
    }

    fn play(&self, next: &mut dyn FnMut(&Reference) -> Option<Operation>) -> Result<(), String> {
        let mut engine = Engine::open(Arc::new(self.device.snapshot()));
        let mut reference = Reference::new(self.format);
        let mut steps = 0;
        while let Some(operation) = next(&reference) {
            steps += 1;
            self.step(&mut engine, &mut reference, &operation)
                .map_err(|text| format!("{operation:?}: {text}"))?;
            let is_new = matches!(operation, Operation::Reopen | Operation::Crash);
            if is_new || steps % CHECK_INTERVAL == 0 {
                look(&engine, &reference)?;
            }
        }
        look(&engine, &reference)?;
        for last in [Operation::Reopen]
            .into_iter()
            .chain(reference.steps_for_e2fsck())
        {
            self.step(&mut engine, &mut reference, &last)
                .map_err(|text| format!("{last:?}: {text}"))?;
        }
        let device = engine.close();
        image::assert_clean(&device);
        look(&Engine::open(device), &reference)
    }

    fn step(
        &self,
        engine: &mut Engine,
        reference: &mut Reference,
        operation: &Operation,
    ) -> Result<(), String> {
        let outcome = engine.apply(operation);
        match (operation, &outcome) {
            (Operation::ListNext(cursor, _), Outcome::Listed(listed)) => {
                reference.listed(*cursor, listed).map_or(Ok(()), Err)
            }
            (Operation::ListNext(cursor, _), other) => {
                if reference.is_listable(*cursor) {
                    Err(format!("{other:?}, though it can be listed"))
                } else {
                    Ok(())
                }
            }
            (_, Outcome::Failed(ErrorKind::NoSpace)) => self.ran_out(engine, reference, operation),
            _ => {
                let wanted = reference.apply(operation);
                if wanted.agrees(&outcome) {
                    Ok(())
                } else {
                    Err(mismatch(&wanted, &outcome))
                }
            }
        }
    }

    /// Verifies the state after space ran out.
    fn ran_out(
        &self,
        engine: &mut Engine,
        reference: &mut Reference,
        operation: &Operation,
    ) -> Result<(), String> {
        if let Operation::SetXattr(place, name, value, _) = operation
            && reference.may_lack_xattr_room(place, name, value)
        {
            return Ok(());
        }
        if self.room == Room::Ample {
            return Err("no space, where there is enough".into());
        }
        let place = match operation {
            Operation::Write(place, ..)
            | Operation::Fallocate(place, ..)
            | Operation::Comb(place, ..)
            | Operation::Resize(place, _) => place,
            // Names and attributes: done or not done.
            _ => return Ok(()),
        };
        self.ran_out.set(self.ran_out.get() + 1);
        self.adopt_file(engine, reference, operation, place)
    }

    fn adopt_file(
        &self,
        engine: &Engine,
        reference: &mut Reference,
        operation: &Operation,
        place: &Place,
    ) -> Result<(), String> {
        let (_, before) = reference
            .file(place)
            .map_err(|kind| format!("no space for a {kind:?}"))?;
        let before = before.clone();
        let mut whole = reference.clone();
        let outcome = whole.apply(operation);
        if outcome != Outcome::Done {
            return Err(mismatch(&outcome, &Outcome::Failed(ErrorKind::NoSpace)));
        }
        let (_, after) = whole.file(place).expect("it was there");
        let found = engine.content(place).map_err(|error| error.to_string())?;
        let now = FileData::from_content(&found, self.format);
        let moves = matches!(
            operation,
            Operation::Fallocate(
                _,
                FallocateMode::CollapseRange | FallocateMode::InsertRange,
                _
            )
        );
        let is_right = if moves {
            now == before
        } else {
            now.is_between(&before, after)
        };
        if !is_right {
            let from_before = before.content().difference(&found);
            let from_after = after.content().difference(&found);
            return Err(format!(
                "no space left; against before: {from_before:?}; against all done: {from_after:?}"
            ));
        }
        reference.adopt(place, &found);
        Ok(())
    }
}

fn mismatch(wanted: &Outcome, found: &Outcome) -> String {
    match (wanted, found) {
        (Outcome::Bytes(wanted), Outcome::Bytes(found)) => {
            let differ = wanted
                .iter()
                .zip(found)
                .position(|(wanted, found)| wanted != found);
            format!(
                "{} bytes, not {}; the first that differs: {differ:?}",
                found.len(),
                wanted.len()
            )
        }
        _ => format!("{found:?}, not {wanted:?}"),
    }
}

fn look(engine: &Engine, reference: &Reference) -> Result<(), String> {
    let found = engine
        .tree()
        .map_err(|error| format!("cannot be read: {error}"))?;
    difference(&reference.tree(), &found).map_or(Ok(()), Err)
}
