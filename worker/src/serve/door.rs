//! Takes a socket, gives one that speaks HTTP: over TLS where that is on, and closed when it dallies or speaks something
//! else. And takes a request's head, says whether it may pass.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use feedmill_access::{Decision, Denial, Guard};
use feedmill_protocol::http::{
    CONTENT_PROBLEM, PATH_LIVE, PATH_METRICS, PATH_READY, PATH_STATUS, Problem, problem_kind,
};
use http::{HeaderMap, HeaderValue, Method, Response, Uri, header};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::answer;

/// A handshake takes two round trips and a signature; who needs longer only holds a place.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// What everybody may ask for: Kubernetes, Prometheus and the operator come without a token. No record's text, no key and no
/// credentials stand there. The page has no data of its own; it asks for a token.
const OPEN_PATHS: [&str; 5] = [PATH_LIVE, PATH_READY, PATH_METRICS, PATH_STATUS, "/"];

/// TLS, agreed on.
pub(super) async fn secured(socket: TcpStream, config: Arc<ServerConfig>) -> Option<TlsStream<TcpStream>> {
    let handshake = async {
        let mut first = [0; 2];
        // TLS begins with a record of type 22, no HTTP request does.
        if socket.peek(&mut first).await.ok()? > 0 && first[0] != 22 {
            told_to_use_tls(socket, first).await;
            return None;
        }
        match TlsAcceptor::from(config).accept(socket).await {
            Ok(secured) => Some(secured),
            Err(error) => {
                tracing::debug!(%error, "no TLS was agreed on");
                None
            }
        }
    };
    timeout(HANDSHAKE_LIMIT, handshake).await.ok().flatten()
}

/// Says to whoever speaks cleartext that this port does not, in what it seems to speak.
async fn told_to_use_tls(mut socket: TcpStream, first: [u8; 2]) {
    /// HTTP/2: empty SETTINGS; GOAWAY of 20 bytes, last stream 0, `INADEQUATE_SECURITY`, and a word for people.
    const HTTP2: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x14\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0cuse https://";
    let words = if first == *b"PR" { HTTP2.to_vec() } else { http1() };
    // Whoever does not listen learns nothing.
    if socket.write_all(&words).await.is_ok() {
        drop(socket.shutdown().await);
        drop(tokio::io::copy(&mut socket, &mut tokio::io::sink()).await);
    }
}

fn http1() -> Vec<u8> {
    let problem = Problem::new(problem_kind::BAD_REQUEST, 400, "this port speaks TLS", "use https://");
    // A document of strings and numbers always becomes JSON.
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let length = body.len();
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: {CONTENT_PROBLEM}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Whether a request may pass, and whether whoever sent it has shown what the guard wants.
pub(super) fn pass(
    guard: &Guard,
    peer: SocketAddr,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<bool, Box<Response<Body>>> {
    let denial = match guard.decide(method, uri, headers) {
        Decision::Admitted => return Ok(true),
        Decision::Stranger(denial) => denial,
    };
    let reads = method == Method::GET || method == Method::HEAD;
    let is_for_a_token = matches!(denial, Denial::NoToken | Denial::WrongToken);
    if is_for_a_token && reads && OPEN_PATHS.contains(&uri.path()) {
        return Ok(false);
    }
    guard.denied(denial, method, peer);
    Err(Box::new(refusal(denial)))
}

fn refusal(denial: Denial) -> Response<Body> {
    let (status, title, detail, remedy) = match denial {
        Denial::NoToken => (
            401,
            "this worker wants a token",
            "the request has no header `authorization: Bearer TOKEN`",
            "give the client the worker's token, with --token-file, token_file= or FEEDMILL_TOKEN_FILE",
        ),
        Denial::WrongToken => (
            401,
            "the token is not admitted",
            "it is not, or no longer, in the worker's token file",
            "give the client a token that is; to change tokens, add the new one to the workers' file first",
        ),
        Denial::OtherName => (
            403,
            "the request was sent to another name",
            "this worker listens on loopback without a token, and answers only requests to localhost or an address",
            "ask http://127.0.0.1, or start the worker with --token-file or --insecure-no-token",
        ),
        Denial::OtherPage => (
            403,
            "another page has sent the request",
            "this worker listens on loopback without a token, and answers no page but its own",
            "open the worker's page by itself, or start the worker with --token-file or --insecure-no-token",
        ),
    };
    let problem =
        Problem { remedy: Some(remedy.into()), ..Problem::new(problem_kind::DENIED, status, title, detail) };
    let mut response = answer::problem(&problem);
    let challenge = match denial {
        Denial::NoToken => "Bearer realm=\"feedmill\"",
        Denial::WrongToken => "Bearer realm=\"feedmill\", error=\"invalid_token\"",
        Denial::OtherName | Denial::OtherPage => return response,
    };
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    response
}
