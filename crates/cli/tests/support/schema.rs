//! Documents against the published schema, by Python's `jsonschema`.

use std::io::Write;
use std::process::Stdio;

use extant_testkit::requires::{self, PYTHON};
use extant_testkit::{command, require};
use serde_json::{Map, Value, json};

const SCHEMA: &str = include_str!("../../../../docs/formats/extant.schema.json");
/// Reads the schema and pairs of a definition's name and a document; prints what is wrong.
const CHECK: &str = "
import json, sys
from jsonschema import Draft202012Validator as Validator
schema, documents = json.load(sys.stdin)
Validator.check_schema(schema)
for name, document in documents:
    use = {'$defs': schema['$defs'], '$ref': '#/$defs/' + name, 'unevaluatedProperties': False}
    for error in Validator(use).iter_errors(document):
        causes = [cause.message[-300:] for cause in error.context]
        print(name, error.json_path, error.message[-300:], causes)
";

/// Every field of each document is in the schema's definition of its command, and has its type.
/// `vol create` of `("vol create", document)` is the command.
#[track_caller]
pub fn assert_valid<'a>(documents: impl IntoIterator<Item = (&'a str, &'a Value)>) {
    require!(requires::python_module("jsonschema"));
    let named = |(command, document): (&str, &Value)| json!([command.replace(' ', "-"), document]);
    let documents: Vec<_> = documents.into_iter().map(named).collect();
    let mut python = command::tool(PYTHON);
    python.args(["-c", CHECK]).stdin(Stdio::piped());
    let mut python = python.stdout(Stdio::piped()).spawn().expect("Python");
    let input = json!([closed(&definitions(), false), documents]).to_string();
    let mut stdin = python.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("it reads all");
    drop(stdin);
    let output = python.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

/// The schema, as published.
pub fn definitions() -> Value {
    serde_json::from_str(SCHEMA).expect("the schema is JSON")
}

/// The schema without permission for fields that it does not name. `is_use`: of a value, not of a
/// part that others are composed of.
fn closed(schema: &Value, is_use: bool) -> Value {
    let Value::Object(parts) = schema else {
        return schema.clone();
    };
    let by_name = |parts: &Value, is_use| -> Value {
        let parts = parts.as_object().expect("schemas by name");
        let closed = parts
            .iter()
            .map(|(name, part)| (name.clone(), closed(part, is_use)));
        closed.collect::<Map<_, _>>().into()
    };
    let list = |parts: &Value| -> Value {
        let parts = parts.as_array().expect("schemas");
        parts.iter().map(|part| closed(part, false)).collect()
    };
    let mut found: Map<String, Value> = parts
        .iter()
        .map(|(key, part)| {
            let part = match key.as_str() {
                "properties" => by_name(part, true),
                "$defs" => by_name(part, false),
                "items" => closed(part, true),
                "anyOf" | "allOf" => list(part),
                _ => part.clone(),
            };
            (key.clone(), part)
        })
        .collect();
    let is_open = ["$ref", "allOf", "anyOf", "properties"]
        .iter()
        .any(|key| parts.contains_key(*key));
    if is_use && is_open {
        found.insert("unevaluatedProperties".to_owned(), false.into());
    }
    found.into()
}
