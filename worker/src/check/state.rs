//! Takes counters as they grow, gives a file from which an interrupted check goes on; and the file of all bad records.
//!
//! The state says of what it is: the facts of every stream's plan and the options. Another check is refused, with what
//! differs. The file of bad records is cut to the length that belongs to the state.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use feedmill_protocol::plan::Plan;
use serde::{Deserialize, Serialize};

use super::tally::Tallies;
use super::{BadFound, CheckError};
use crate::whole_file::WholeFile;

/// Raised when the form of the state or the meaning of a counter changes.
const VERSION: u32 = 1;
/// Bad records that are kept for the report; the file has all of them.
const MAX_LISTED: usize = 10_000;

/// How far a check has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Chunks of text done, by data set.
    pub text: Vec<u64>,
    /// Chunks whose pictures are done, by data set.
    pub pictures: Vec<u64>,
    /// What was counted.
    pub tallies: Tallies,
    /// Bad records, at most [`MAX_LISTED`].
    pub bad: Vec<BadFound>,
    /// Bad records that are not in `bad`.
    pub unlisted: u64,
}

impl Done {
    pub(super) fn new(sets: usize, duplicates: bool) -> Self {
        Self {
            text: vec![0; sets],
            pictures: vec![0; sets],
            tallies: Tallies::new(sets, duplicates),
            bad: Vec::new(),
            unlisted: 0,
        }
    }
}

#[derive(Deserialize)]
struct Head {
    version: u32,
    facts: Plan,
}

#[derive(Deserialize)]
struct Saved {
    bad_bytes: Option<u64>,
    done: Done,
}

#[derive(Serialize)]
struct Saving<'a> {
    version: u32,
    facts: &'a Plan,
    bad_bytes: Option<u64>,
    done: &'a Done,
}

/// Where a check writes while it goes on.
pub struct Journal {
    state: Option<WholeFile>,
    bad: Option<BadFile>,
    facts: Plan,
}

struct BadFile {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
}

impl BadFile {
    /// Opens the file and cuts it to `keep` bytes.
    fn open(path: &Path, keep: u64) -> Result<Self, CheckError> {
        let failed = |source| CheckError::BadFile { path: path.to_owned(), source };
        let open = || -> io::Result<File> {
            let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
            if file.metadata()?.len() < keep {
                return Err(io::Error::other("it has become shorter since the state was written"));
            }
            file.set_len(keep)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let file = open().map_err(failed)?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), bytes: keep })
    }

    fn failed(&self, source: io::Error) -> CheckError {
        CheckError::BadFile { path: self.path.clone(), source }
    }
}

impl Journal {
    /// Opens state and bad file; what an earlier check had done is given back.
    ///
    /// # Errors
    /// A state of another check, or one that cannot be read; a bad file that cannot be written.
    pub(super) fn open(
        state: Option<&Path>,
        bad: Option<&Path>,
        facts: Plan,
    ) -> Result<(Self, Option<Done>), CheckError> {
        let file = |path: &Path| {
            WholeFile::at(path)
                .map_err(|error| CheckError::State { path: path.to_owned(), reason: error.to_string() })
        };
        let state = state.map(file).transpose()?;
        let saved = state.as_ref().map(|file| load(file.path(), &facts)).transpose()?.flatten();
        let keep = saved.as_ref().and_then(|saved| saved.bad_bytes);
        if let (Some(file), Some(_), None) = (&state, &saved, keep)
            && bad.is_some()
        {
            return Err(CheckError::OtherState {
                path: file.path().to_owned(),
                differences: vec!["--bad: was not asked for before".into()],
            });
        }
        let bad = bad.map(|path| BadFile::open(path, keep.unwrap_or(0))).transpose()?;
        let journal = Self { state, bad, facts };
        Ok((journal, saved.map(|saved| saved.done)))
    }

    /// Writes bad records down.
    pub(super) fn bad(&mut self, done: &mut Done, found: Vec<BadFound>) -> Result<(), CheckError> {
        for bad in found {
            if let Some(file) = &mut self.bad {
                // A plain struct always becomes JSON.
                let mut line = serde_json::to_vec(&bad).unwrap_or_default();
                line.push(b'\n');
                let written = file.file.write_all(&line);
                written.map_err(|error| file.failed(error))?;
                file.bytes += line.len() as u64;
            }
            if done.bad.len() < MAX_LISTED {
                done.bad.push(bad);
            } else {
                done.unlisted += 1;
            }
        }
        Ok(())
    }

    /// Writes everything that was done so far. A check that is ended in the middle leaves the state before.
    pub(super) fn save(&mut self, done: &Done) -> Result<(), CheckError> {
        let mut bad_bytes = None;
        if let Some(bad) = &mut self.bad {
            let flushed = bad.file.flush();
            flushed.map_err(|error| bad.failed(error))?;
            bad_bytes = Some(bad.bytes);
        }
        let Some(file) = &self.state else {
            return Ok(());
        };
        let saving = Saving { version: VERSION, facts: &self.facts, bad_bytes, done };
        write(file, &saving)
            .map_err(|error| CheckError::State { path: file.path().to_owned(), reason: error.to_string() })
    }

