//! The documents of `--json`: one schema version, one way to name things, and errors that are JSON
//! too.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};
use serde_json::{Value, json};

use crate::support::{Answer, MIB, create, extant, run, schema};
use crate::{all_commands, options_of};

/// Commands that need more than a session, or a known disk below, to print a result: their
/// documents are checked in their own tests.
const ELSEWHERE: [&str; 5] = ["assign", "image mount", "job resume", "mount", "serve"];
/// qemu-img prints a list.
const LISTS: [&str; 2] = ["image info --json --backing-chain", "image map"];

/// One line a command; the text before `--json` names it. `IMAGE` is an ext4 file system.
const SESSION: &str = "\
probe --json .
create --json a.raw 2MiB
create --json b.qcow2 2MiB
create --json --preallocation off thin.raw 2MiB
create --json --preallocation off thin.qcow2 2MiB
materialize --json thin.raw
map --json a.raw b.qcow2
map --json --through a.raw
probe --json --through .
image create --json d.qcow2 1MiB
image info --json b.qcow2
image info --json a.raw
image info --json --backing-chain b.qcow2
image check --json b.qcow2
image map --json b.qcow2
image measure --json --size 1MiB
image resize --json b.qcow2 +1MiB
image convert --json b.qcow2 c.raw
image materialize --json thin.qcow2
fs mkfs --json fs.img 32MiB
fs put --json fs.img a.raw /a
fs get --json fs.img /a back.raw
fs ls --json fs.img
fs tree --json fs.img
fs stat --json fs.img /a
fs df --json fs.img
fs freefrag --json fs.img
fs frag --json fs.img
fs dump --json fs.img
fs stats --json fs.img
fs dump --groups --journal --json fs.img
fs check --json fs.img
create --json --in fs.img /b.qcow2 1MiB
materialize --json --in fs.img /a
map --json --in fs.img /a
pool define --json --config-dir config p pool
pool define --json --config-dir config gone config
pool list --json --config-dir config
pool info --json ./pool
pool refresh --json ./pool
vol create --json ./pool v.raw 1MiB
vol create --json ./pool w.qcow2 1MiB
vol list --json ./pool
vol info --json ./pool v.raw
vol info --json ./pool w.qcow2
vol resize --json ./pool v.raw 2MiB
vol clone --json ./pool v.raw x.raw
vol materialize --json ./pool v.raw
vol wipe --json ./pool x.raw
vol upload --json ./pool y.raw a.raw
vol download --json ./pool y.raw z.raw
job list --json ./pool
job show --json ./pool 1
job wait --json ./pool 1
job watch --json ./pool 1
vol create --json --detach --rate 1M ./pool slow.raw 64MiB
job cancel --json ./pool 9
vol format --json ./pool v.raw raw
vol delete --json ./pool x.raw
pool delete --json --config-dir config p
";

/// `create` of `create --json ...`; `fs ls` of `fs ls --json ...`.
fn name_of(line: &str) -> String {
    let words = line.split(' ').take_while(|word| !word.starts_with('-'));
    words.collect::<Vec<_>>().join(" ")
}

/// Runs the session in `directory`: the commands and their documents.
#[track_caller]
fn documents(directory: &Path) -> Vec<(String, Value)> {
    fs::create_dir(directory.join("pool")).unwrap();
    let mut documents = Vec::new();
    for line in SESSION.lines() {
        let answer = run(extant().args(line.split(' ')).current_dir(directory)).success();
        let texts: Vec<&str> = match name_of(line).as_str() {
            "job watch" => answer.stdout.lines().collect(),
            _ => vec![&answer.stdout],
        };
        for text in texts {
            let document = serde_json::from_str(text);
            let document = document.unwrap_or_else(|error| panic!("{line}: {error} in {text}"));
            documents.push((line.to_owned(), document));
        }
    }
    documents
}

/// Every object in `value`.
fn for_each_object(value: &Value, see: &mut dyn FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            see(fields);
            fields
                .values()
                .for_each(|below| for_each_object(below, see));
        }
        Value::Array(items) => items.iter().for_each(|below| for_each_object(below, see)),
        _ => {}
    }
}

#[test]
fn documents_of_all_commands_are_objects_with_a_schema_version_and_named_alike() {
    require!(requires::tool("mke2fs"));
    let work = Workdir::new();
    for (line, document) in documents(work.path()) {
        let name = name_of(&line);
        if LISTS.iter().any(|list| line.starts_with(list)) {
            continue;
        }
        assert_eq!(document["schema_version"], 1, "{line}: {document}");
        // Names of qemu-img have hyphens.
        let is_qemu = line.starts_with("image ");
        // The fields of structures on the disk have the names of their specification.
        if name == "fs dump" {
            continue;
        }
        for_each_object(&document, &mut |fields| {
            for (field, value) in fields {
                let is_snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                let is_named = field.chars().all(is_snake) || is_qemu;
                assert!(is_named, "{line}: {field}");
                if field == "mode" && name != "probe" {
                    let is_octal =
                        |mode: &str| mode.len() == 4 && u32::from_str_radix(mode, 8).is_ok();
                    assert!(
                        value.as_str().is_some_and(is_octal),
                        "{line}: {field}: {value}"
                    );
                }
                if ["created", "ended", "modified"].contains(&field.as_str()) {
                    assert!(
                        value.is_string() || value.is_null(),
                        "{line}: {field}: {value}"
                    );
                }
                if field.ends_with("_bytes") {
                    assert!(
                        value.is_u64() || value.is_null(),
                        "{line}: {field}: {value}"
                    );
                }
            }
        });
    }
}

