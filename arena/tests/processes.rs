//! The arena among several processes. This file's test program starts itself as the child.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use feedmill_arena::{Arena, ArenaSettings, InheritedArena, RegionWriter, Urgency};
use futures_util::FutureExt;

/// Tells the program that it is the child, and what to do.
const ROLE: &str = "FEEDMILL_ARENA_TEST_ROLE";

/// An inheritable descriptor is inherited by every child that starts meanwhile, so the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn arena() -> Arc<Arena> {
    Arena::create(ArenaSettings { bytes: 64 << 20 }).unwrap()
}

fn writer(arena: &Arc<Arena>, len: usize) -> RegionWriter {
    let reservation = arena.reserve(len, &Urgency::new(0)).now_or_never().unwrap().unwrap();
    reservation.begin_fill().unwrap()
}

/// Runs the test `as_child` in a process of its own.
fn child(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "as_child", "--nocapture"]).env(ROLE, role);
    command
}

/// Does nothing, unless this process is a child.
#[test]
fn as_child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut words = role.split(' ');
    match words.next() {
        Some("copy") => {
            let mut numbers = words.map(|word| word.parse::<usize>().unwrap());
            let (from, to, len) = (numbers.next().unwrap(), numbers.next().unwrap(), numbers.next().unwrap());
            let fd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
            let inherited = InheritedArena::from_fd(fd);
            let mut bytes = vec![0; len];
            inherited.read_at(from, &mut bytes).unwrap();
            bytes.reverse();
            inherited.write_at(to, &bytes).unwrap();
            // The same file by its number, as for a child that uses its standard streams.
            let mut again = vec![0; len];
            InheritedArena::open(0).unwrap().read_at(to, &mut again).unwrap();
            assert_eq!(again, bytes);
            // Nor can a child cut the file, which would kill the parent at its next access.
            assert!(inherited.write_at(usize::MAX, &bytes).is_err());
            assert!(fs::File::options().write(true).truncate(true).open("/proc/self/fd/0").is_err());
        }
        Some("hold") => {
            let arena = arena();
            let mut writer = writer(&arena, 32 << 20);
            writer.as_mut_slice().fill(1);
            println!("arena is filled");
            // Until the parent kills this process, or is gone itself.
            let _ = std::io::stdin().read(&mut [0]);
        }
        _ => panic!("unknown role {role}"),
    }
}

#[test]
fn a_child_reads_and_writes_regions_by_reference() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let arena = arena();
    let mut source = writer(&arena, 100_000);
    for (index, byte) in source.as_mut_slice().iter_mut().enumerate() {
        *byte = (index % 251) as u8;
    }
    let source = source.finish().lease().unwrap();
    let target = writer(&arena, 100_000);
    let role = format!("copy {} {} 100000", source.offset(), target.offset());
    let status = child(&role)
        .stdin(Stdio::from(arena.inheritable_fd().unwrap()))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let target = target.finish().lease().unwrap();
    assert!(target.iter().eq(source.iter().rev()));
}

/// The inodes of the arenas that a process has open.
fn arenas_of(process: &Path) -> Vec<(u64, u64)> {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return Vec::new();
    };
    descriptors
        .filter_map(|descriptor| {
            let path = descriptor.ok()?.path();
            let name = fs::read_link(&path).ok()?;
            let is_arena = name.to_str()?.starts_with("/memfd:feedmill-arena");
            let file = fs::metadata(path).ok()?;
            is_arena.then(|| (file.dev(), file.ino()))
        })
        .collect()
}

fn all_arenas() -> Vec<(u64, u64)> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.flat_map(|process| arenas_of(&process.path())).collect()
}

fn shared_memory_of(process: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_killed_process_leaves_nothing() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut process = child("hold").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    assert!(output.lines().any(|line| line.unwrap().contains("arena is filled")));

    let held = arenas_of(Path::new(&format!("/proc/{}", process.id())));
    assert_eq!(held.len(), 1);
    assert!(all_arenas().contains(&held[0]));
    assert!(shared_memory_of(&process) >= 32 << 20);

    process.kill().unwrap();
    process.wait().unwrap();
    // No descriptor refers to the file, and it never had a name in any file system.
    assert!(!all_arenas().contains(&held[0]));
    for folder in ["/dev/shm", "/tmp"] {
        let names = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let left = names.filter(|file| file.file_name().to_string_lossy().contains("feedmill-arena"));
        assert_eq!(left.count(), 0, "in {folder}");
    }
}
