//! Lists of mount options: splitting, joining, values, errors.
//!
//! Options are separated by commas. As in libfuse, a backslash escapes the character after it.

use std::str::FromStr;

use extant_space::{Error, ErrorKind, Result};

/// The options of a list, without escapes.
pub fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut chars = list.chars();
    while let Some(next) = chars.next() {
        let taken = match next {
            ',' => {
                options.push(String::new());
                continue;
            }
            '\\' => chars.next(),
            other => Some(other),
        };
        if let Some(last) = options.last_mut() {
            last.extend(taken);
        }
    }
    options
}

/// The list of `options`, escaped.
pub fn join(options: &[String]) -> String {
    let escaped = options
        .iter()
        .map(|option| option.replace('\\', r"\\").replace(',', r"\,"));
    escaped.collect::<Vec<_>>().join(",")
}

/// The name of an option and its value, if it has one.
pub fn name_and_value(option: &str) -> (&str, Option<&str>) {
    match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    }
}

/// `name=value` for each option that has a value.
pub fn named<const N: usize>(values: [(&str, Option<String>); N]) -> Vec<String> {
    let values = values.into_iter();
    values
        .filter_map(|(name, value)| value.map(|value| format!("{name}={value}")))
        .collect()
}

/// Whether an option is for mount(8) itself, which keeps it in `fstab`. A file system ignores it.
pub fn is_for_fstab(name: &str) -> bool {
    let words = [
        "_netdev", "nofail", "noauto", "auto", "user", "nouser", "users", "owner", "group",
        "defaults", "comment", "helper", "uhelper",
    ];
    words.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

/// Parses a number.
///
/// # Errors
/// [`wrong_value`].
pub fn number<T: FromStr>(name: &str, value: &str, wanted: &str) -> Result<T> {
    value.parse().map_err(|_| wrong_value(name, value, wanted))
}

/// Parses a name that the kernel and the lists of mounts can hold.
///
/// # Errors
/// [`wrong_value`].
pub fn text(name: &str, value: &str) -> Result<String> {
    if value.is_empty() || value.contains(char::is_control) {
        Err(wrong_value(name, value, "a name"))
    } else {
        Ok(value.to_owned())
    }
}

/// `InvalidArgument`: the option requires the value described by `wanted`.
pub fn wrong_value(name: &str, value: &str, wanted: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail(format!("mount option `{name}={value}` is wrong"))
        .advice(format!("it takes {wanted}"))
}

/// `InvalidArgument`: no such option.
pub fn unknown(option: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument).detail(format!("mount option `{option}` is not known"))
}
