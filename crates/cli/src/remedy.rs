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
        Remedy::RepairLeaks => {
            "extant image check --repair leaks frees clusters leaked by interrupted changes"
        }
        Remedy::Unmount => "extant umount unmounts it",
        Remedy::RepairImage => "repair it first: extant image check --repair all",
        Remedy::CheckImage => "see extant image check",
        Remedy::MergeBacking => "extant image convert --chain makes one full image of both",
        Remedy::ReadBacking => {
            "--chain reads the backing file and copies the part that belongs to the disk"
        }
        Remedy::Shrink => "--shrink allows it",
        Remedy::OpenNamedFiles => {
            "--chain opens the files that the image names, if you trust who made it"
        }
        Remedy::NamePreallocation => "--preallocation metadata, falloc or full",
        Remedy::DefinePool => "extant pool define defines it",
        Remedy::AllowBacking => "--allow-backing if you know who made it",
        Remedy::SetFormat => "extant vol format says it: qcow2 if you know who made it, else raw",
        Remedy::NameFormat => "--format qcow2 if you know who made it, else --format raw",
        Remedy::NameDefinitions => "--config-dir names a directory",
        Remedy::DeleteDefinition => "extant pool delete removes the definition",
        Remedy::AdoptTable => "--adopt keeps its partitions, and uses the free space between them",
        Remedy::RefreshPool => "extant pool refresh cleans up",
        Remedy::MaterializeClones => {
            "extant vol materialize --unshare makes a clone a volume of its own"
        }
        Remedy::ListJobs => "extant job list shows them",
        Remedy::IgnoreUsers => "--force does it all the same",
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
