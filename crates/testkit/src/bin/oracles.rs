//! `oracles packages` prints the Debian packages that the test kit needs, one a line;
//! `oracles prepare [--no-guest]` fetches the newer fallocate and the guest, for
//! `cargo xtask setup`; `oracles root SUITE` makes a minimal system of a suite of Debian and prints
//! its directory, for `cargo xtask dist --check`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use extant_testkit::guest::Guest;
use extant_testkit::lab;
use extant_testkit::requires::Requirement;
use extant_testkit::{PACKAGES, debian, newer};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let is_ready = match arguments[..] {
        ["packages"] => {
            for package in PACKAGES {
                println!("{package}");
            }
            true
        }
        ["prepare"] => prepare_fallocate() && prepare_guest(),
        ["prepare", "--no-guest"] => prepare_fallocate(),
        ["root", suite] => print_root(suite),
        _ => {
            eprintln!("usage: oracles packages | prepare [--no-guest] | root SUITE");
            return ExitCode::from(2);
        }
    };
    if is_ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn prepare_fallocate() -> bool {
    prepare("newer fallocate", &newer::requirement(), newer::prepare)
}

fn prepare_guest() -> bool {
    prepare("guest", &Guest::requirement(), Guest::prepare)
}

fn print_root(suite: &str) -> bool {
    match debian::root(suite) {
        Ok(directory) => {
            println!("{}", directory.display());
            true
        }
        Err(error) => {
            eprintln!("oracles: {suite}: {error}");
            false
        }
    }
}

/// Prints only if there is work.
fn prepare(part: &str, ready: &Requirement, make: impl Fn() -> lab::Result<()>) -> bool {
    if ready.is_met() {
        return true;
    }
    eprintln!("oracles: {part}");
    match make() {
        Ok(()) => true,
        Err(error) => {
            eprintln!("oracles: {part}: {error}");
            false
        }
    }
}
