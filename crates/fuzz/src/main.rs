//! One target under libFuzzer, or its inputs one by one.
//!
//! Built by `cargo xtask fuzz` with the feature `libfuzzer`, libFuzzer has the `main` and the
//! arguments, and `EXTANT_FUZZ_TARGET` names the target. Built as usual, `extant-fuzz TARGET
//! FILE...` runs inputs, such as one that failed, without instrumentation.

#![forbid(unsafe_code)]
#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
use std::sync::LazyLock;

#[cfg(feature = "libfuzzer")]
static TARGET: LazyLock<&extant_fuzz::Target> = LazyLock::new(|| {
    let name = std::env::var("EXTANT_FUZZ_TARGET").expect("EXTANT_FUZZ_TARGET=TARGET");
    extant_fuzz::target(&name).unwrap_or_else(|| panic!("no target {name}"))
});

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET.run(data));

#[cfg(not(feature = "libfuzzer"))]
fn main() {
    let mut args = std::env::args().skip(1);
    let Some(target) = args.next().and_then(|name| extant_fuzz::target(&name)) else {
        for target in extant_fuzz::TARGETS {
            println!("{}", target.name);
        }
        return;
    };
    for path in args {
        println!("{path}");
        let data = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        target.run(&data);
    }
}
