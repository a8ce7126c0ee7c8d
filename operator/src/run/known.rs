//! Waits for the caches: nothing is decided before everything that exists is known.

use std::time::Duration;

use futures_util::future::{BoxFuture, join, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};

use super::Unreadable;
use crate::observe::Caches;

/// Listing all objects of a kind takes seconds, with tens of thousands too.
pub(super) const PATIENCE: Patience = Patience {
    optional: Duration::from_secs(10),
    told: Duration::from_secs(30),
    given_up: Duration::from_secs(60),
};

/// How long is waited for everything that exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For kinds without which most can be done.
    optional: Duration,
    /// Until it is told of.
    told: Duration,
    /// Until another operator may try.
    given_up: Duration,
}

/// Waits until everything that exists is known, of some kinds only as far as it may be read: each object of theirs is then asked for where
/// it is needed, and where that is not permitted either its pipeline says so.
pub(super) async fn everything(
    caches: &Caches,
    unreadable: &Unreadable,
    patience: Patience,
) -> anyhow::Result<()> {
    let Caches {
        pipelines,
        deployments,
        services,
        maps,
        accounts,
        budgets,
        policies,
        revisions,
        pods,
        nodes,
    } = caches;
    let needed: [(&str, BoxFuture<'_, ()>); 5] = [
        ("datapipelines", Box::pin(pipelines.complete())),
        ("deployments", Box::pin(deployments.complete())),
        ("configmaps", Box::pin(maps.complete())),
        ("controllerrevisions", Box::pin(revisions.complete())),
        ("pods", Box::pin(pods.complete())),
    ];
    let optional: [BoxFuture<'_, ()>; 5] = [
        Box::pin(services.answered()),
        Box::pin(accounts.answered()),
        Box::pin(budgets.answered()),
        Box::pin(policies.answered()),
        Box::pin(async {
            if let Some(nodes) = nodes {
                nodes.answered().await;
            }
        }),
    ];
    let both = join(
        all_of(needed.into(), unreadable, patience),
        tokio::time::timeout(patience.optional, join_all(optional)),
    );
    both.await.0
}

/// Waits for each, tells of those that are missing, and gives up.
async fn all_of(
    needed: Vec<(&'static str, BoxFuture<'_, ()>)>,
    unreadable: &Unreadable,
    patience: Patience,
) -> anyhow::Result<()> {
    let mut missing: Vec<&str> = needed.iter().map(|(kind, _)| *kind).collect();
    let mut known: FuturesUnordered<_> =
        needed.into_iter().map(|(kind, known)| known.map(move |()| kind)).collect();
    let told = tokio::time::sleep(patience.told);
    let given_up = tokio::time::sleep(patience.given_up);
    tokio::pin!(told, given_up);
    let mut is_told = false;
    while !missing.is_empty() {
        tokio::select! {
            Some(kind) = known.next() => missing.retain(|other| *other != kind),
            () = &mut told, if !is_told => {
                is_told = true;
                unreadable.set(missing.clone());
                tracing::error!("{}", unreadable.text().unwrap_or_default());
            }
            () = &mut given_up => {
                unreadable.set(missing);
                anyhow::bail!(unreadable.text().unwrap_or_default());
            }
        }
        if is_told {
            unreadable.set(missing.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kind_that_cannot_be_listed_is_named_and_waited_for_no_longer_than_a_while() {
        let unreadable = Unreadable::default();
        let needed: Vec<(&'static str, BoxFuture<'_, ()>)> = vec![
            ("pods", Box::pin(std::future::ready(()))),
            ("configmaps", Box::pin(std::future::pending())),
        ];
        let patience =
            Patience { optional: Duration::ZERO, told: Duration::ZERO, given_up: Duration::from_millis(1) };
        let ended = all_of(needed, &unreadable, patience).await.unwrap_err();
        assert_eq!(unreadable.text(), Some(ended.to_string()));
        assert!(ended.to_string().starts_with("cannot list configmaps;"), "{ended}");
        // It came, late.
        let needed: Vec<(&'static str, BoxFuture<'_, ()>)> = vec![("pods", Box::pin(std::future::ready(())))];
        unreadable.set(Vec::new());
        assert!(all_of(needed, &unreadable, patience).await.is_ok());
        assert_eq!(unreadable.text(), None);
    }
}
