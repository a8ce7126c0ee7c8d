//! Everything that decides bytes, and one digest over it.
//!
//! A plan is a sorted list of facts `path = value`: digests of the manifests, of tokenizer, template and
//! preprocessor configuration, every resolved setting or limit that can change a byte or make a record
//! bad, seed and order, and one integer per byte-defining component. Addresses, credentials, budgets,
//! concurrency, time-outs and the product's version are not in it. The digest is SHA-256 over the line
//! `feedmill-plan 1` and one line `path=value` per fact, where the value is JSON; so two plans can be held
//! against each other fact by fact.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::hash::hex;

/// One integer per byte-defining component, raised only when its goldens change.
pub const COMPONENTS: [(&str, u32); 7] = [
    ("order", 1),
    ("records", 1),
    ("decode", 1),
    ("resize", 1),
    ("text", 1),
    ("labels", 1),
    ("substitution", 1),
];

/// SHA-256 of a plan, written `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlanDigest([u8; 32]);

/// A text that is no plan digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plan digest is not of the form sha256:<64 hexadecimal digits>")]
pub struct PlanDigestError;

impl fmt::Display for PlanDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex(&self.0))
    }
}

impl FromStr for PlanDigest {
    type Err = PlanDigestError;

    fn from_str(text: &str) -> Result<Self, PlanDigestError> {
        let digits = text.strip_prefix("sha256:").ok_or(PlanDigestError)?;
        if digits.len() != 64 || !digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(PlanDigestError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| PlanDigestError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| PlanDigestError)?;
        }
        Ok(Self(bytes))
    }
}

/// The facts of one stream's plan.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    facts: BTreeMap<String, Value>,
}

impl Plan {
    /// A plan that holds the components' versions.
    #[must_use]
    pub fn new() -> Self {
        let mut plan = Self::default();
        for (component, version) in COMPONENTS {
            plan.set(format!("component.{component}"), version);
        }
        plan
    }

    /// Sets one fact.
    pub fn set(&mut self, path: impl Into<String>, value: impl Into<Value>) {
        self.facts.insert(path.into(), value.into());
    }

    /// The facts, sorted by path.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.facts.iter().map(|(path, value)| (path.as_str(), value))
    }

    /// The digest over all facts.
    #[must_use]
    pub fn digest(&self) -> PlanDigest {
        let mut hasher = Sha256::new();
        hasher.update(b"feedmill-plan 1\n");
        for (path, value) in &self.facts {
            hasher.update(format!("{}={value}\n", Value::from(path.as_str())).as_bytes());
        }
        PlanDigest(hasher.finalize().into())
    }

    /// The facts in which two plans differ: path, value here, value there.
    #[must_use]
    pub fn differences<'a>(
        &'a self,
        other: &'a Plan,
    ) -> Vec<(&'a str, Option<&'a Value>, Option<&'a Value>)> {
        let paths: std::collections::BTreeSet<&str> =
            self.facts.keys().chain(other.facts.keys()).map(String::as_str).collect();
        paths
            .into_iter()
            .map(|path| (path, self.facts.get(path), other.facts.get(path)))
            .filter(|(_, here, there)| here != there)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_knows_every_fact_and_its_path() {
        let mut base = Plan::new();
        base.set("seed", 42);
        let mut other = base.clone();
        other.set("seed", 43);
        assert_ne!(base.digest(), other.digest());
        assert_eq!(base.differences(&other).len(), 1);
        let mut renamed = Plan::new();
        renamed.set("seed2", 42);
        assert_ne!(base.digest(), renamed.digest());
        // A value that looks like the next line does not make two plans alike.
        let (mut one, mut two) = (Plan::new(), Plan::new());
        one.set("x", "1\n\"y\"=2");
        two.set("x", "1");
        two.set("y", 2);
        assert_ne!(one.digest(), two.digest());
    }

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Plan::new().digest();
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for wrong in ["", "sha256:", "sha256:zz", "md5:00", &digest.to_string().to_uppercase()] {
            assert_eq!(wrong.parse::<PlanDigest>(), Err(PlanDigestError), "{wrong}");
        }
    }
}
