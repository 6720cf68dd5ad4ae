//! Packages of an unoptimised build. `cargo xtask dist packages --check` also installs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs of the Debian packages with which packages are made.
const TOOLS: [&str; 5] = [
    "dh",
    "dh_python3",
    "dpkg-buildpackage",
    "lintian",
    "rpmbuild",
];

fn has_tools() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = TOOLS.iter().find(|&&tool| {
        !std::env::split_paths(&path).any(|directory| directory.join(tool).is_file())
    });
    let Some(missing) = missing else {
        return true;
    };
    assert!(
        std::env::var_os("EXTANT_TEST_STRICT").is_none(),
        "{missing} is not installed"
    );
    eprintln!("skipped: {missing} is not installed");
    false
}

fn output(program: &str, words: &[&str], file: &Path) -> String {
    let output = Command::new(program)
        .args(words)
        .arg(file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Where the packages are: those of this kind by their names.
fn packages(extension: &str, name: &[&str]) -> BTreeMap<String, PathBuf> {
    let directory = Path::new(env!("CARGO_BIN_EXE_xtask")).parent().unwrap();
    let directory = directory.with_file_name("quick-packages");
    let entries = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let packages = entries.filter(|path| path.extension().is_some_and(|end| end == extension));
    let (program, words) = name.split_first().unwrap();
    packages
        .map(|path| (output(program, words, &path), path))
        .collect()
}

#[test]
fn packages_divide_all_files_and_lintian_finds_no_error() {
    if !has_tools() {
        return;
    }
    let mut dist = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let made = dist.args(["dist", "packages", "--quick"]).output().unwrap();
    // An error of lintian, and a file that no package has, fail it.
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );

    let show = ["dpkg-deb", "--show", "--showformat=${Package}"];
    let debs = packages("deb", &show);
    let names: Vec<_> = debs.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["extant", "libextant-dev", "libextant0", "python3-extant"]
    );
    let contents = |name: &str| output("dpkg-deb", &["--contents"], &debs[name]);
    for (name, file) in [
        ("extant", "./usr/bin/extant\n"),
        ("extant", "./usr/sbin/umount.fuse.extant -> ../bin/extant\n"),
        ("extant", "./usr/lib/systemd/system/extant-serve@.socket\n"),
        ("libextant0", "/libextant.so.0 -> libextant.so.0."),
        ("libextant-dev", "/libextant.so -> libextant.so.0\n"),
        ("libextant-dev", "/pkgconfig/extant.pc\n"),
        (
            "python3-extant",
            "./usr/lib/python3/dist-packages/extant/__init__.py\n",
        ),
    ] {
        let contents = contents(name);
        assert!(contents.contains(file), "{name} has no {file}: {contents}");
    }
    let depends = |name: &str| {
        output(
            "dpkg-deb",
            &["--show", "--showformat=${Depends}"],
            &debs[name],
        )
    };
    assert!(
        depends("extant").contains("libc6 (>= 2."),
        "{}",
        depends("extant")
    );
    assert!(depends("libextant-dev").contains("libextant0 (= "));
    let symbols = Command::new("dpkg-deb")
        .arg("--info")
        .arg(&debs["libextant0"])
        .arg("symbols")
        .output()
        .unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    assert!(
        symbols.starts_with("libextant.so.0 libextant0 #MINVER#\n"),
        "{symbols}"
    );
    assert!(symbols.contains(" extant_create@"), "{symbols}");

    let rpms = packages("rpm", &["rpm", "-qp", "--queryformat", "%{NAME}"]);
    let names: Vec<_> = rpms.keys().map(String::as_str).collect();
    assert_eq!(names, ["extant", "libextant-devel", "libextant0"]);
    for (name, package) in &rpms {
        let licences = output("rpm", &["-qp", "--licensefiles"], package);
        for file in ["LICENSE-MIT", "LICENSE-APACHE", "LICENSES-THIRD-PARTY"] {
            assert!(
                licences.contains(&format!("/{file}\n")),
                "{name}: {licences}"
            );
        }
    }
    let requires = output("rpm", &["-qp", "--requires"], &rpms["extant"]);
    assert!(requires.contains("libc.so.6(GLIBC_2.34)"), "{requires}");
    let provides = output("rpm", &["-qp", "--provides"], &rpms["libextant0"]);
    assert!(provides.contains("libextant.so.0()"), "{provides}");
    let scripts = output("rpm", &["-qp", "--scripts"], &rpms["libextant0"]);
    assert!(
        scripts.contains("postinstall program: /sbin/ldconfig"),
        "{scripts}"
    );
    let files = output("rpm", &["-qpl"], &rpms["libextant-devel"]);
    assert!(
        files.contains("/usr/lib64/pkgconfig/extant.pc\n"),
        "{files}"
    );
}
