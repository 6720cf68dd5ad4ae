//! The options that a refusal suggests: the only place where options of the command line are added
//! to an error.

use std::fmt;

use extant_space::{Error, Remedy};

/// An error as the command prints it, with the options that would have helped.
pub struct Shown<'e>(pub &'e Error);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        for remedy in self.0.remedies() {
            write!(f, "; {}", words(*remedy))?;
        }
        Ok(())
    }
}

fn words(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::ShareAccess => "use --shared if no process writes to the file's holes",
        Remedy::Replace => "--force replaces it",
        Remedy::Materialize => "extant materialize makes its holes real",
        Remedy::AllocateLess => "--allocation makes only a part real",
        Remedy::DisableCopyOnWrite => "--nocow turns that off for this file",
        Remedy::CreateWithoutCopyOnWrite => "extant create --nocow makes one",
        Remedy::ReserveOnly => "--preallocation falloc only reserves, where the file system can",
        Remedy::WriteZeros => "--preallocation full writes it instead",
        Remedy::Unshare => "--unshare gives them space of their own",
        Remedy::ResumeJob => "extant job resume continues it, extant job cancel undoes it",
        Remedy::MetadataZeroes => "--zeroes metadata leaves it as it is below",
        _ => "see --help",
    }
}

#[cfg(test)]
mod tests {
    use extant_space::ErrorKind;

    use super::*;

    #[test]
    fn options_follow_the_line() {
        let error = Error::new(ErrorKind::AlreadyExists)
            .at("/srv/a")
            .remedy(Remedy::Replace)
            .remedy(Remedy::Materialize);
        assert_eq!(error.to_string(), "/srv/a: file exists");
        assert_eq!(
            Shown(&error).to_string(),
            "/srv/a: file exists; --force replaces it; extant materialize makes its holes real"
        );
    }
}
