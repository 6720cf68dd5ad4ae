//! The library of this build, and C programs that use it.

use std::env;
use std::path::{Path, PathBuf};

use extant_testkit::command::{must, tool};

/// The directory with `libextant.so` and `libextant.a`: that of this test program.
pub fn directory() -> PathBuf {
    let program = env::current_exe().unwrap();
    let directory = program.parent().unwrap().to_owned();
    assert!(
        directory.join("libextant.so").is_file(),
        "{}",
        directory.display()
    );
    directory
}

/// The directory of this crate.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Kind of library that is linked.
#[derive(Clone, Copy, Debug)]
pub enum Linked {
    Shared,
    Static,
}

/// Compiles a program of `tests/c` into `place`, without a warning.
#[track_caller]
pub fn compile(name: &str, linked: Linked, place: &Path) -> PathBuf {
    let program = place.join(format!("{name}-{linked:?}"));
    let mut cc = tool("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]);
    cc.arg(&program).arg("-I").arg(root().join("include"));
    cc.arg(root().join("tests/c").join(name).with_extension("c"));
    match linked {
        Linked::Shared => cc.arg("-L").arg(directory()).arg("-lextant"),
        Linked::Static => {
            cc.arg(directory().join("libextant.a"))
                .args(["-lpthread", "-lm", "-ldl"])
        }
    };
    must(&mut cc);
    program
}
