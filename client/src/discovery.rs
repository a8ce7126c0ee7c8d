//! Takes addresses, names and lists of addresses in files, gives the workers there are now.
//!
//! A name stands for all its addresses, as a headless service has one for each worker. Names are resolved and
//! files read again all the time; an answer that fails or is empty changes nothing, since workers that were
//! there a moment ago are more likely than none.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;

use crate::error::ClientError;
use crate::settings::Endpoint;

/// A list with more bytes is none: 100,000 addresses have about 2.5 MB.
const MAX_LIST_BYTES: u64 = 4 << 20;

/// Where workers are looked for, and what was found.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    given: Vec<Endpoint>,
    lists: BTreeMap<PathBuf, List>,
    names: BTreeMap<Endpoint, Name>,
}

#[derive(Debug, Default)]
struct List {
    stamp: Option<Stamp>,
    endpoints: Vec<Endpoint>,
    fault: Option<String>,
}

/// By this a change of a file is seen.
type Stamp = (SystemTime, u64);

#[derive(Debug, Default)]
struct Name {
    addresses: Vec<SocketAddr>,
    fault: Option<String>,
    due: Option<Instant>,
}

/// What is to be looked at now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Errands {
    names: Vec<Endpoint>,
    lists: Vec<(PathBuf, Option<Stamp>)>,
}

/// What was found out.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    names: Vec<(Endpoint, io::Result<Vec<SocketAddr>>)>,
    lists: Vec<(PathBuf, io::Result<Content>)>,
}

/// None = the file is the one that was read before.
type Content = Option<(Stamp, String)>;

impl Sources {
    /// These addresses and names, and lists in these files.
    pub(crate) fn new(given: Vec<Endpoint>, lists: &[PathBuf]) -> Self {
        let lists = lists.iter().map(|path| (path.clone(), List::default())).collect();
        Self { given, lists, names: BTreeMap::new() }
    }

    /// Other addresses and names from now on; lists stay.
    pub(crate) fn give(&mut self, given: Vec<Endpoint>) {
        self.given = given;
    }

    /// True when there is anything to look for again.
    pub(crate) fn change(&self) -> bool {
        !self.lists.is_empty() || self.all().any(|endpoint| address_of(endpoint).is_none())
    }

