//! The library of this build, and C programs that use it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use extant_testkit::command::{must, tool};

/// The soname of the library as users get it.
pub const SONAME: &str = "libextant.so.0";

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

/// The shared library as users get it, made in `place`: with soname and versions.
pub fn link(place: &Path) -> PathBuf {
    let library = place.join(SONAME);
    let mut link = Command::new(root().join("link.sh"));
    link.arg(directory().join("libextant.a"));
    must(link.arg(&library).arg(SONAME));
    library
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

/// The source of an example for users.
pub fn example(name: &str) -> PathBuf {
    root()
        .join("../../examples/c")
        .join(name)
        .with_extension("c")
}

/// Compiles a program into `place`, without a warning.
#[track_caller]
pub fn compile(source: &Path, linked: Linked, place: &Path) -> PathBuf {
    let name = source.file_stem().unwrap().display();
    let program = place.join(format!("{name}-{linked:?}"));
    let mut cc = tool("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]);
    cc.arg(&program).arg("-I").arg(root().join("include"));
    cc.arg(source);
    match linked {
        Linked::Shared => cc
            .arg("-L")
            .arg(directory())
            .args(["-lextant", "-lpthread"]),
        Linked::Static => {
            cc.arg(directory().join("libextant.a"))
                .args(["-lpthread", "-lm", "-ldl"])
        }
    };
    must(&mut cc);
    program
}
