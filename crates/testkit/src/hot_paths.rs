//! The `main` of programs that run one hot path at a time, for `cargo xtask instructions`.

use std::env;
use std::fmt::Display;
use std::process::ExitCode;

/// Without arguments prints the names of `paths`. With a name and a count passes both to `run`, and
/// prints its result, so that the work is not optimised away.
pub fn run_named<W: Copy, E: Display>(
    paths: &[(&str, W)],
    run: impl FnOnce(W, u64) -> Result<u64, E>,
) -> ExitCode {
    let fail = |message: String| {
        eprintln!("{message}");
        ExitCode::FAILURE
    };
    let args: Vec<String> = env::args().skip(1).collect();
    match args.as_slice() {
        [] => {
            paths.iter().for_each(|(name, _)| println!("{name}"));
            ExitCode::SUCCESS
        }
        [name, count] => {
            let path = paths.iter().find(|(known, _)| known == name);
            let (Some((_, work)), Ok(count)) = (path, count.parse()) else {
                return fail(format!("no path `{name}`, or `{count}` is no number"));
            };
            match run(*work, count) {
                Ok(result) => {
                    println!("{result}");
                    ExitCode::SUCCESS
                }
                Err(error) => fail(error.to_string()),
            }
        }
        _ => fail("usage: [NAME COUNT]".to_owned()),
    }
}
