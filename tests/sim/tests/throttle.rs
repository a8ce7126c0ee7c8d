//! Processes that are throttled, by the program itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// The letter by which Linux says what a process does: T while it is stopped.
fn state(process: &str) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit(')').next()?.trim_start().chars().next()
}

#[test]
fn children_of_a_process_that_died_stayed_stopped() {
    let mut parent = Command::new("sh")
        // It would end with the reader of its output, if that were a pipe.
        .args(["-c", "tail -f /dev/null >/dev/null & echo $!; wait"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut child).unwrap();
    let child = child.trim();
    let mut throttle = Command::new(env!("CARGO_BIN_EXE_feedmill-sim"))
        .args(["--throttle", &parent.id().to_string()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed, it would tell of the end as well.
    let open = throttle.stdin.take();
    while state(child) != Some('T') {
        assert!(state(child).is_some(), "the child has ended");
        assert!(throttle.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(throttle.wait().unwrap().success());
    let found = state(child);
    kill_process(Pid::from_raw(child.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert!(found.is_some_and(|state| state != 'T'), "{found:?}");
    drop(open);
}
