//! `oracles packages` prints the Debian packages that the test kit needs, one a line;
//! `oracles prepare` fetches the newer fallocate and the guest. For `cargo xtask setup`.

use std::process::ExitCode;

use extant_testkit::guest::Guest;
use extant_testkit::{PACKAGES, newer};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["packages"] => {
            for package in PACKAGES {
                println!("{package}");
            }
            ExitCode::SUCCESS
        }
        ["prepare"] => prepare(),
        _ => {
            eprintln!("usage: oracles packages | prepare");
            ExitCode::from(2)
        }
    }
}

fn prepare() -> ExitCode {
    for part in ["newer fallocate", "guest"] {
        eprintln!("oracles: {part}");
        let result = match part {
            "guest" => Guest::prepare(),
            _ => newer::prepare(),
        };
        if let Err(error) = result {
            eprintln!("oracles: {part}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
