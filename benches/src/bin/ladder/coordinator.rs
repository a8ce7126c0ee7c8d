//! Takes the ranges that ranks ask for, gives them what the worker's processor tensors are, copied: the object between data workers
//! and trainers of a pipeline that is put together from parts. One thread serves all ranks.

use std::net::SocketAddr;

use anyhow::Context as _;
use feedmill_benches::http2::{Connection, STREAM_WINDOW};
use feedmill_benches::process::Process;
use feedmill_benches::roles;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What it carries.
#[derive(Clone, Copy)]
pub enum Layout {
    /// The processor's own tensors, as whoever calls it gets them.
    Tensors = 0,
    /// Feedmill's frames.
    Bytes = 1,
}

/// The role's name.
pub const ROLE: &str = "ladder-coordinator";

/// A coordinator in front of a worker, and its address.
pub fn start(worker: SocketAddr) -> anyhow::Result<(Process, SocketAddr)> {
    let mut process = roles::start(ROLE, &worker.to_string())?;
    let address = process.line()?.parse()?;
    Ok((process, address))
}

/// Plays the role until standard input is closed.
pub fn play(worker: &str) -> anyhow::Result<()> {
    let worker = worker.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(move || {
        runtime.block_on(async move {
            while let Ok((rank, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Err(error) = serve(rank, worker).await {
                        eprintln!("coordinator: {error:#}");
                    }
                });
            }
        });
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// One rank: pairs of positions and a layout come, length and bytes go, in the same order.
async fn serve(rank: TcpStream, worker: SocketAddr) -> anyhow::Result<()> {
    rank.set_nodelay(true)?;
    let (mut asked, mut answers) = rank.into_split();
    let connection = Connection::open(worker, STREAM_WINDOW).await?;
    // A rank has no more ranges outstanding than it has places for.
    let (queue, mut due) = tokio::sync::mpsc::unbounded_channel::<JoinHandle<anyhow::Result<Vec<u8>>>>();
    let writer = tokio::spawn(async move {
        while let Some(fetching) = due.recv().await {
            let fetched = fetching.await.context("a task ended")??;
            // As putting it into a message does.
            let message = fetched.clone();
            drop(fetched);
            answers.write_u64(message.len() as u64).await?;
            answers.write_all(&message).await?;
        }
        anyhow::Ok(())
    });
    while let Ok(start) = asked.read_u64().await {
        let end = asked.read_u64().await?;
        let mut connection = connection.clone();
        let layout = if asked.read_u8().await? == Layout::Tensors as u8 { "?layout=hf" } else { "" };
        let path = format!("/v1/streams/train/batches/{start}-{end}{layout}");
        let fetching = tokio::spawn(async move { connection.get_all(&path).await });
        if queue.send(fetching).is_err() {
            break;
        }
    }
    drop(queue);
    writer.await?
}
