//! Structures that grow from version to version, as `openat2(2)` has its arguments.
//!
//! The first field is the size that the caller knows the structure with. Fields unknown to the
//! caller have their defaults. Fields unknown to this library must be zeros: then it would have
//! changed nothing.

use extant_space::{Error, ErrorKind, Result};

/// The bytes of a structure of ours, taken from `given`, which the caller says is all of its own.
/// `default` is ours, as bytes.
///
/// # Errors
/// `InvalidArgument` for a size that no version has had, and for values that only a later version
/// supports.
pub(crate) fn read(given: &[u8], default: &mut [u8], least: usize) -> Result<()> {
    check_size(given.len(), least)?;
    let known = given.len().min(default.len());
    if given[known..].iter().any(|&byte| byte != 0) {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail("options of a later version of libextant".to_owned()));
    }
    default[..known].copy_from_slice(&given[..known]);
    Ok(())
}

/// # Errors
/// `InvalidArgument` for a `size` that no version has had.
pub(crate) fn check_size(size: usize, least: usize) -> Result<()> {
    if size < least {
        return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
            "struct_size is {size}: the structure was not initialized"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_structures_keep_defaults_and_longer_ones_must_end_with_zeros() {
        let mut ours = [1, 2, 3, 4];
        read(&[9, 9], &mut ours, 2).unwrap();
        assert_eq!(ours, [9, 9, 3, 4]);
        read(&[5, 6, 7, 8, 0, 0], &mut ours, 2).unwrap();
        assert_eq!(ours, [5, 6, 7, 8]);
        assert!(read(&[5, 6, 7, 8, 0, 1], &mut ours, 2).is_err());
        assert!(read(&[5], &mut ours, 2).is_err());
        assert_eq!(ours, [5, 6, 7, 8]);
    }
}
