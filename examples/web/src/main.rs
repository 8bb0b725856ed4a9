//! A store behind HTTP: how to use tamis, whose calls block, from asynchronous code.
//!
//! ```sh
//! cargo run --release -p tamis-web -- words.db &
//! curl -X PUT --data red localhost:7171/keys/apple
//! curl localhost:7171/keys/apple
//! curl 'localhost:7171/keys?prefix=app&limit=10'
//! curl localhost:7171/metrics
//! cargo run --release -p tamis-web -- --load 127.0.0.1:7171
//! ```
//!
//! Calls that may wait for the disk run on threads of their own, of which there are few, and only
//! so many requests may wait for them: the others get 503 at once, instead of an answer that comes
//! when nobody waits for it any more. Ctrl-C ends the server: it answers the requests it has, then
//! closes the store.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "threads and clocks of a program are its own")]

mod load;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Parser;
use serde::Deserialize;
use tamis::{Db, WriteOptions};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Longest value that is accepted.
const LONGEST_VALUE: usize = 16 << 20;
/// Keys that a listing returns at most.
const MOST_KEYS: usize = 1000;

/// Serves a store over HTTP
#[derive(Parser)]
struct Arguments {
    /// Directory of the store, created if it is absent
    #[arg(required_unless_present = "load")]
    store: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:7171")]
    listen: SocketAddr,
    /// Threads for calls that may block
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Requests that may be in these threads or wait for them; more get 503
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    queue: u16,
    /// Answer reads in the asynchronous threads. Faster if nearly all are answered from memory; a
    /// read that waits for the disk then holds up the others of its thread
    #[arg(long)]
    inline_reads: bool,
    /// Serve nothing, but measure the server at this address
    #[arg(long, value_name = "ADDRESS", conflicts_with = "store")]
    load: Option<SocketAddr>,
    /// Requests to measure, for each number of connections
    #[arg(long, default_value_t = 50_000, requires = "load")]
    requests: u64,
}

/// What handlers share.
#[derive(Clone)]
struct App {
    db: Db,
    /// One permit for each request that may be in the blocking threads or wait for them.
    queue: Arc<Semaphore>,
    inline_reads: bool,
}

/// Why a request gets no answer of the store.
enum Refusal {
    Busy,
    Store(tamis::Error),
    /// The blocking thread panicked.
    Panicked,
}

impl From<tamis::Error> for Refusal {
    fn from(error: tamis::Error) -> Refusal {
        Refusal::Store(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Refusal::Busy => (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], "busy\n").into_response(),
            Refusal::Store(error @ tamis::Error::InvalidArgument(_)) => {
                (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
            }
            Refusal::Store(error) if error.is_no_space() => {
                (StatusCode::INSUFFICIENT_STORAGE, format!("{error}\n")).into_response()
            }
            Refusal::Store(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
            Refusal::Panicked => (StatusCode::INTERNAL_SERVER_ERROR, "the handler panicked\n").into_response(),
        }
    }
}

impl App {
    /// Runs a call that may block in a thread for such calls.
    async fn blocking<R: Send + 'static>(
        &self,
        call: impl FnOnce(&Db) -> tamis::Result<R> + Send + 'static,
    ) -> Result<R, Refusal> {
        let permit = Arc::clone(&self.queue).try_acquire_owned().map_err(|_| Refusal::Busy)?;
        let db = self.db.clone();
        let task = spawn_blocking(move || {
            let result = call(&db);
            // Held until here even if the client has gone: the thread is busy.
            drop(permit);
            result
        });
        Ok(task.await.map_err(|_| Refusal::Panicked)??)
    }

    /// Runs a read.
    async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&Db) -> tamis::Result<R> + Send + 'static,
    ) -> Result<R, Refusal> {
        if self.inline_reads { Ok(read(&self.db)?) } else { self.blocking(read).await }
    }
}

async fn get_key(State(app): State<App>, Path(key): Path<String>) -> Result<Response, Refusal> {
    let value = app.read(move |db| db.read(key, Bytes::copy_from_slice)).await?;
    Ok(value.map_or_else(|| StatusCode::NOT_FOUND.into_response(), IntoResponse::into_response))
}

/// How to write.
#[derive(Deserialize)]
struct Durability {
    /// Answer only when the write survives a power cut.
    #[serde(default)]
    sync: bool,
}

async fn put_key(
    State(app): State<App>,
    Path(key): Path<String>,
    Query(Durability { sync }): Query<Durability>,
    value: Bytes,
) -> Result<StatusCode, Refusal> {
    app.blocking(move |db| db.put_with(key, value, WriteOptions::new().sync(sync))).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn delete_key(
    State(app): State<App>,
    Path(key): Path<String>,
    Query(Durability { sync }): Query<Durability>,
) -> Result<StatusCode, Refusal> {
    app.blocking(move |db| db.delete_with(key, WriteOptions::new().sync(sync))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What to list.
#[derive(Deserialize)]
struct Listing {
    #[serde(default)]
    prefix: String,
    limit: Option<usize>,
}

/// The keys with a prefix, one a line.
async fn list_keys(
    State(app): State<App>,
    Query(Listing { prefix, limit }): Query<Listing>,
) -> Result<Vec<u8>, Refusal> {
    let limit = limit.unwrap_or(MOST_KEYS).min(MOST_KEYS);
    app.blocking(move |db| {
        let mut lines = Vec::new();
        for entry in db.prefix(prefix).take(limit) {
            lines.extend_from_slice(&entry?.0);
            lines.push(b'\n');
        }
        Ok(lines)
    })
    .await
}

async fn metrics(State(app): State<App>) -> Result<impl IntoResponse, Refusal> {
    let text = app.blocking(|db| Ok(db.stats().to_prometheus())).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text))
}

fn router(app: App) -> Router {
    Router::new()
        .route("/keys", get(list_keys))
        .route("/keys/{key}", get(get_key).put(put_key).delete(delete_key))
        .route("/metrics", get(metrics))
        .layer(DefaultBodyLimit::max(LONGEST_VALUE))
        .with_state(app)
}

/// Serves until `end`, answers the requests that have come by then, and closes the store.
async fn serve(app: App, listener: TcpListener, end: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
    let db = app.db.clone();
    axum::serve(listener, router(app)).with_graceful_shutdown(end).await?;
    let closed = spawn_blocking(move || db.close()).await.map_err(std::io::Error::other)?;
    closed.map_err(std::io::Error::other)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Arguments { store, listen, threads, queue, inline_reads, load, requests } = Arguments::parse();
    if let Some(address) = load {
        let client = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return Ok(client.block_on(load::run(address, requests))?);
    }
    let store = store.ok_or("which store?")?;
    let app = App { db: Db::open(store)?, queue: Arc::new(Semaphore::new(queue.into())), inline_reads };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(threads.into()).build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await?;
        eprintln!("listening on {}", listener.local_addr()?);
        let end = async {
            // Without a handler, Ctrl-C ends the process at once: nothing acknowledged is lost.
            let _ = tokio::signal::ctrl_c().await;
        };
        serve(app, listener, end).await
    })?;
    Ok(())
}
