//! The page of numbers, from the kept results.

use std::fmt::Write;

use serde_json::Value;

use crate::coverage::share;

/// A part of the page.
type Section = fn(&mut String, &Value);

const SECTIONS: [(&str, Section); 6] = [
    ("tests", tests),
    ("proof", proof),
    ("soak", soak),
    ("fuzz", fuzz),
    ("coverage", coverage),
    ("oracles", oracles),
];

/// The page, as Markdown.
pub fn render(results: &Value) -> String {
    let mut page = String::from(
        "# How it is tested, in numbers\n\n\
         Made by `cargo xtask evidence` from the data in [results/evidence](results/evidence), which is what ran.\n\
         How the tests work, and how to repeat one: [testing.md](testing.md).\n\n",
    );
    summary(&mut page, results);
    let mut missing = Vec::new();
    for (name, section) in SECTIONS {
        match &results[name] {
            Value::Null => missing.push(name),
            result => section(&mut page, result),
        }
    }
    if !missing.is_empty() {
        line(
            &mut page,
            format_args!("\nNo results are kept yet of: {}.", missing.join(", ")),
        );
    }
    page
}

fn summary(page: &mut String, results: &Value) {
    let rows = list(&results["proof"]["rows"]);
    let complete = || rows.iter().filter(|row| !is_sample(row));
    let sequences = sum(complete(), "sequences");
    let calls = sum(rows.iter(), "calls");
    let soak = list(&results["soak"]["programs"]);
    let cuts = sum(rows.iter(), "cuts") + sum(soak.iter(), "cuts");
    let executions = sum(list(&results["fuzz"]["targets"]).iter(), "executions");
    let seconds = results["soak"]["seconds"].as_u64().unwrap_or(0);
    let failed = results["soak"]["failures"].as_u64().unwrap_or(0);
    let lines = [
        (
            "tests",
            sum(list(&results["tests"]["levels"]).iter(), "tests").to_string(),
        ),
        (
            "short sequences of operations, complete",
            grouped(sequences),
        ),
        ("power cuts, in these and in the soak", grouped(cuts)),
        (
            "processes killed in the soak",
            grouped(sum(soak.iter(), "kills")),
        ),
        ("failing system calls", grouped(calls)),
        ("executions of fuzz targets", grouped(executions)),
        (
            "hours of soak",
            format!("{:.1}, {failed} rounds failed", hours(seconds)),
        ),
    ];
    page.push_str("| | |\n|---|---|\n");
    for (name, value) in lines.iter().filter(|(_, value)| value != "0") {
        line(page, format_args!("| {name} | {value} |"));
    }
}

fn tests(page: &mut String, tests: &Value) {
    heading(
        page,
        "Tests",
        tests,
        "The level of a test program is that of most of its tests.",
    );
    let levels = list(&tests["levels"]);
    page.push_str("| level | programs | tests |\n|---|---|---|\n");
    for level in levels {
        line(
            page,
            format_args!(
                "| {} | {} | {} |",
                text(level, "level"),
                number(level, "programs"),
                number(level, "tests")
            ),
        );
    }
    let all = |field| sum(levels.iter(), field);
    line(
        page,
        format_args!("| all | {} | {} |", all("programs"), all("tests")),
    );
}

fn is_sample(row: &Value) -> bool {
    text(row, "name").ends_with("sampled")
}

fn proof(page: &mut String, proof: &Value) {
    heading(
        page,
        "Short sequences and failing calls",
        proof,
        "`cargo xtask proof`: [every short sequence](testing.md#every-short-sequence) is cut at every device write; \
         each system call of a command fails once with each error.",
    );
    page.push_str("| | sequences | possible | cuts | equal cuts | by e2fsck or qemu-img | minutes | commit |\n|---|---|---|---|---|---|---|---|\n");
    let rows = list(&proof["rows"]);
    for row in rows.iter().filter(|row| row["calls"].is_null()) {
        let of = |field| grouped(number(row, field));
        let seconds = row["seconds"].as_f64().unwrap_or(0.0);
        line(
            page,
            format_args!(
                "| {} | {} | {} | {} | {} | {} | {:.1} | {}, {} |",
                text(row, "name"),
                of("sequences"),
                of("possible"),
                of("cuts"),
                of("equal"),
                of("by_oracle"),
                seconds / 60.0,
                text(row, "commit"),
                text(row, "date")
            ),
        );
    }
    for row in rows.iter().filter(|row| !row["calls"].is_null()) {
        let seconds = row["seconds"].as_f64().unwrap_or(0.0);
        line(
            page,
            format_args!(
                "\nFailing calls: {} of {}, in {:.1} minutes ({}, {}).",
                grouped(number(row, "calls")),
                grouped(number(row, "of")),
                seconds / 60.0,
                text(row, "commit"),
                text(row, "date")
            ),
        );
    }
}

