//! The error that stopped a journal: the first one is kept, and every caller receives it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use extant_space::{Error, Result};

/// Empty while all is well.
#[derive(Default)]
pub(crate) struct Failure(OnceLock<Arc<Error>>);

/// The first error, the source of later returned ones.
#[derive(Debug)]
struct First(Arc<Error>);

impl Failure {
    /// Records `error` unless there was one before, and returns the first.
    pub(crate) fn set(&self, error: Error) -> &Error {
        self.0.get_or_init(|| Arc::new(error))
    }

    pub(crate) fn get(&self) -> Option<&Error> {
        self.0.get().map(|error| &**error)
    }

    /// # Errors
    /// When the journal was stopped: the kind of the first error, which is the source.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(first) = self.0.get() else {
            return Ok(());
        };
        let source = std::io::Error::other(First(first.clone()));
        let error = Error::from(source).with_kind(first.kind());
        Err(error.detail(format!("the journal was stopped by an error: {first}")))
    }
}

impl fmt::Display for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for First {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use extant_space::ErrorKind;

    use super::*;

    #[test]
    fn first_error_stays_and_is_the_source() {
        let failure = Failure::default();
        assert!(failure.check().is_ok());
        failure.set(Error::new(ErrorKind::Io).detail("first"));
        failure.set(Error::new(ErrorKind::NoSpace).detail("second"));
        let error = failure.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.source().unwrap().to_string(), "first");
    }
}
