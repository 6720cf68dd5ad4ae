//! Start and end of a server, and its output.

use std::fs;

use extant_testkit::command::tool;
use extant_testkit::{require, requires};
use rustix::process::{Pid, Signal, kill_process};

use crate::stand::{Stand, said, size};
use crate::support::{MIB, extant, run, wait_until};

#[test]
fn foreground_server_prints_a_uri_for_each_export_and_ends_by_a_signal() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    stand.sparse("b b.raw", 2);
    let serving = stand.serve(&["a.raw", "data=b b.raw", "--listen", "127.0.0.1:0"]);
    let socket = serving.socket.clone();
    let answer = serving.end();
    assert_eq!(answer.stderr, "", "{answer}");
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{answer}");
    let socket = socket.display();
    assert_eq!(lines[0], format!("nbd+unix:///a.raw?socket={socket}"));
    assert!(lines[1].starts_with("nbd://127.0.0.1:") && lines[1].ends_with("/a.raw"));
    assert_eq!(lines[2], format!("nbd+unix:///data?socket={socket}"));
    assert!(!stand.path("s.pid").exists());
}

#[test]
fn background_server_is_reported_and_releases_descriptors_and_terminal() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let words = [
        "a.raw",
        "-r",
        "--socket",
        "s",
        "--fork",
        "--json",
        "--pid-file",
        "p",
    ];
    // A reader of all output reaches its end: no process keeps stdout or stderr open.
    let answer = run(&mut stand.command(&words)).success();
    assert_eq!(answer.stdout.lines().count(), 1, "{answer}");
    answer.valid_json("serve");
    assert_eq!(answer.text("/event"), "serving");
    assert_eq!(answer.text("/exports/0/name"), "a.raw");
    assert_eq!(answer.text("/exports/0/access"), "read-only");
    assert_eq!(answer.number("/exports/0/capacity_bytes"), MIB);
    assert_eq!(answer.text("/exports/0/aio"), "auto");
    let pid = answer.number("/pid");
    assert_eq!(
        fs::read_to_string(stand.path("p")).unwrap(),
        format!("{pid}\n")
    );
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(link("fd/2").to_str(), Some("/dev/null"));
    assert_eq!(link("cwd").to_str(), Some("/"));
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::TERM).unwrap();
    // It is somewhere else now, and finds them all the same.
    wait_until("the end", || {
        !stand.path("p").exists() && !stand.path("s").exists()
    });
}

#[test]
fn background_server_without_a_pid_file_prints_its_process() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let answer = run(&mut stand.command(&["a.raw", "--socket", "s", "--fork"]));
    let pid = answer.stderr.strip_prefix("extant: serving as process ");
    let pid = pid.and_then(|rest| rest.split(';').next()?.parse().ok());
    let pid = pid
        .and_then(Pid::from_raw)
        .unwrap_or_else(|| panic!("{answer}"));
    kill_process(pid, Signal::TERM).unwrap();
    wait_until("the end", || !stand.path("s").exists());
}

#[test]
fn background_server_that_cannot_start_reports_the_reason() {
    let stand = Stand::new();
    run(&mut stand.command(&["none.raw", "--socket", "s", "--fork"])).refused(4, &["none.raw"]);
}

#[test]
fn client_hands_over_a_socket_and_has_stdout_for_itself() {
    require!(requires::tool("nbdinfo"));
    let stand = Stand::new();
    stand.sparse("a.raw", 3);
    let mut nbdinfo = tool("nbdinfo");
    nbdinfo.current_dir(stand.work.path()).args(["--size", "["]);
    nbdinfo.arg(extant().get_program());
    let said = said(nbdinfo.args(["serve", "a.raw", "]"]));
    assert_eq!(said, format!("{}\n", 3 * MIB));
}

#[test]
fn client_that_connects_after_the_file_grew_sees_the_new_size() {
    require!(requires::tool("nbdinfo"));
    let stand = Stand::new();
    let file = stand.sparse("a.raw", 1);
    let serving = stand.serve(&["a.raw"]);
    assert_eq!(size(&serving.uri("a.raw")), MIB);
    crate::support::lengthen(&file, 5 * MIB);
    assert_eq!(size(&serving.uri("a.raw")), 5 * MIB);
    crate::support::lengthen(&file, 2 * MIB);
    assert_eq!(size(&serving.uri("a.raw")), 2 * MIB);
    serving.end();
}

#[test]
fn statistics_are_logged_on_a_signal_and_clients_on_request() {
    require!(requires::tool("qemu-io"));
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let mut serving = stand.serve(&["a.raw", "-v"]);
    serving.running.send(Signal::USR1);
    crate::stand::qemu_io(&serving.uri("a.raw"), &["write 0 64k"]);
    let answer = serving.end();
    for words in [
        "a.raw: no requests",
        "has opened export \"a.raw\"",
        "has left",
        "64 KiB",
    ] {
        assert!(answer.stderr.contains(words), "{words}: {answer}");
    }
    assert!(
        answer
            .stderr
            .lines()
            .all(|line| line.starts_with("extant: "))
    );
}

#[test]
fn public_port_without_tls_is_warned_of() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let serving = stand.serve(&["a.raw", "--listen", "0.0.0.0:0"]);
    let answer = serving.end();
    assert!(answer.stderr.contains("has no TLS"), "{answer}");
}

#[test]
fn second_signal_ends_a_server_whose_clients_hold_it_up() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let mut serving = stand.serve(&["a.raw"]);
    // Two at once: the first may not have been handled yet.
    serving.running.send(Signal::TERM);
    serving.running.send(Signal::INT);
    let answer = serving.running.wait();
    assert!([Some(0), Some(130)].contains(&answer.code), "{answer}");
}
