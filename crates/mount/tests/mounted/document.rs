//! The rows of `docs/semantics.md` are those that the cases stand behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::cases::{Expect, all};

/// First two cells of the rows of the tables: the call, and whether it is as in ext4.
fn rows() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("docs/semantics.md")).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("| "))
        .filter_map(|line| {
            let mut cells = line.split(" | ");
            let (call, answer) = (cells.next()?.trim(), cells.next()?.trim());
            Some((call.to_owned(), answer.to_owned()))
        })
        .filter(|(call, _)| call != "call" && !call.starts_with("---"))
        .collect()
}

#[test]
fn every_case_has_its_row_and_every_row_its_case() {
    let in_document: BTreeSet<_> = rows()
        .into_iter()
        .filter(|(_, answer)| answer != "by the kernel")
        .map(|(call, _)| call)
        .collect();
    let of_cases: BTreeSet<_> = all().map(|case| case.row.to_owned()).collect();
    assert_eq!(in_document, of_cases);
}

#[test]
fn row_says_whether_its_cases_answer_as_the_kernel() {
    for (call, answer) in rows() {
        let cases: Vec<_> = all().filter(|case| case.row == call).collect();
        let expected = match cases.iter().map(|case| case.expect).max_by_key(severity) {
            None => continue,
            Some(Expect::Same) => "yes",
            Some(Expect::LimitOfWriteback) => "without writeback",
            Some(Expect::Limit) => "no",
        };
        assert_eq!(answer, expected, "{call}");
    }
}

fn severity(expect: &Expect) -> u8 {
    match expect {
        Expect::Same => 0,
        Expect::LimitOfWriteback => 1,
        Expect::Limit => 2,
    }
}

#[test]
fn cases_have_names_of_their_own() {
    let names: Vec<_> = all().map(|case| case.name).collect();
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!(names.len(), unique.len());
}
