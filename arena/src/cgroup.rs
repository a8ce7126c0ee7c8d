//! Takes the files in which the kernel describes the cgroup, gives its memory limit, and says
//! whether the budgets fit in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use feedmill_protocol::pipeline::PROGRAM_BYTES;

/// From here on a number means "no limit": cgroup v1 writes 2^63 rounded down to a page.
const NO_LIMIT: u64 = 1 << 62;

/// A setting and the bytes that it lets the process use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The setting's name, as people write it.
    pub setting: &'static str,
    /// Its bytes.
    pub bytes: u64,
}

/// The smallest memory limit that applies to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that the cgroup may use.
    pub bytes: u64,
    /// The file that says so: the process's own cgroup, or a parent's.
    pub file: PathBuf,
}

/// Why the budgets cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The budgets are larger than the memory limit.
    #[error(
        "{setting} = {bytes} bytes is too large: all budgets and {PROGRAM_BYTES} bytes of overhead need {needed} bytes, the memory limit in {} is {limit} bytes; lower {setting} to at most {fitting} bytes or raise the limit",
        file.display()
    )]
    DoesNotFit {
        /// The largest of the settings.
        setting: &'static str,
        /// Its bytes.
        bytes: u64,
        /// Bytes of all settings together, and the overhead.
        needed: u64,
        /// The limit.
        limit: u64,
        /// What the setting may be when the others stay; 0 when lowering it does not suffice.
        fitting: u64,
        /// Where the limit is written.
        file: PathBuf,
    },
    /// A file of the kernel could not be read.
    #[error("cannot read {} to find the memory limit", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A limit is not a number.
    #[error("the memory limit in {} is neither a number nor \"max\": {text:?}", file.display())]
    Parse {
        /// The file.
        file: PathBuf,
        /// What it holds.
        text: String,
    },
}

/// Checks that all demands and the overhead fit in the memory limit of this process's cgroup; the
/// answer is the limit, if there is one.
///
/// # Errors
/// They do not fit, or the limit cannot be read.
pub fn check_against_cgroup(demands: &[Demand]) -> Result<Option<MemoryLimit>, CgroupError> {
    let limit = memory_limit()?;
    if let Some(limit) = &limit {
        check_against_limit(demands, limit)?;
    }
    Ok(limit)
}

/// Checks that all demands and the overhead fit in a limit.
///
/// # Errors
/// They do not fit; the error names the largest of them.
pub fn check_against_limit(demands: &[Demand], limit: &MemoryLimit) -> Result<(), CgroupError> {
    let sum = |demands: &mut dyn Iterator<Item = &Demand>| {
        demands.fold(PROGRAM_BYTES, |sum, demand| sum.saturating_add(demand.bytes))
    };
    let needed = sum(&mut demands.iter());
    let Some((index, largest)) = demands.iter().enumerate().max_by_key(|(_, demand)| demand.bytes) else {
        return Ok(());
    };
    if needed <= limit.bytes {
        return Ok(());
    }
    let others = demands.iter().enumerate().filter(|(other, _)| *other != index);
    let fitting = limit.bytes.saturating_sub(sum(&mut others.map(|(_, demand)| demand)));
    Err(CgroupError::DoesNotFit {
        setting: largest.setting,
        bytes: largest.bytes,
        needed,
        limit: limit.bytes,
        fitting,
        file: limit.file.clone(),
    })
}

/// The smallest memory limit of this process's cgroup and of its parents, as far as they are
/// visible; none when nothing limits it.
///
/// # Errors
/// The kernel's files cannot be read or understood.
pub fn memory_limit() -> Result<Option<MemoryLimit>, CgroupError> {
    let read = |file: &str| {
        fs::read_to_string(file).map_err(|source| CgroupError::Read { file: PathBuf::from(file), source })
    };
    let files = limit_files(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?);
    let mut smallest: Option<MemoryLimit> = None;
    for file in files {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            // The root cgroup has no such file, and parents may be hidden.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                continue;
            }
            Err(source) => return Err(CgroupError::Read { file, source }),
        };
        let limit =
            parse_limit(&text).map_err(|()| CgroupError::Parse { file: file.clone(), text: text.clone() })?;
        if let Some(bytes) = limit
            && smallest.as_ref().is_none_or(|smallest| bytes < smallest.bytes)
        {
            smallest = Some(MemoryLimit { bytes, file });
        }
    }
    Ok(smallest)
}

/// The files that may hold a memory limit for the process that `cgroup` (`/proc/self/cgroup`)
/// describes, innermost first, given its mounts (`/proc/self/mountinfo`, see proc(5)).
fn limit_files(cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroup.lines() {
        // hierarchy id : controllers : path; version 2 has id 0 and no controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (name, is_mount): (_, fn(&Mount<'_>) -> bool) = if id == "0" && controllers.is_empty() {
            ("memory.max", |mount| mount.kind == "cgroup2")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("memory.limit_in_bytes", |mount| {
                mount.kind == "cgroup" && mount.options.split(',').any(|option| option == "memory")
            })
        } else {
            continue;
        };
        let Some(mount) = mountinfo.lines().filter_map(Mount::parse).find(is_mount) else {
            continue;
        };
        let top = PathBuf::from(unescape(mount.point));
        // Without a cgroup namespace the mount shows a part of the tree: its root is cut off. A
        // path outside of it cannot be seen, so the mount's own limit is what is left.
        let inside = Path::new(path).strip_prefix(unescape(mount.root)).unwrap_or(Path::new(""));
        let hidden = inside.components().any(|part| part == std::path::Component::ParentDir);
        let inside = if hidden { Path::new("") } else { inside };
        files.extend(inside.ancestors().map(|part| top.join(part).join(name)));
    }
    files
}

/// The fields of a line of mountinfo that matter here.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let mut right = right.split(' ');
        let (root, point) = (left.next()?, left.next()?);
        let (kind, options) = (right.next()?, right.nth(1)?);
        Some(Self { root, point, kind, options })
    }
}

/// Blanks in paths of mountinfo are written as octal.
fn unescape(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// A limit's bytes; none for "max" and what version 1 writes for it.
fn parse_limit(text: &str) -> Result<Option<u64>, ()> {
    match text.trim() {
        "max" => Ok(None),
        number => {
            let bytes: u64 = number.parse().map_err(|_| ())?;
            Ok((bytes < NO_LIMIT).then_some(bytes))
        }
    }
}

#[cfg(test)]
mod tests;
