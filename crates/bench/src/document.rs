//! docs/benchmarks.md as data: the method of each bench, the meaning of its goals, known traps.
//!
//! The document is the only place of these texts. It is part of the program, so that a report has
//! the texts that belong to its code.

use std::collections::BTreeMap;

const TEXT: &str = include_str!("../../../docs/benchmarks.md");

/// The row of a goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentedGoal {
    /// Bench, name, bound.
    pub key: [String; 3],
    /// In Markdown.
    pub meaning: String,
}

/// Every row of the table of goals.
pub fn goals() -> impl Iterator<Item = DocumentedGoal> {
    table(TEXT, "| bench | goal |")
        .into_iter()
        .map(|[bench, goal, bound, meaning]| DocumentedGoal {
            key: [bench, goal, bound],
            meaning,
        })
}

/// The row of a bench in the table of methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// In Markdown, as the others.
    pub what: String,
    /// The other tools that are measured.
    pub peers: String,
    /// Disk space and time that the bench takes.
    pub files: String,
}

/// The methods, by bench.
pub fn methods() -> BTreeMap<String, Method> {
    let rows = table(TEXT, "| bench | what |").into_iter();
    rows.map(|[bench, what, peers, files]| (bench, Method { what, peers, files }))
        .collect()
}

/// The rules that all measurements follow, in Markdown.
pub fn rules() -> &'static str {
    let section = TEXT.split("\n## How it is measured\n").nth(1);
    let rules = section.and_then(|text| text.split("\n\n|").next());
    rules.unwrap_or_default().trim()
}

/// The traps that name `bench` in their heading, each as an item of a list in Markdown.
pub fn traps(bench: &str) -> Vec<&'static str> {
    let section = TEXT.split("\n## Traps\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let name = format!("`{bench}`");
    let items = section.split("\n- ").skip(1);
    items
        .filter(|item| {
            // `**Title** (benches). Text`
            let benches = item
                .split("** (")
                .nth(1)
                .and_then(|rest| rest.split(')').next());
            benches.is_some_and(|benches| benches.contains(&name))
        })
        .map(str::trim)
        .collect()
}

/// The cells of every row of the table whose heading starts with `heading`.
fn table(text: &str, heading: &str) -> Vec<[String; 4]> {
    let from_table = text
        .lines()
        .skip_while(|line| !line.starts_with(heading))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let rows = from_table.map(|line| {
        let line = line.strip_prefix('|').unwrap_or(line);
        let mut cells = line.split('|').map(str::trim);
        let mut name = || {
            let cell = cells.next().unwrap_or_default();
            // A name alone; other cells may begin and end with code.
            let name = cell
                .strip_prefix('`')
                .and_then(|cell| cell.strip_suffix('`'));
            name.filter(|name| !name.contains('`'))
                .unwrap_or(cell)
                .to_owned()
        };
        [name(), name(), name(), name()]
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches;

    #[test]
    fn table_is_found_among_others() {
        let document = "| a | b |\n|--|--|\n| 1 | 2 |\n\n| bench | goal | bound | meaning |\n\
            |---|---|---|---|\n| `written` | `x` | at least 1.2 | `a` and `b` |\n\nmore | text\n";
        let row = ["written", "x", "at least 1.2", "`a` and `b`"].map(str::to_owned);
        assert_eq!(table(document, "| bench | goal |"), [row]);
    }

    #[test]
    fn every_bench_has_a_method() {
        let methods = methods();
        for bench in benches::ALL {
            assert!(methods.contains_key(bench.name()), "{}", bench.name());
        }
        assert_eq!(methods.len(), benches::ALL.len());
    }

    #[test]
    fn rules_and_traps_are_found() {
        assert!(rules().starts_with("- Methods alternate"), "{}", rules());
        assert!(!rules().contains('|'));
        let traps = traps("mballoc");
        assert!(traps.len() > 2, "{traps:?}");
        assert!(traps.iter().all(|trap| trap.starts_with("**")));
    }
}
