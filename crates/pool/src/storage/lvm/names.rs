//! Names that LVM permits (lvm(8), "VALID NAMES").

use extant_space::{Error, ErrorKind, Result};

/// Of a logical volume.
const BYTES_MAX: usize = 127;
/// Of a device of the device mapper: group and volume with a hyphen between, and each of their
/// hyphens doubled.
const DEVICE_BYTES_MAX: usize = 127;
/// Names of volumes that LVM makes itself begin so.
const RESERVED_STARTS: [&str; 2] = ["pvmove", "snapshot"];
/// Names of their parts have these inside.
const RESERVED_PARTS: [&str; 18] = [
    "_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_imeta", "_iorig", "_mimage", "_mlog",
    "_pmspare", "_rimage", "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin", "_vpool", "_wcorig",
];

/// Refuses a name that LVM does not permit for a volume of the group.
pub(super) fn check_name(group: &str, name: &str) -> Result<()> {
    let refuse = |detail: String| Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
    check_characters("logical volume", name)?;
    if name.len() > BYTES_MAX || device_bytes(group) + 1 + device_bytes(name) > DEVICE_BYTES_MAX {
        return refuse("the name is too long for a logical volume of the group".to_owned());
    }
    let mut starts = RESERVED_STARTS
        .iter()
        .filter(|start| name.starts_with(**start));
    if let Some(start) = starts.next() {
        return refuse(format!(
            "LVM reserves names of volumes that begin with {start}"
        ));
    }
    let mut parts = RESERVED_PARTS.iter().filter(|part| name.contains(**part));
    if let Some(part) = parts.next() {
        return refuse(format!("LVM reserves names of volumes that contain {part}"));
    }
    Ok(())
}

/// Refuses a name that no volume group has.
pub(super) fn check_group(name: &str) -> Result<()> {
    check_characters("volume group", name)?;
    if name.is_empty() || name == "." || name == ".." || name.len() > BYTES_MAX {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail(format!("{name:?} is no name of a volume group")));
    }
    Ok(())
}

fn check_characters(what: &str, name: &str) -> Result<()> {
    let is_valid =
        |character: char| character.is_ascii_alphanumeric() || "+_.-".contains(character);
    if name.starts_with('-') || !name.chars().all(is_valid) {
        return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
            "{name:?} cannot name a {what}: LVM permits letters, digits and + _ . -, and no hyphen \
             at the beginning"
        )));
    }
    Ok(())
}

fn device_bytes(name: &str) -> usize {
    name.len() + name.matches('-').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lvm_refuses_are_refused_with_the_reason() {
        let long = "n".repeat(128);
        let hyphens = "-".repeat(63);
        let (hyphens, fits) = (format!("n{hyphens}"), format!("n{}", &hyphens[..60]));
        for (name, reason) in [
            ("a b", "letters"),
            ("ä", "letters"),
            ("a@b", "letters"),
            ("-x", "hyphen"),
            ("snapshot", "begin with snapshot"),
            ("snapshot1", "begin with snapshot"),
            ("pvmove0", "begin with pvmove"),
            ("x_mlog", "contain _mlog"),
            ("a_tdata_b", "contain _tdata"),
            (&long, "too long"),
            (&hyphens, "too long"),
        ] {
            let error = check_name("vg", name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
            assert!(error.to_string().contains(reason), "{error}");
        }
        for name in [
            "web",
            "a.b+c_d-e",
            "my-snapshot",
            "tdata",
            &long[..124],
            &fits,
        ] {
            check_name("vg", name).unwrap();
        }
    }

    #[test]
    fn groups_are_named_by_their_names_and_not_by_paths() {
        for name in ["", ".", "..", "/dev/vg", "a b", "-x"] {
            assert!(check_group(name).is_err(), "{name}");
        }
        check_group("vg-1.x").unwrap();
    }
}