fn soak(page: &mut String, soak: &Value) {
    let seconds = soak["seconds"].as_u64().unwrap_or(0);
    let about = format!(
        "`cargo xtask soak`: {:.2} hours, beginning with the seed {}.",
        hours(seconds),
        number(soak, "seed")
    );
    heading(page, "Soak", soak, &about);
    page.push_str("| program | rounds | minutes | cases | cuts | kills | failures |\n|---|---|---|---|---|---|---|\n");
    for program in list(&soak["programs"]) {
        let of = |field| grouped(number(program, field));
        line(
            page,
            format_args!(
                "| {} | {} | {:.1} | {} | {} | {} | {} |",
                text(program, "program"),
                of("rounds"),
                program["seconds"].as_f64().unwrap_or(0.0) / 60.0,
                of("cases"),
                of("cuts"),
                of("kills"),
                list(&program["failures"]).len()
            ),
        );
    }
}

fn fuzz(page: &mut String, fuzz: &Value) {
    heading(
        page,
        "Fuzzing",
        fuzz,
        "`cargo xtask fuzz`: executions and reached edges of [each target](testing.md#fuzzing).",
    );
    page.push_str("| target | executions | minutes | edges | features | kept inputs | failed inputs |\n|---|---|---|---|---|---|---|\n");
    for target in list(&fuzz["targets"]) {
        let of = |field| grouped(number(target, field));
        line(
            page,
            format_args!(
                "| {} | {} | {:.1} | {} | {} | {} | {} |",
                text(target, "target"),
                of("executions"),
                number(target, "seconds") as f64 / 60.0,
                of("edges"),
                of("features"),
                of("kept_inputs"),
                of("crashes")
            ),
        );
    }
}

fn coverage(page: &mut String, coverage: &Value) {
    page.push_str("\n## Coverage\n\n`cargo xtask coverage`: the share of each crate that its own tests reach; what they do not reach is\n[reviewed](testing.md#coverage).\n\n");
    page.push_str(
        "| crate | lines | regions | branches | functions | commit |\n|---|---|---|---|---|---|\n",
    );
    let empty = serde_json::Map::new();
    for (name, entry) in coverage.as_object().unwrap_or(&empty) {
        let of = |kind: &str| share(&entry[kind]);
        line(
            page,
            format_args!(
                "| {name} | {} | {} | {} | {} | {}, {} |",
                of("lines"),
                of("regions"),
                of("branches"),
                of("functions"),
                text(entry, "commit"),
                text(entry, "date")
            ),
        );
    }
}

fn oracles(page: &mut String, oracles: &Value) {
    let processors = number(oracles, "processors");
    heading(
        page,
        "Oracles",
        oracles,
        &format!(
            "Other programs that verify results, as on the machine of the runs, with {processors} processors."
        ),
    );
    page.push_str("| oracle | version | of |\n|---|---|---|\n");
    for oracle in list(&oracles["oracles"]) {
        line(
            page,
            format_args!(
                "| {} | {} | {} |",
                text(oracle, "oracle"),
                text(oracle, "version"),
                text(oracle, "purpose")
            ),
        );
    }
}

/// A heading, with commit and date of the results, unless each row has them.
fn heading(page: &mut String, name: &str, result: &Value, about: &str) {
    let stamp = [text(result, "date"), text(result, "commit")];
    let stamp: Vec<_> = stamp.into_iter().filter(|part| !part.is_empty()).collect();
    let stamp = match stamp.as_slice() {
        [] => String::new(),
        parts => format!(" ({})", parts.join(", ")),
    };
    line(page, format_args!("\n## {name}\n\n{about}{stamp}\n"));
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(page, "{text}").expect("a string takes any text");
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or(0)
}

fn sum<'v>(values: impl Iterator<Item = &'v Value>, field: &str) -> u64 {
    values.map(|value| number(value, field)).sum()
}

fn hours(seconds: u64) -> f64 {
    seconds as f64 / 3600.0
}

/// With commas.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_have_commas() {
        let pairs = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ];
        for (number, text) in pairs {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn summary_adds_complete_sequences_and_all_cuts() {
        let results = json!({
            "proof": { "rows": [
                { "name": "ext4, one operation", "sequences": 300, "cuts": 5000, "seconds": 60.0, "commit": "abc", "date": "2026-11-26" },
                { "name": "ext4, three operations, sampled", "sequences": 20000, "cuts": 70 },
                { "name": "failing calls", "calls": 7600, "of": 7600, "seconds": 150.0, "commit": "def", "date": "2026-11-27" },
            ] },
            "soak": { "seconds": 7200, "failures": 0, "programs": [{ "program": "power", "cuts": 7, "kills": 2 }] },
        });
        let page = render(&results);
        for line in [
            "| short sequences of operations, complete | 300 |",
            "| power cuts, in these and in the soak | 5,077 |",
            "| failing system calls | 7,600 |",
            "| hours of soak | 2.0, 0 rounds failed |",
            "once with each error.\n",
            "| ext4, one operation | 300 | 0 | 5,000 | 0 | 0 | 1.0 | abc, 2026-11-26 |",
            "Failing calls: 7,600 of 7,600, in 2.5 minutes (def, 2026-11-27).",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }
}
