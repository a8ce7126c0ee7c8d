//! Takes a process, lets its children run for a part of the time only: so a worker makes a part of what it could, and several on few cores
//! make as much each as one alone.
//!
//! A program of its own that ends, and lets everything run again, when its standard input is closed: whoever started it may die at any moment.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// So many children run one after another, so that a core never has two of them. A ninth shares the slot of the first.
const SLOTS: usize = 8;
/// And each for so long. Short against what a batch takes, long against what a timer is late.
const RUNS: Duration = Duration::from_millis(12);

/// Throttles the children of a process until that ends or standard input is closed.
pub fn throttle(parent: u32) {
    let closed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&closed);
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        seen.store(true, Ordering::Relaxed);
    });
    let mut throttled = Vec::new();
    while !closed.load(Ordering::Relaxed) {
        let Ok(children) = children(parent) else { break };
        // Those whose parent has died are another's now, and nobody else would let them run again.
        throttled.retain(|process| !children.contains(process));
        tell(&throttled, Signal::CONT);
        throttled = children.clone();
        tell(&children, Signal::STOP);
        for slot in 0..SLOTS {
            let now: Vec<Pid> = children.iter().skip(slot).step_by(SLOTS).copied().collect();
            tell(&now, Signal::CONT);
            std::thread::sleep(RUNS);
            tell(&now, Signal::STOP);
        }
    }
    tell(&throttled, Signal::CONT);
}

fn tell(processes: &[Pid], signal: Signal) {
    for process in processes {
        // One that has ended meanwhile needs no signal; it is a child of one that has not been waited for, or of none.
        let _ = kill_process(*process, signal);
    }
}

/// The processes whose parent this is.
pub(crate) fn children(parent: u32) -> std::io::Result<Vec<Pid>> {
    let mut all = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{parent}/task"))? {
        // A thread may end between the listing and the reading.
        let text = std::fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|id| id.parse().ok()).filter_map(Pid::from_raw));
    }
    Ok(all)
}
