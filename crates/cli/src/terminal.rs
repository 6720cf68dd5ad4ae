//! Capabilities of the terminal.

use std::env;
use std::ffi::OsString;

/// Whether text may hold characters beyond ASCII, by the locale and the kind of terminal.
pub fn has_utf8() -> bool {
    shows_utf8(|name| env::var_os(name))
}

/// As setlocale(3): the first variable that is not empty decides.
fn shows_utf8(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    if variable("TERM").is_some_and(|terminal| terminal == "dumb") {
        return false;
    }
    let mut locales = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().map(variable);
    let locale = locales.find_map(|value| value.filter(|value| !value.is_empty()));
    let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_variable_of_the_locale_that_is_set_decides() {
        for (variables, wanted) in [
            (&[("LANG", "en_US.UTF-8")][..], true),
            (&[("LC_ALL", "C.utf8"), ("LANG", "C")], true),
            (&[("LC_ALL", ""), ("LC_CTYPE", "C.UTF-8")], true),
            (&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")], false),
            (&[("LANG", "en_US.UTF-8"), ("TERM", "dumb")], false),
            (&[], false),
        ] {
            let value = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            };
            assert_eq!(shows_utf8(value), wanted, "{variables:?}");
        }
    }
}
