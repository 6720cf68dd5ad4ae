//! Rules for prose: banned phrases, subjects of comments, and the width of comments.
//!
//! The phrases are in `banned.txt`, each with its replacement. They are searched for in comments,
//! in string literals and in documents, without case, and across line ends. Code in backticks and
//! in fenced blocks is no prose.

use super::Finding;
use super::code::{code_only, line_of, words};
use super::tree::Tree;

const BANNED: &str = include_str!("banned.txt");
const COMMENT_COLUMNS_MAX: usize = 100;

/// A phrase and its replacement.
struct Phrase {
    words: Vec<&'static str>,
    instead: &'static str,
}

/// Checks every Rust file and every document.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let phrases = phrases();
    let mut findings = Vec::new();
    for (path, text) in tree.texts(".rs") {
        findings.extend(wide_comments(path, text));
        findings.extend(comments_without_noun(path, text));
        findings.extend(banned(path, &prose_of_rust(text), &phrases));
    }
    for (path, text) in tree.texts(".md") {
        findings.extend(banned(path, &prose_of_markdown(text), &phrases));
    }
    findings
}

fn phrases() -> Vec<Phrase> {
    let lines = BANNED.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(" => "));
    pairs
        .map(|(phrase, instead)| Phrase {
            words: phrase.split_whitespace().collect(),
            instead,
        })
        .collect()
}

fn wide_comments(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let columns = line.chars().count();
        let comment = line.trim_start().strip_prefix("//");
        // Tables, code blocks and addresses cannot be wrapped.
        let can_wrap = comment.is_some_and(|comment| {
            let text = comment.trim_start_matches(['/', '!']);
            !text.starts_with(" |") && !text.starts_with("     ") && !line.contains("://")
        });
        if can_wrap && columns > COMMENT_COLUMNS_MAX {
            let message = format!("comment of {columns} columns; {COMMENT_COLUMNS_MAX} at most");
            findings.push(Finding::at_line(path, number, message));
        }
    }
    findings
}

/// A description begins with the noun that names the item, not with a relative clause.
fn comments_without_noun(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        let comment = line.trim_start().strip_prefix("//");
        let comment = comment.map(|comment| comment.trim_start_matches(['/', '!']).trim_start());
        let word = comment.and_then(|comment| comment.split(' ').next());
        if !is_inside && matches!(word, Some("What" | "Who")) {
            let message = "comment begins with a relative clause; begin with the noun";
            findings.push(Finding::at_line(path, number, message.to_owned()));
        }
        is_inside = comment.is_some_and(|comment| !comment.is_empty());
    }
    findings
}

/// The comments and literals of a Rust file: everything else becomes spaces.
fn prose_of_rust(text: &str) -> String {
    let code = code_only(text);
    let mut prose = String::with_capacity(text.len());
    for (original, kept) in text.chars().zip(code.chars()) {
        let is_prose = original == '\n' || kept != original;
        prose.push(if is_prose { original } else { ' ' });
    }
    let mut lines: Vec<String> = Vec::new();
    for line in prose.lines() {
        let marks = line.len() - line.trim_start().trim_start_matches(['/', '!']).len();
        lines.push(format!("{}{}", " ".repeat(marks), &line[marks..]));
    }
    without_code_spans(&lines.join("\n"))
}

/// A document without its fenced blocks.
fn prose_of_markdown(text: &str) -> String {
    let mut is_code = false;
    let lines: Vec<&str> = text
        .lines()
        .map(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            if is_code || is_fence || line.starts_with("    ") {
                ""
            } else {
                line
            }
        })
        .collect();
    without_code_spans(&lines.join("\n"))
}

