//! Events of `tracing`, collected for comparison with what a test has done.
//!
//! The recorder listens to all threads of the process, since commits and requests have threads of
//! their own: a test that compares counts is the only one of its program.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use extant_space::trace::Level;
use extant_space::trace::tracing::field::{Field, Visit};
use extant_space::trace::tracing::{self, Metadata, Subscriber, span};

/// Microseconds; present in every event of an operation, and different in each run.
const DURATION: &str = "duration_us";

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The module that reported it.
    pub target: String,
    /// Its level.
    pub level: Level,
    /// Its message.
    pub name: String,
    /// The other fields, as text.
    pub fields: BTreeMap<String, String>,
}

impl Event {
    /// The field `name`; empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// The field `name`, a number.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        let number = self.text(name).parse();
        number.unwrap_or_else(|_| panic!("no number {name}: {self:?}"))
    }

    /// Whether it has a duration.
    pub fn is_timed(&self) -> bool {
        self.fields.contains_key(DURATION)
    }
}

static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());

/// Collects every event of the process from now on.
///
/// # Panics
/// When the process has a listener already.
pub fn record() {
    let installed = tracing::subscriber::set_global_default(Recorder);
    installed.expect("the only listener of this process");
}

/// The events since the last call whose target begins with `target`, in order; others are dropped.
pub fn take(target: &str) -> Vec<Event> {
    let mut events = std::mem::take(&mut *events());
    events.retain(|event| event.target.starts_with(target));
    events
}

fn events() -> MutexGuard<'static, Vec<Event>> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Recorder;

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("extant")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        // The crates have no spans.
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut fields = fields.0;
        events().push(Event {
            target: event.metadata().target().to_owned(),
            level: *event.metadata().level(),
            name: fields.remove("message").unwrap_or_default(),
            fields,
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
