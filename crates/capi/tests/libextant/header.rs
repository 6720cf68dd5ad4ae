//! The header in the repository is the one that cbindgen makes.

use std::env;
use std::fs;
use std::path::Path;

#[test]
fn header_is_generated_from_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let made = cbindgen::generate_with_config(root, config).unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let path = root.join("include/extant.h");
    if env::var_os("EXTANT_UPDATE_HEADER").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let found = fs::read(&path).unwrap();
    assert!(
        found == text,
        "include/extant.h is not of this code: EXTANT_UPDATE_HEADER=1 cargo test -p extant-capi header"
    );
}
