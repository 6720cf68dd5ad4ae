//! Arguments that can never be right.

use extant_testkit::workdir::Workdir;

use crate::support::{assert_names, create, extant, run};

#[test]
fn size_that_is_none_is_refused_with_the_reason() {
    let work = Workdir::new();
    let directory = work.directory("f");
    for (size, why) in [
        ("0", "at least 1"),
        ("-1", "negative"),
        ("-5G", "-5"),
        ("abc", "not a number"),
        ("", "not a number"),
        ("10X", "not a unit"),
        ("10Gi2", "not a unit"),
        ("1e9", "'e9' is not a unit"),
        ("1e30", "not a unit"),
        ("1.2.3", "not a number"),
        ("0.5", "whole number of bytes"),
        ("16E", "64 bits"),
        ("99999999999999999999", "64 bits"),
    ] {
        create(&directory.join("a"), size, &[]).refused(2, &[why]);
    }
    assert_names(&directory, &[]);
}

#[test]
fn size_past_the_largest_file_of_linux_is_too_large() {
    let work = Workdir::new();
    let directory = work.directory("f");
    for size in ["8E", "9223372036854775808", "18446744073709551615"] {
        create(&directory.join("a"), size, &[]).refused(3, &["/a: "]);
    }
    assert_names(&directory, &[]);
}

#[test]
fn options_that_contradict_are_refused() {
    let work = Workdir::new();
    let directory = work.directory("f");
    for (options, why) in [
        (&["--allocation", "2MiB"][..], "more than the size"),
        (
            &["--preallocation", "off", "--allocation", "4k"],
            "falloc or full",
        ),
        (&["--preallocation", "metadata"], "metadata"),
        (&["--rate", "0"], "never end"),
        (&["--rate", "fast"], "not a number"),
        (&["--mode", "9"], "octal"),
        (&["--mode", "17777"], "octal"),
        (&["--progress", "loud"], "loud"),
        (&["--no-such-option"], "--no-such-option"),
    ] {
        create(&directory.join("a"), "1MiB", options).refused(2, &[why]);
    }
    assert_names(&directory, &[]);
}

#[test]
fn missing_arguments_and_commands_are_refused_on_one_line() {
    run(extant().args(["create", "a"])).refused(2, &["SIZE"]);
    run(extant().args(["create", "", "1M"])).refused(2, &["PATH"]);
    run(extant().args(["crate", "a", "1M"])).refused(2, &["crate"]);
    run(extant().args(["materialize"])).refused(2, &["FILE"]);
}

#[test]
fn word_that_is_like_another_one_is_named() {
    for (words, meant) in [
        (&["creat", "x", "1M"][..], "'create'"),
        (&["vol", "lits", "."], "'list'"),
        (
            &["create", "x", "1M", "--preallocatoin", "off"],
            "'--preallocation'",
        ),
        (&["create", "x", "1M", "--preallocation", "fulll"], "'full'"),
    ] {
        let meant = format!("did you mean {meant}?");
        run(extant().args(words)).refused(2, &[&meant]);
    }
    run(extant().arg("xyzzy")).refused(2, &["xyzzy", "; try --help"]);
}

#[test]
fn quiet_says_nothing_but_errors() {
    let work = Workdir::new();
    let file = work.path().join("a");
    let answer = create(&file, "1MiB", &["-q", "--progress", "bar"]).success();
    assert_eq!(answer.stdout, "", "{answer}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 1 << 20);
    create(&file, "1MiB", &["--quiet"]).refused(4, &["/a: "]);
    create(&file, "1MiB", &["--quiet", "--json"]).refused_json(2, "invalid-argument");
}

#[test]
fn range_of_materialize_past_all_sizes_is_refused() {
    let work = Workdir::new();
    let file = work.path().join("a");
    std::fs::write(&file, "data").unwrap();
    let ends = ["-o", "1", "-l", "18446744073709551615"];
    crate::support::materialize(&file, &ends).refused(2, &["/a: ", "2^64"]);
    crate::support::materialize(&file, &["-o", "-1"]).refused(2, &["negative"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"data");
}