/// Replaces text in backticks, within a line, by a sign that joins no phrase.
fn without_code_spans(text: &str) -> String {
    let line = |line: &str| {
        let mut kept = String::with_capacity(line.len());
        for (number, part) in line.split('`').enumerate() {
            if number % 2 == 0 {
                kept.push_str(part);
            } else {
                kept.push('`');
            }
        }
        kept
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn banned(path: &str, prose: &str, phrases: &[Phrase]) -> Vec<Finding> {
    let found: Vec<(usize, &str)> = words(prose).collect();
    let mut findings = Vec::new();
    for start in 0..found.len() {
        for phrase in phrases
            .iter()
            .filter(|phrase| begins(prose, &found[start..], phrase))
        {
            let (shown, instead) = (phrase.words.join(" "), phrase.instead);
            let message = format!("\"{shown}\": write {instead}");
            let line = line_of(prose, found[start].0);
            findings.push(Finding::at_line(path, line, message));
        }
    }
    findings
}

/// Whether `found` begins with the words of the phrase, with nothing but white space between them.
fn begins(prose: &str, found: &[(usize, &str)], phrase: &Phrase) -> bool {
    let mut end = None;
    phrase.words.iter().enumerate().all(|(number, wanted)| {
        let Some((at, word)) = found.get(number) else {
            return false;
        };
        if phrase.words.len() == 1 && is_part_of_a_name(&prose[..*at], &prose[at + word.len()..]) {
            return false;
        }
        let joined = end.is_none_or(|end: usize| prose[end..*at].trim().is_empty());
        end = Some(at + word.len());
        joined && word.eq_ignore_ascii_case(wanted)
    })
}

/// Whether a word between these texts is a path, an argument or a name in quotes.
fn is_part_of_a_name(before: &str, after: &str) -> bool {
    let quoted = before.ends_with('"') && after.starts_with('"');
    quoted || before.ends_with(['/', '{', '=']) || after.starts_with(['/', '}', '='])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let found = check(&Tree::of(&[(path, text)]));
        found.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn phrase_is_found_in_comments_strings_and_documents_across_lines() {
        let phrase = concat!("so", " many");
        for text in [
            format!("//! x\n// {phrase} y\nfn f() {{}}\n"),
            format!("//! x\nconst A: &str = \"a {phrase}\";\n"),
            "//! x\n/// So\n/// many blocks\nfn f() {}\n".replace("///", "//"),
        ] {
            let found = messages("crates/a/src/b.rs", &text);
            assert_eq!(found.len(), 1, "{text}");
            assert!(found[0].starts_with("crates/a/src/b.rs:2: "), "{found:?}");
        }
        assert_eq!(messages("docs/a.md", &format!("a\n{phrase} b")).len(), 1);
    }

    #[test]
    fn identifiers_code_and_longer_words_are_no_phrases() {
        for text in [
            concat!("fn ane", "w() { folde", "r.li", "es(); }"),
            "const A: &str = \"/folder/x {folder} uid=nobody\";",
            "// `folder` and shoulders, relies, untold",
            "const A: &str = \"so\"; const B: &str = \"many\";",
        ] {
            assert_eq!(messages("a.rs", text), [""; 0], "{text}");
        }
        assert_eq!(messages("a.md", "```\nanew\n```\nok"), [""; 0]);
    }

    #[test]
    fn comment_wider_than_the_limit_is_found() {
        let wide = "x".repeat(COMMENT_COLUMNS_MAX - 3);
        assert_eq!(messages("a.rs", &format!("// {wide}")), [""; 0]);
        let found = messages("a.rs", &format!("    //! {wide}"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(messages("a.rs", &format!("// https://x {wide}")), [""; 0]);
    }

    #[test]
    fn every_line_of_the_list_has_a_replacement() {
        let lines = BANNED.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(lines.count(), phrases().len());
    }

    #[test]
    fn comment_that_begins_with_a_relative_clause_is_found() {
        let text =
            "/// What is read.\nfn a() {}\n/// Counts\n/// What follows.\n// Who reads.\n\n//! Who";
        let found = comments_without_noun("a.rs", text);
        let lines: Vec<_> = found.iter().map(Finding::to_string).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("a.rs:1:") && lines[1].starts_with("a.rs:7:"));
    }
}
