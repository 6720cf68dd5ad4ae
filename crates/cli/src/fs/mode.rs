//! Modes as chmod(1) takes them: octal, or changes in letters.
//!
//! Without `u`, `g`, `o` or `a` a change is for all of them: the umask of this machine does not
//! apply to an image.

use std::str::FromStr;

/// Change of permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange(Vec<Clause>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Clause {
    /// Exactly these.
    Octal(u16),
    Letters {
        /// Bits of all users that the clause is about, with their special bits.
        who: u16,
        action: Action,
        what: What,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Bits {
        /// Of all users.
        bits: u16,
        /// `X`: execute, for directories and for files with an execute bit.
        search: bool,
    },
    /// Permissions of one class of users, by the position of the lowest bit.
    CopyOf(u16),
}

const USER: u16 = 0o4700;
const GROUP: u16 = 0o2070;
const OTHERS: u16 = 0o1007;
const ALL: u16 = USER | GROUP | OTHERS;
const EXECUTE: u16 = 0o111;
/// Set-ID bits, which an octal mode leaves a directory, as with chmod(1).
const SET_ID: u16 = 0o6000;

impl ModeChange {
    /// The permissions that `before` become.
    pub fn apply(&self, before: u16, is_directory: bool) -> u16 {
        self.0
            .iter()
            .fold(before, |mode, clause| clause.apply(mode, is_directory))
    }
}

impl Clause {
    fn apply(&self, mode: u16, is_directory: bool) -> u16 {
        match *self {
            Self::Octal(bits) if is_directory => bits | mode & SET_ID,
            Self::Octal(bits) => bits,
            Self::Letters { who, action, what } => {
                let wanted = match what {
                    What::Bits { bits, search } => {
                        let executes = search && (is_directory || mode & EXECUTE != 0);
                        bits | if executes { EXECUTE } else { 0 }
                    }
                    What::CopyOf(shift) => (mode >> shift & 7) * 0o111,
                } & who;
                match action {
                    Action::Add => mode | wanted,
                    Action::Remove => mode & !wanted,
                    Action::Set if is_directory => mode & !(who & !(SET_ID & !wanted)) | wanted,
                    Action::Set => mode & !who | wanted,
                }
            }
        }
    }
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("'{text}' is not a mode: 0 to 7777, octal, or such as u+x,go=rX");
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let bits = u16::from_str_radix(text, 8)
                .ok()
                .filter(|&bits| bits <= 0o7777);
            return Ok(Self(vec![Clause::Octal(bits.ok_or_else(invalid)?)]));
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            parse_part(part, &mut clauses).ok_or_else(invalid)?;
        }
        Ok(Self(clauses))
    }
}

/// `ug+rw-x`: users, then actions.
fn parse_part(part: &str, clauses: &mut Vec<Clause>) -> Option<()> {
    let first = part.find(['+', '-', '='])?;
    let (users, mut rest) = part.split_at(first);
    let mut who = 0;
    for user in users.chars() {
        who |= match user {
            'u' => USER,
            'g' => GROUP,
            'o' => OTHERS,
            'a' => ALL,
            _ => return None,
        };
    }
    if who == 0 {
        who = ALL;
    }
    while let Some(sign) = rest.chars().next() {
        let action = match sign {
            '+' => Action::Add,
            '-' => Action::Remove,
            _ => Action::Set,
        };
        let end = rest[1..]
            .find(['+', '-', '='])
            .map_or(rest.len(), |at| at + 1);
        let what = match &rest[1..end] {
            "u" => What::CopyOf(6),
            "g" => What::CopyOf(3),
            "o" => What::CopyOf(0),
            letters => bits_of(letters)?,
        };
        clauses.push(Clause::Letters { who, action, what });
        rest = &rest[end..];
    }
    Some(())
}

fn bits_of(letters: &str) -> Option<What> {
    let (mut bits, mut search) = (0, false);
    for letter in letters.chars() {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= EXECUTE,
            's' => bits |= SET_ID,
            't' => bits |= 0o1000,
            'X' => search = true,
            _ => return None,
        }
    }
    Some(What::Bits { bits, search })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_those_of_chmod() {
        // Found by chmod(1) of coreutils 9.1, umask 0: mode before, change, mode after.
        for (before, change, is_directory, after) in [
            (0o644, "755", false, 0o755),
            (0o644, "+x", false, 0o755),
            (0o644, "u+x", false, 0o744),
            (0o777, "go-w", false, 0o755),
            (0o777, "a=r", false, 0o444),
            (0o750, "o=g", false, 0o755),
            (0o640, "g=u,o=", false, 0o660),
            (0o644, "a+X", false, 0o644),
            (0o644, "a+X", true, 0o755),
            (0o744, "a+X", false, 0o755),
            (0o755, "u+s,g+s,+t", false, 0o7755),
            (0o7755, "u-s,g-s,-t", false, 0o755),
            (0o755, "ug+s", false, 0o6755),
            (0o6755, "755", true, 0o6755),
            (0o6755, "755", false, 0o755),
            (0o644, "u+x-w", false, 0o544),
            (0o2755, "g=rx", true, 0o2755),
            (0o2755, "g=rx", false, 0o755),
            (0o644, "u=rwx,go=", false, 0o700),
        ] {
            let parsed: ModeChange = change.parse().unwrap();
            let found = parsed.apply(before, is_directory);
            assert_eq!(found, after, "{before:o} {change}: {found:o}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "8", "17777", "u", "z+x", "u+q", "u+x,", "+ug", "0x1"] {
            assert!(text.parse::<ModeChange>().is_err(), "{text}");
        }
    }
}
