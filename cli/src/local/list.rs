//! Takes where workers are, gives a file that says it to trainers for as long as nobody else writes there.
//!
//! Two `--serve` of one file would send each other's trainers to another pipeline. So a file that names a worker who answers is not taken,
//! and one that has other contents than were written last is left alone from then on.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use feedmill_client::{Endpoint, parse_list};
use feedmill_worker::whole_file::WholeFile;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::usage::Usage;

/// A worker of this machine that lives takes a connection at once.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// More addresses than any `--serve` writes are not asked.
const MOST_ASKED: usize = 256;

/// No list that `--serve` wrote has more bytes.
const MOST_BYTES: u64 = 1 << 20;

/// The file, and what this process wrote there last.
pub struct WorkerList {
    file: WholeFile,
    written: String,
    /// Somebody else writes there.
    lost: bool,
}

impl WorkerList {
    /// Takes the file at `path` and empties it: nobody is there yet. Addresses of workers that are gone are no hindrance.
    ///
    /// # Errors
    /// A file that cannot be written, that is no list of workers, or that names one who answers.
    pub async fn take(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let cannot = |error: io::Error| {
            let remedy = "name a file that feedmill may make";
            Usage::of(anyhow!("--workers-file: cannot write {shown}: {error}; {remedy}"))
        };
        let file = WholeFile::at(path).map_err(cannot)?;
        let no_list = || {
            let remedy = "name another file, this one would be overwritten";
            Usage::of(anyhow!(
                "--workers-file: {shown} has something else than addresses of workers; {remedy}"
            ))
        };
        let there = read(file.path()).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => no_list(),
            _ => cannot(error),
        })?;
        let listed = parse_list(there.as_deref().unwrap_or_default()).map_err(|_| no_list())?;
        if let Some(lives) = first_that_answers(listed).await {
            return Err(Usage::of(anyhow!(
                "--workers-file: {shown} names {lives}, which answers: another feedmill local --serve writes there; end that one, or name \
                 another file"
            )));
        }
        let mut list = Self { file, written: String::new(), lost: false };
        list.replace(String::new()).map_err(cannot)?;
        Ok(list)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Writes where the workers are, unless somebody else has written there; whoever reads meanwhile finds the former list or this one.
    /// Gives what is to be said of that, once.
    ///
    /// # Errors
    /// No room, no permission.
    pub fn write(&mut self, workers: &[Endpoint]) -> anyhow::Result<Option<String>> {
        if self.lost {
            return Ok(None);
        }
        let shown = self.file.path().display().to_string();
        let there = read(self.file.path()).map(|there| there.is_none_or(|text| text == self.written));
        if !there.unwrap_or(false) {
            self.lost = true;
            return Ok(Some(format!(
                "{shown} is not as it was written here: somebody else writes there, and it is left alone from now on; end one of both, and \
                 give each a file of its own"
            )));
        }
        let text = workers.iter().map(|endpoint| format!("{endpoint}\n")).collect();
        self.replace(text).with_context(|| format!("cannot write {shown}"))?;
        Ok(None)
    }

    fn replace(&mut self, text: String) -> io::Result<()> {
        self.file.replace(|out| out.write_all(text.as_bytes()))?;
        self.written = text;
        Ok(())
    }
}

/// What the file says; None when there is none.
fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is longer than any list"));
    }
    Ok(Some(text))
}

async fn first_that_answers(listed: Vec<Endpoint>) -> Option<Endpoint> {
    let mut asked = JoinSet::new();
    for endpoint in listed.into_iter().take(MOST_ASKED) {
        asked.spawn(async move {
            let connecting = TcpStream::connect((endpoint.host(), endpoint.port()));
            let answered = tokio::time::timeout(ANSWERS_WITHIN, connecting).await;
            matches!(answered, Ok(Ok(_))).then_some(endpoint)
        });
    }
    while let Some(joined) = asked.join_next().await {
        if let Ok(Some(lives)) = joined {
            return Some(lives);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn endpoint(listener: &TcpListener) -> Endpoint {
        listener.local_addr().unwrap().into()
    }

    async fn refused(path: &Path) -> String {
        let Err(error) = WorkerList::take(path).await else { panic!("it was taken") };
        assert!(error.is::<Usage>(), "{error:#}");
        error.to_string()
    }

    /// A second `--serve` of the same file sent the first one's trainers to another pipeline, without a word.
    #[tokio::test]
    async fn a_list_whose_workers_answer_is_not_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let worker = endpoint(&listener);
        std::fs::write(&path, format!("# fleet\nhttp://127.0.0.1:1\n{worker}\n")).unwrap();
        let error = refused(&path).await;
        for part in [path.to_str().unwrap(), &worker.to_string(), "name another file"] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
        assert!(std::fs::read_to_string(&path).unwrap().contains(&worker.to_string()), "it stays as it was");
        // As after a `--serve` that was killed.
        drop(listener);
        WorkerList::take(&path).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }

    #[tokio::test]
    async fn a_file_that_is_no_list_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipeline.yaml");
        for text in [&b"apiVersion: feedmill.dev/v1\n"[..], b"\xff\xfe"] {
            std::fs::write(&path, text).unwrap();
            assert!(refused(&path).await.contains("would be overwritten"));
            assert_eq!(std::fs::read(&path).unwrap(), text);
        }
    }

    /// The end of one `--serve` emptied the list of another.
    #[tokio::test]
    async fn a_list_that_somebody_else_writes_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers");
        let mut list = WorkerList::take(&path).await.unwrap();
        let [mine, other] = ["http://127.0.0.1:1", "http://127.0.0.1:2"].map(|url| url.parse().unwrap());
        let text = || std::fs::read_to_string(&path).unwrap();
        assert_eq!(list.write(std::slice::from_ref(&mine)).unwrap(), None);
        assert_eq!(text(), "http://127.0.0.1:1\n");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(list.write(&[other, mine.clone()]).unwrap(), None, "nobody else's is there");
        assert_eq!(text(), "http://127.0.0.1:2\nhttp://127.0.0.1:1\n");
        std::fs::write(&path, "http://127.0.0.1:3\n").unwrap();
        let said = list.write(&[]).unwrap().unwrap();
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        assert_eq!(list.write(&[mine]).unwrap(), None, "it is said once");
        assert_eq!(text(), "http://127.0.0.1:3\n");
    }
}
