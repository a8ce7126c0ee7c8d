//! Takes an answer and the connection on which it comes, gives the answer.

/// Both are given up together, also when the time is over. What came before the connection ended is read.
pub async fn beside<T>(answer: impl Future<Output = T>, connection: impl Future) -> T {
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        _ = connection => answer.await,
    }
}