#[test]
fn documents_are_those_of_the_schema() {
    require!(requires::tool("mke2fs"));
    let work = Workdir::new();
    let documents = documents(work.path());
    let names: Vec<_> = documents.iter().map(|(line, _)| name_of(line)).collect();
    let documents = documents.iter().map(|(_, document)| document);
    schema::assert_valid(names.iter().map(String::as_str).zip(documents));
    let errors = [
        run(extant().args(["image", "info", "--json", "none"])).refused_json(4, "not-found"),
        run(extant().args(["create", "--json"])).refused_json(2, "invalid-argument"),
    ];
    schema::assert_valid(errors.iter().map(|error| ("error", error)));
}

#[test]
#[should_panic(expected = "vol-format $.format")]
fn document_of_another_form_is_not_valid() {
    require!(requires::python_module("jsonschema"));
    let base = json!({"schema_version": 1, "pool": "p", "name": "v", "path": "p/v"});
    let with = |format: &str| {
        let mut document = base.clone();
        document["format"] = format.into();
        document
    };
    schema::assert_valid([("vol format", &with("raw"))]);
    schema::assert_valid([("vol format", &with("vmdk"))]);
}

#[test]
fn schema_has_a_definition_for_every_command_with_json() {
    let schema = schema::definitions();
    for words in all_commands() {
        if options_of(&words).contains("--json") {
            let name = words.join("-");
            assert!(schema["$defs"].get(&name).is_some(), "{name}");
        }
    }
}

#[test]
fn every_command_with_json_is_in_the_session() {
    let tried: BTreeSet<String> = SESSION.lines().map(name_of).collect();
    for words in all_commands() {
        let name = words.join(" ");
        if options_of(&words).contains("--json") && !ELSEWHERE.contains(&name.as_str()) {
            assert!(tried.contains(&name), "{name}");
        }
    }
}

#[test]
fn errors_are_json_on_stderr_with_the_same_status() {
    let work = Workdir::new();
    let directory = work.directory("f");
    create(&directory.join("a"), "64KiB", &[]).success();
    for (line, kind) in [
        ("create a 64KiB", "already-exists"),
        ("create none/a 64KiB", "not-found"),
        ("materialize none", "not-found"),
        ("image info none", "not-found"),
        ("image check none", "not-found"),
        ("fs ls none", "not-found"),
        ("fs check none", "not-found"),
        ("fs mkfs none", "not-found"),
        ("vol info ./none v", "not-found"),
        ("job show . 77", "not-found"),
        ("pool define p none --kind ext4 --config-dir c", "not-found"),
        ("serve none --socket s", "not-found"),
        ("mount none .", "not-found"),
    ] {
        let command = || {
            let mut command = extant();
            command.args(line.split(' ')).current_dir(&directory);
            command
        };
        let words = run(&mut command());
        let code = words.code.expect(line);
        assert_ne!(code, 0, "{words}");
        if !options_of(&line.split(' ').take(2).collect::<Vec<_>>()).contains("--json") {
            continue;
        }
        let error = run(command().arg("--json")).refused_json(code, kind);
        let message = error["message"].as_str().unwrap();
        assert_eq!(words.stderr, format!("extant: {message}\n"), "{line}");
    }
}

#[test]
fn wrong_arguments_are_json_too() {
    let answer = run(extant().args(["create", "a", "1X", "--json"]));
    let error = answer.refused_json(2, "invalid-argument");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("'X' is not a unit")
    );
    assert_eq!(error["path"], Value::Null);
    run(extant().args(["--json", "nonsense"])).refused_json(2, "invalid-argument");
    // Behind `--` it is a name.
    run(extant().args(["create", "--", "--json"])).refused(2, &["SIZE"]);
}

#[test]
fn map_of_several_files_is_one_json_document_with_each_error() {
    let work = Workdir::new();
    create(&work.path().join("a"), "64KiB", &[]).success();
    let answer = run(extant()
        .args(["map", "--json", "none", "a"])
        .current_dir(work.path()));
    assert_eq!(answer.code, Some(1), "{answer}");
    assert_eq!(answer.json()["schema_version"], 1, "{answer}");
    assert_eq!(answer.text("/files/0/path"), "a");
    let error: Value = serde_json::from_str(&answer.stderr).expect(&answer.stderr);
    assert_eq!(
        (&error["event"], &error["kind"]),
        (&"error".into(), &"not-found".into())
    );
}

/// A child that is killed with the value.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn line_of_a_server_has_a_schema_version() {
    let work = Workdir::new();
    create(&work.path().join("a"), "64KiB", &[]).success();
    let mut serve = Command::new("timeout");
    serve
        .args([
            "30",
            env!("CARGO_BIN_EXE_extant"),
            "serve",
            "a",
            "--json",
            "--socket",
            "s",
        ])
        .current_dir(work.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut server = Child(serve.spawn().unwrap());
    let mut line = String::new();
    let mut stdout = BufReader::new(server.0.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).expect(&line);
    assert_eq!(ready["schema_version"], 1, "{line}");
    assert_eq!(ready["event"], "serving", "{line}");
    let mut kill = command::tool("kill");
    command::must(kill.arg(ready["pid"].to_string()));
}

/// Fields that a raw file and an image share.
fn shape(answer: &Answer) -> BTreeSet<String> {
    let document = answer.json();
    let fields = document.as_object().expect("an object").keys();
    fields.filter(|field| *field != "qcow2").cloned().collect()
}

#[test]
fn file_and_image_have_the_same_fields_wherever_they_are_made() {
    let work = Workdir::new();
    let made = |name: &str| create(&work.path().join(name), "1MiB", &["--json"]).success();
    let (file, image) = (made("a.raw"), made("b.qcow2"));
    assert_eq!(shape(&file), shape(&image));
    assert_eq!(file.number("/capacity_bytes"), MIB);
    assert_eq!(image.number("/capacity_bytes"), MIB);
}
