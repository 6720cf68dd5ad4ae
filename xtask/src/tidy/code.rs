//! Rust text without comments and literals: comments and literals become spaces.
//!
//! Every line keeps its number, so findings in the result are places in the
//! source. This is a scanner and no parser: it knows as much of Rust as is
//! needed not to take a word in a comment or a string for code.

/// `source` with a space in place of each character of comments, strings and characters.
pub fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = at + blank_length(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        }
        while at < end {
            code.push(if chars[at] == '\n' { '\n' } else { ' ' });
            at += 1;
        }
    }
    code
}

/// The bytes of `code` inside modules compiled for tests only.
pub fn test_modules(code: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("#[cfg(") {
        let Some(close) = code[at..].find(")]") else {
            continue;
        };
        let condition = &code[at..at + close];
        let for_tests = words(condition).any(|(_, word)| word == "test");
        if !for_tests || condition.contains("not(test") {
            continue;
        }
        let item = &code[at + close + 2..];
        let Some(open) = item.find(['{', ';']) else {
            continue;
        };
        if item[open..].starts_with('{') && words(&item[..open]).any(|(_, word)| word == "mod") {
            let start = at + close + 2 + open;
            found.push(start..start + block_length(&code[start..]));
        }
    }
    found
}

/// The words of a text with their places; a word has the form of an identifier.
pub fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(move |c| !is_word(c))
        .filter(|word| !word.is_empty())
        .map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
}

/// The line number, from 1, of byte `at` of `text`.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Length of the block that `code` starts with, with its braces.
fn block_length(code: &str) -> usize {
    let mut depth = 0usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// Length of the comment or literal that starts at `at`; 0 when there is none.
fn blank_length(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    match rest {
        ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment_length(rest),
        ['"', ..] => quoted_length(rest, '"'),
        ['\'', '\\', ..] => quoted_length(rest, '\''),
        ['\'', _, '\'', ..] => 3,
        ['r' | 'b' | 'c', ..] if at == 0 || !is_word(chars[at - 1]) => raw_string_length(rest),
        _ => 0,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment_length(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted_length(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// `r"..."`, `br#"..."#` and their like.
fn raw_string_length(rest: &[char]) -> usize {
    let prefix = match rest {
        ['r', ..] => 1,
        ['b' | 'c', 'r', ..] => 2,
        _ => return 0,
    };
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&'"') {
        return 0;
    }
    let closes = |at: usize| {
        let after = rest[at + 1..].iter().take(hashes);
        rest[at] == '"' && after.filter(|c| **c == '#').count() == hashes
    };
    let close = (open + 1..rest.len()).find(|at| closes(*at));
    close.map_or(rest.len(), |at| at + 1 + hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(source: &str) -> Vec<String> {
        let code = code_only(source);
        words(&code).map(|(_, word)| word.to_owned()).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        for blank in [
            "// word",
            "/* a /* nested */ word */",
            r#""a \" word""#,
            r###"r#"a " word"#"###,
            r#"br"word \""#,
            r"'\''",
            "'\"'",
        ] {
            assert_eq!(words_of(&format!("x {blank}\ny")), ["x", "y"], "{blank}");
        }
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        let words = words_of("fn f<'a>(x: &'a r#type) {}");
        assert_eq!(words, ["fn", "f", "a", "x", "a", "r", "type"]);
        assert_eq!(words_of("bar\"text\" y"), ["bar", "y"]);
    }

    #[test]
    fn lines_keep_their_numbers() {
        let source = "/* one\ntwo */ \"three\n\" four";
        let code = code_only(source);
        assert_eq!(line_of(&code, code.find("four").unwrap()), 3);
    }

    #[test]
    fn test_module_ends_with_its_brace() {
        let code = code_only("#[cfg(test)]\nmod tests { fn f() { \"}\" } inside }\nafter");
        let [range] = test_modules(&code).try_into().unwrap();
        assert!(range.contains(&code.find("inside").unwrap()));
        assert!(!range.contains(&code.find("after").unwrap()));
    }

    #[test]
    fn module_for_other_configurations_is_no_test_module() {
        for attribute in [
            "#[cfg(not(test))]",
            "#[cfg(unix)]",
            "#[cfg(test)] use a::{b};",
        ] {
            let code = format!("{attribute}\nmod tests {{ }}");
            assert_eq!(test_modules(&code), [], "{attribute}");
        }
    }
}
