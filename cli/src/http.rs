//! Takes a worker's address and a path, gives the answer: one request on one connection.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use bytes::Bytes;
use feedmill_access::Application;
use feedmill_client::{Endpoint, Pass};
use feedmill_protocol::http::Problem;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper::header::{HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The longest answer that is read: a range of 64 samples of the largest pictures has about as much.
const MAX_ANSWER: usize = 2 << 30;

/// A sample's pictures may have to be fetched and decoded first.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The body of a 200.
///
/// # Errors
/// No connection, no answer in time, or what the worker's problem document says.
pub async fn get(endpoint: &Endpoint, pass: &Pass, path: &str) -> anyhow::Result<Bytes> {
    tokio::time::timeout(TIMEOUT, exchange(endpoint, pass, path)).await.map_err(|_| {
        anyhow!("{endpoint} gives no answer to {path} within {TIMEOUT:?}; is it a feedmill worker?")
    })?
}

async fn exchange(endpoint: &Endpoint, pass: &Pass, path: &str) -> anyhow::Result<Bytes> {
    let socket = TcpStream::connect((endpoint.host(), endpoint.port()))
        .await
        .with_context(|| format!("cannot connect to {endpoint}; is a worker listening there?"))?;
    if endpoint.is_tls() {
        let secured = pass.secure(endpoint.server_name(), socket, Application::Http1).await;
        exchange_on(secured.with_context(|| endpoint.to_string())?, endpoint, pass, path).await
    } else {
        exchange_on(socket, endpoint, pass, path).await
    }
}

async fn exchange_on<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    socket: S,
    endpoint: &Endpoint,
    pass: &Pass,
    path: &str,
) -> anyhow::Result<Bytes> {
    let broken = || format!("{endpoint} does not answer {path} in HTTP; is it a feedmill worker?");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.with_context(broken)?;
    let host = endpoint.to_string();
    let host = host.rsplit_once('/').map_or(&*host, |(_, host)| host);
    let mut request = Request::get(path)
        .header(HOST, host)
        .header(USER_AGENT, concat!("feedmill/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .with_context(|| format!("{path} is no path"))?;
    pass.show(request.headers_mut());
    let answer = async {
        let answer = sender.send_request(request).await.with_context(broken)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| anyhow!("the answer of {endpoint} to {path} broke off: {error}"))?
            .to_bytes();
        anyhow::Ok((status, body))
    };
    tokio::pin!(answer);
    let (status, body) = tokio::select! {
        answer = &mut answer => answer?,
        // The answer says better than the connection what went wrong.
        _ = connection => answer.await?,
    };
    if status.is_success() {
        return Ok(body);
    }
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => Err(describe(&problem)),
        Err(_) => {
            ensure!(
                status != hyper::StatusCode::NOT_FOUND,
                "{endpoint} has no {path}; is it a feedmill worker?"
            );
            bail!("{endpoint} answers {path} with {status}")
        }
    }
}

/// A problem document in words: what, where, what to do.
pub fn describe(problem: &Problem) -> anyhow::Error {
    let mut text = format!("{}: {}", problem.title, problem.detail);
    if let Some(dataset) = &problem.dataset {
        text.push_str(&format!("\n  data set: {dataset}"));
    }
    if let Some(line) = problem.line {
        text.push_str(&format!("\n  line:     {line}"));
    }
    if let Some(key) = &problem.key {
        text.push_str(&format!("\n  object:   {key}"));
    }
    if let Some(remedy) = &problem.remedy {
        text.push_str(&format!("\n  what to do: {remedy}"));
    }
    anyhow!(text)
}