    /// The workers, sorted, each address once.
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        let mut found: Vec<Endpoint> = Vec::new();
        for endpoint in self.all() {
            match self.names.get(endpoint) {
                _ if address_of(endpoint).is_some() => found.push(endpoint.clone()),
                Some(name) => found.extend(name.addresses.iter().map(|address| endpoint.at(*address))),
                None => {}
            }
        }
        found.sort_unstable();
        found.dedup_by(|a, b| a.is_same_address(b));
        found
    }

    /// What could not be found, and why.
    pub(crate) fn faults(&self) -> Vec<(String, String)> {
        let names = self.names.iter().filter_map(|(name, found)| {
            let fault = || found.fault.clone().unwrap_or_else(|| "its name is not resolved yet".into());
            Some((name.to_string(), found.addresses.is_empty().then(fault)?))
        });
        let lists = self.lists.iter().filter_map(|(path, list)| {
            let fault = || list.fault.clone().unwrap_or_else(|| "it is not read yet".into());
            Some((format!("file:{}", path.display()), list.endpoints.is_empty().then(fault)?))
        });
        names.chain(lists).collect()
    }

    /// What is to be looked at now: all files, and the names whose time has come, or all of them when nobody
    /// can be asked. Their next time comes after `again`.
    pub(crate) fn errands(&mut self, now: Instant, again: Duration, urgent: bool) -> Errands {
        let wanted: Vec<Endpoint> =
            self.all().filter(|endpoint| address_of(endpoint).is_none()).cloned().collect();
        self.names.retain(|name, _| wanted.contains(name));
        let mut names = Vec::new();
        for endpoint in wanted {
            let name = self.names.entry(endpoint.clone()).or_default();
            if urgent || name.due.is_none_or(|due| due <= now) {
                name.due = Some(now + again);
                names.push(endpoint);
            }
        }
        names.dedup();
        let lists = self.lists.iter().map(|(path, list)| (path.clone(), list.stamp)).collect();
        Errands { names, lists }
    }

    /// Takes over what was found.
    pub(crate) fn found(&mut self, findings: Findings) {
        for (endpoint, answer) in findings.names {
            let Some(name) = self.names.get_mut(&endpoint) else { continue };
            match answer {
                Ok(addresses) if !addresses.is_empty() => {
                    name.addresses = addresses;
                    name.fault = None;
                }
                Ok(_) => name.fault = Some("the name has no addresses".into()),
                Err(error) => name.fault = Some(error.to_string()),
            }
            if let Some(fault) = &name.fault {
                tracing::debug!(name = %endpoint, fault, "name was not resolved");
            }
        }
        for (path, answer) in findings.lists {
            let Some(list) = self.lists.get_mut(&path) else { continue };
            let parsed = match answer {
                Ok(None) => continue,
                Ok(Some((stamp, text))) => {
                    // What is wrong with this content is said once.
                    list.stamp = Some(stamp);
                    parse_list(&text).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            match parsed {
                Ok(endpoints) if !endpoints.is_empty() => {
                    list.endpoints = endpoints;
                    list.fault = None;
                }
                other => {
                    let fault = other.err().unwrap_or_else(|| "it names no worker".into());
                    if list.fault.as_ref() != Some(&fault) {
                        tracing::warn!(file = %path.display(), fault, "list of workers was not read; the one before stays");
                    }
                    list.fault = Some(fault);
                }
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Endpoint> {
        self.given.iter().chain(self.lists.values().flat_map(|list| &list.endpoints))
    }
}

fn address_of(endpoint: &Endpoint) -> Option<IpAddr> {
    endpoint.host().parse().ok()
}

/// The workers of a list, as it stands in a file: addresses separated by commas, spaces or ends of lines; `#` begins a comment.
///
/// # Errors
/// Something that is no address.
pub fn parse_list(text: &str) -> Result<Vec<Endpoint>, ClientError> {
    text.lines()
        .flat_map(|line| line.split('#').next().unwrap_or_default().split([',', ' ', '\t', '\r']))
        .filter(|address| !address.is_empty())
        .map(str::parse)
        .collect()
}

/// Does the errands; `resolve` gives a name's addresses.
pub(crate) async fn run<F>(errands: Errands, resolve: impl Fn(Endpoint) -> F) -> Findings
where
    F: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    let names = join_all(errands.names.into_iter().map(|endpoint| {
        let asked = resolve(endpoint.clone());
        async move { (endpoint, asked.await) }
    }));
    let lists = join_all(errands.lists.into_iter().map(|(path, stamp)| async move {
        let read = read_list(&path, stamp).await;
        (path, read)
    }));
    let (names, lists) = tokio::join!(names, lists);
    Findings { names, lists }
}

/// The system's own resolver.
pub(crate) async fn resolve(endpoint: Endpoint) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((endpoint.host(), endpoint.port())).await?.collect())
}

async fn read_list(path: &Path, known: Option<Stamp>) -> io::Result<Content> {
    let facts = tokio::fs::metadata(path).await?;
    let stamp = (facts.modified()?, facts.len());
    if known == Some(stamp) {
        return Ok(None);
    }
    // What is no usual file has more bytes than it says.
    let mut text = String::new();
    let file = tokio::fs::File::open(path).await?;
    file.take(MAX_LIST_BYTES + 1).read_to_string(&mut text).await?;
    if text.len() as u64 > MAX_LIST_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_LIST_BYTES} bytes")));
    }
    Ok(Some((stamp, text)))
}

#[cfg(test)]
mod tests;
