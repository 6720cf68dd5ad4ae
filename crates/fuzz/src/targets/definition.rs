//! Definitions of pools, as files in a directory.
//!
//! An accepted definition is written and read again unchanged.

use std::fs;
use std::sync::LazyLock;

use extant_pool::{Definition, Definitions, PoolName};
use tempfile::TempDir;

static DIRECTORY: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a directory"));

pub(crate) fn target(data: &[u8]) {
    let path = DIRECTORY.path();
    fs::write(path.join("p.json"), data).expect("a file");
    let name: PoolName = "p".parse().expect("it is one");
    let definitions = Definitions::in_directory(path);
    let listed = definitions.list().expect("the directory can be read");
    assert_eq!(listed.len(), 1);
    let Ok(definition) = definitions.get(&name) else {
        assert!(listed[0].1.is_err());
        return;
    };
    assert_eq!(definition.name(), Some(&name));
    let json = serde_json::to_vec(&definition).expect("plain data");
    let again: Definition = serde_json::from_slice(&json).expect("it was written here");
    assert_eq!(again, definition);
}