    /// Where the state is kept.
    pub(super) fn kept(self) -> KeptState {
        KeptState(self.state)
    }
}

/// The state of a check that has come to its end.
#[must_use = "a state that stays is gone on with"]
pub struct KeptState(Option<WholeFile>);

impl KeptState {
    /// Removes it, if there is one.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(self) -> Result<(), CheckError> {
        let Some(file) = self.0 else { return Ok(()) };
        std::fs::remove_file(file.path())
            .map_err(|error| CheckError::State { path: file.path().to_owned(), reason: error.to_string() })
    }
}

fn write(file: &WholeFile, saving: &Saving<'_>) -> io::Result<()> {
    file.replace(|out| Ok(serde_json::to_writer(out, saving)?))
}

fn load(path: &Path, facts: &Plan) -> Result<Option<Saved>, CheckError> {
    let unusable = |reason: String| CheckError::State { path: path.to_owned(), reason };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(error.to_string())),
    };
    let no_state = |error: serde_json::Error| unusable(format!("it is no state of a check: {error}"));
    let head: Head = serde_json::from_slice(&bytes).map_err(no_state)?;
    if head.version != VERSION {
        return Err(unusable(format!(
            "it was written by another version of feedmill (form {}, this is {VERSION}); remove it to begin anew",
            head.version
        )));
    }
    let differences: Vec<String> = facts
        .differences(&head.facts)
        .into_iter()
        .map(|(fact, now, before)| {
            let said =
                |value: Option<&serde_json::Value>| value.map_or("nothing".into(), ToString::to_string);
            format!("{fact}: {} now, {} before", said(now), said(before))
        })
        .collect();
    if !differences.is_empty() {
        return Err(CheckError::OtherState { path: path.to_owned(), differences });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(no_state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedmill_protocol::bad::BadClass;

    fn facts(seed: u64) -> Plan {
        let mut plan = Plan::new();
        plan.set("check.seed", seed);
        plan
    }

    fn bad(line: u64) -> BadFound {
        BadFound {
            set: 0,
            dataset: "a".into(),
            line,
            record: line - 1,
            class: BadClass::ImageMissing,
            key: Some("s3://b/k".into()),
            detail: "gone".into(),
            remedy: "upload".into(),
        }
    }

    #[test]
    fn what_was_done_comes_back_and_the_bad_file_is_cut_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (state, file) = (folder.path().join("state"), folder.path().join("bad.jsonl"));
        let (mut journal, before) = Journal::open(Some(&state), Some(&file), facts(1)).unwrap();
        assert!(before.is_none());
        let mut done = Done::new(2, true);
        done.text[1] = 3;
        journal.bad(&mut done, vec![bad(1), bad(2)]).unwrap();
        journal.save(&done).unwrap();
        let kept = std::fs::read(&file).unwrap();
        // Written after the state, and lost with the process.
        journal.bad(&mut done.clone(), vec![bad(3)]).unwrap();
        drop(journal);
        assert!(std::fs::read(&file).unwrap().len() > kept.len());
        let (mut journal, before) = Journal::open(Some(&state), Some(&file), facts(1)).unwrap();
        assert_eq!(before.as_ref(), Some(&done));
        assert_eq!(std::fs::read(&file).unwrap(), kept);
        journal.bad(&mut done, vec![bad(3)]).unwrap();
        journal.save(&done).unwrap();
        journal.kept().remove().unwrap();
        assert!(!state.exists());
        let lines = std::fs::read_to_string(&file).unwrap();
        let found: Vec<BadFound> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(found, [bad(1), bad(2), bad(3)]);
    }

    #[test]
    fn another_check_is_refused_with_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let (mut journal, _) = Journal::open(Some(&state), None, facts(1)).unwrap();
        journal.save(&Done::new(1, false)).unwrap();
        let refused = |bad: Option<&Path>, seed| match Journal::open(Some(&state), bad, facts(seed)) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it was taken"),
        };
        assert!(refused(None, 2).contains("check.seed: 2 now, 1 before"), "{}", refused(None, 2));
        assert!(refused(Some(&folder.path().join("bad")), 1).contains("--bad"));
        std::fs::write(&state, "{}").unwrap();
        assert!(refused(None, 1).contains("no state of a check"));
        std::fs::write(&state, r#"{"version": 99, "facts": {}}"#).unwrap();
        assert!(refused(None, 1).contains("another version"));
    }

    #[test]
    fn only_so_many_bad_records_are_kept() {
        let (mut journal, _) = Journal::open(None, None, facts(1)).unwrap();
        let mut done = Done::new(1, false);
        journal.bad(&mut done, (1..=MAX_LISTED as u64 + 5).map(bad).collect()).unwrap();
        assert_eq!((done.bad.len(), done.unlisted), (MAX_LISTED, 5));
    }
}
