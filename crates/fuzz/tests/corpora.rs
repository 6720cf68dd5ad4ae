//! Every kept input of every target, without instrumentation: within the limits of memory and time,
//! and without a panic in any thread.

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use extant_fuzz::TARGETS;

/// Generous, as the machine may be busy: under libFuzzer it is 5 seconds.
const INPUT_TIMEOUT: Duration = Duration::from_secs(60);

/// The first panic of any thread.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

fn inputs(target: &str) -> Vec<PathBuf> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let entries = fs::read_dir(corpora.join(target)).unwrap_or_else(|error| {
        panic!("{target} has no corpus: {error}");
    });
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Ends the process if an input takes too long.
fn watch() -> Sender<PathBuf> {
    let (announce, announced) = channel();
    thread::spawn(move || {
        let mut last = PathBuf::new();
        loop {
            match announced.recv_timeout(INPUT_TIMEOUT) {
                Ok(next) => last = next,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("no end of: {}", last.display());
                    std::process::abort();
                }
            }
        }
    });
    announce
}

#[test]
fn kept_inputs_keep_the_properties() {
    panic::set_hook(Box::new(|info| {
        let mut first = PANIC.lock().unwrap();
        first.get_or_insert_with(|| info.to_string());
    }));
    let announce = watch();
    let mut failed = Vec::new();
    for target in TARGETS {
        for path in inputs(target.name) {
            announce.send(path.clone()).unwrap();
            let data = fs::read(&path).unwrap();
            let ended = panic::catch_unwind(|| target.run(&data));
            let panicked = PANIC.lock().unwrap().take();
            if let Some(words) = panicked.or_else(|| ended.err().map(|_| String::new())) {
                let path = path.display();
                failed.push(format!("extant-fuzz {} {path}\n{words}", target.name));
            }
        }
    }
    let _ = panic::take_hook();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
