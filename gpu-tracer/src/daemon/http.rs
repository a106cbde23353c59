//! HTTP/1.1 over the unix socket, on a thread of its own.
//!
//! | path | answers |
//! |---|---|
//! | `/v1/holders` | who holds what, after a look taken for this answer; `gpu=` and `device=` as often as needed |
//! | `/v1/files` | the open files of the same answer |
//! | `/v1/events` | what happens from now on, one JSON document a line, without end |
//! | `/v1/status` | how the daemon is doing |
//! | `/v1/idle` | takes what idle GPUs show (`POST`, root only): `{"gpus": [{"gpu": 0, "mib": 1}]}` |
//! | `/metrics` | the same for Prometheus |
//!
//! Whoever asks is known by the socket ([`Viewer`]). Connections are limited, in all and for each user, and so is the
//! time that one may take to ask.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Extension, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;

use super::feed;
use super::idle::{IdleMemory, Told};
use super::inbox::{Order, Outbox, Seen};
use super::metrics;
use super::peer::{Group, Viewer};
use super::pieces::{self, PieceWriter};
use super::status::Status;
use super::stream::EventStream;
use crate::answer;
use crate::gpu::selector;
use crate::kernel::ExtraDevice;
use crate::model::report::Report;
use crate::render::json;

/// Connections at the same time.
const MOST_CONNECTIONS: usize = 256;
/// Of one user that is not root.
const MOST_OF_A_USER: usize = 16;
/// To ask, and to take the answer; streams are not bound by it.
const PATIENCE: Duration = Duration::from_secs(30);
/// For the core to answer: longer than a look that hangs.
const CORE_PATIENCE: Duration = Duration::from_secs(10);
/// Head of a request.
const MOST_HEAD: usize = 16 << 10;
/// What is told to the daemon.
const MOST_BODY: usize = 64 << 10;
/// Answers put together at the same time.
const ANSWERS_AT_ONCE: usize = 4;

/// What the server needs.
#[derive(Clone)]
struct Server {
    core: Outbox,
    idle: Arc<Mutex<IdleMemory>>,
    answering: Arc<tokio::sync::Semaphore>,
}

/// A connection turned into a stream of events.
#[derive(Clone, Default)]
struct Streams(Arc<AtomicBool>);

/// Who is at the other end of a connection.
#[derive(Clone, Copy)]
struct User(u32);

/// Starts the thread that serves.
///
/// # Errors
/// It cannot be started.
pub(super) fn start(
    listener: StdListener,
    metrics: Option<std::net::TcpListener>,
    core: Outbox,
    group: Group,
    idle: IdleMemory,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(2 * ANSWERS_AT_ONCE)
        .build()
        .context("cannot make the server's runtime")?;
    std::thread::Builder::new()
        .name("server".to_owned())
        .spawn(move || {
            let server = Server {
                core,
                idle: Arc::new(Mutex::new(idle)),
                answering: Arc::new(tokio::sync::Semaphore::new(ANSWERS_AT_ONCE)),
            };
            runtime.block_on(async move {
                if let Some(listener) = metrics.and_then(|listener| TcpListener::from_std(listener).ok()) {
                    tokio::spawn(serve_metrics(listener, server.clone()));
                }
                match UnixListener::from_std(listener) {
                    Ok(listener) => serve(listener, server, group).await,
                    Err(error) => super::log::warning(&format!("nobody can be answered: {error}")),
                }
            });
        })
        .context("cannot start the server's thread")?;
    Ok(())
}

/// Binds the address for `/metrics`.
pub(super) fn bind_metrics(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    let listen = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok::<_, std::io::Error>(listener)
    };
    listen().with_context(|| format!("cannot listen on {address} for /metrics"))
}

async fn serve(listener: UnixListener, server: Server, group: Group) {
    let router = Router::new()
        .route("/v1/holders", get(holders))
        .route("/v1/files", get(files))
        .route("/v1/events", get(events))
        .route("/v1/status", get(status))
        .route("/v1/idle", post(note_idle).layer(DefaultBodyLimit::max(MOST_BODY)))
        .route("/metrics", get(page_of_metrics))
        .with_state(server);
    let places = Places::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Out of descriptors, most likely: some will come back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok((viewer, uid)) = Viewer::of(&stream, group.number()) else { continue };
        // Who finds no place is told so by the end of the connection.
        let Some(place) = places.take(uid) else { continue };
        let streams = Streams::default();
        let router = router
            .clone()
            .layer(Extension(viewer))
            .layer(Extension(User(uid)))
            .layer(Extension(streams.clone()));
        tokio::spawn(async move {
            let connection = http().serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            attend(connection, &streams).await;
            drop(place);
        });
    }
}

async fn serve_metrics(listener: TcpListener, server: Server) {
    let router = Router::new().route("/metrics", get(page_of_metrics)).with_state(server);
    let places = Places::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Nobody there has a user: they share what one user gets.
        let Some(place) = places.take(u32::MAX) else { continue };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            attend(http().serve_connection(TokioIo::new(stream), service), &Streams::default()).await;
            drop(place);
        });
    }
}

fn http() -> hyper::server::conn::http1::Builder {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(MOST_HEAD).keep_alive(true);
    http
}

/// Goes on with a connection until it ends or takes too long.
async fn attend(connection: impl Future, streams: &Streams) {
    let mut connection = std::pin::pin!(connection);
    loop {
        match tokio::time::timeout(PATIENCE, connection.as_mut()).await {
            Err(_) if streams.0.load(Ordering::Relaxed) => {}
            _ => return,
        }
    }
}

/// Connections, by user.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<HashMap<u32, usize>>>);

/// One of them.
struct Place {
    places: Places,
    uid: u32,
}

impl Places {
    fn take(&self, uid: u32) -> Option<Place> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.get(&uid).copied().unwrap_or(0);
        // Root must always find a place: it is the one who is called when there is trouble.
        let full = taken.values().sum::<usize>() >= MOST_CONNECTIONS;
        if uid != 0 && (own >= MOST_OF_A_USER || full) || own >= MOST_CONNECTIONS {
            return None;
        }
        *taken.entry(uid).or_default() += 1;
        Some(Place { places: self.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

/// What went wrong, for a program and for a person.
#[derive(Clone)]
struct Failure(StatusCode, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        document(self.0, &serde_json::json!({ "error": self.1 }))
    }
}

/// On one line: programs read it, and `gpu-tracer holders --format json` lays it out for people.
fn document<T: serde::Serialize + ?Sized>(status: StatusCode, value: &T) -> Response {
    let mut text = Vec::new();
    match json::write_line(value, &mut text) {
        Ok(()) => (status, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn holders(
    State(server): State<Server>,
    Extension(viewer): Extension<Viewer>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    server
        .document(viewer, query, |report, pieces| json::answer::report(report, |piece| pieces.give(piece)))
        .await
}

async fn files(
    State(server): State<Server>,
    Extension(viewer): Extension<Viewer>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    server
        .document(viewer, query, |report, pieces| json::answer::files(report, |piece| pieces.give(piece)))
        .await
}

async fn status(
    State(server): State<Server>,
    Extension(viewer): Extension<Viewer>,
) -> Result<Response, Failure> {
    let mut status = server.status().await?;
    if !viewer.sees_everything() {
        // It may name processes of others.
        status.coverage.missing.clear();
    }
    Ok(document(StatusCode::OK, &status))
}

async fn page_of_metrics(State(server): State<Server>) -> Result<Response, Failure> {
    let status = server.status().await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::text(&status)).into_response())
}

async fn events(
    State(server): State<Server>,
    Extension(viewer): Extension<Viewer>,
    Extension(streams): Extension<Streams>,
) -> Result<Response, Failure> {
    let (subscriber, subscription) = feed::subscribe(viewer);
    if !server.core.send(Order::Subscribe(subscriber)) {
        return Err(gone());
    }
    streams.0.store(true, Ordering::Relaxed);
    let body = Body::new(EventStream::new(subscription));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

fn gone() -> Failure {
    Failure(
        StatusCode::SERVICE_UNAVAILABLE,
        "the daemon is about to end, or does not get an answer itself".to_owned(),
    )
}

impl Server {
    async fn status(&self) -> Result<Box<Status>, Failure> {
        let (reply, answer) = oneshot::channel();
        self.ask(Order::Status(reply), answer).await
    }

    async fn ask<T>(&self, order: Order, answer: oneshot::Receiver<T>) -> Result<T, Failure> {
        if !self.core.send(order) {
            return Err(gone());
        }
        match tokio::time::timeout(CORE_PATIENCE, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(gone()),
        }
    }

    /// The answer as a document, which is on its way as soon as its beginning is written.
    async fn document(
        &self,
        viewer: Viewer,
        query: Option<String>,
        write: impl FnOnce(&Report, &PieceWriter) -> std::io::Result<()> + Send + 'static,
    ) -> Result<Response, Failure> {
        let (writer, pieces) = pieces::pair();
        let (head, known) = oneshot::channel();
        let respond = move |answer: Result<Report, Failure>| {
            let _ = head.send(answer.as_ref().map(|_| ()).map_err(Failure::clone));
            if answer.is_ok_and(|report| write(&report, &writer).is_ok()) {
                writer.end();
            }
        };
        self.answer(viewer, query, respond).await?;
        match known.await {
            Ok(Ok(())) => {
                Ok(([(header::CONTENT_TYPE, "application/json")], Body::new(pieces)).into_response())
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(gone()),
        }
    }

    /// Looks, puts the answer together, as far as this viewer may see it, and hands it over. On a thread of its own: that of
    /// the server attends to everybody.
    async fn answer(
        &self,
        viewer: Viewer,
        query: Option<String>,
        take: impl FnOnce(Result<Report, Failure>) + Send + 'static,
    ) -> Result<(), Failure> {
        let query = Query::parse(query.as_deref().unwrap_or_default())
            .map_err(|problem| Failure(StatusCode::BAD_REQUEST, problem))?;
        let turn = Arc::clone(&self.answering).acquire_owned().await.map_err(|_| gone())?;
        let (reply, answer) = oneshot::channel();
        let seen = self.ask(Order::Look(reply), answer).await?;
        let idle = Arc::clone(&self.idle);
        tokio::task::spawn_blocking(move || {
            let report = put_together(seen, &query, viewer).map(|mut report| {
                locked(&idle).add_to(&mut report);
                report
            });
            take(report);
            drop(turn);
        });
        Ok(())
    }
}

fn locked(idle: &Mutex<IdleMemory>) -> std::sync::MutexGuard<'_, IdleMemory> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes down what idle GPUs show, of those that are idle by a look of our own.
async fn note_idle(
    State(server): State<Server>,
    Extension(viewer): Extension<Viewer>,
    Extension(User(uid)): Extension<User>,
    body: Bytes,
) -> Result<StatusCode, Failure> {
    if uid != 0 {
        return Err(Failure(StatusCode::FORBIDDEN, "only root may tell what idle GPUs show".to_owned()));
    }
    let told: Told =
        serde_json::from_slice(&body).map_err(|error| Failure(StatusCode::BAD_REQUEST, error.to_string()))?;
    let idle = Arc::clone(&server.idle);
    let (done, noted) = oneshot::channel();
    let note = move |answer: Result<Report, Failure>| {
        let failed = |error: anyhow::Error| Failure(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"));
        let _ = done.send(answer.and_then(|report| locked(&idle).note(&told, &report).map_err(failed)));
    };
    server.answer(viewer, None, note).await?;
    noted.await.map_err(|_| gone())?.map(|()| StatusCode::NO_CONTENT)
}

fn put_together(seen: Seen, query: &Query, viewer: Viewer) -> Result<Report, Failure> {
    for device in &query.devices {
        let known = seen.devices.table.identify(device.number);
        if known.is_none_or(|known| known.name != device.name) {
            let problem = format!(
                "this daemon does not watch {}={}; start it with --device",
                device.number, device.name
            );
            return Err(Failure(StatusCode::CONFLICT, problem));
        }
    }
    let selection = selector::resolve(&query.gpus, &seen.devices.gpus, &seen.devices.table)
        .map_err(|error| Failure(StatusCode::BAD_REQUEST, error.to_string()))?;
    let mut report = seen.into_report();
    answer::narrow(&mut report, &selection);
    viewer.narrow(&mut report);
    Ok(report)
}

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    gpus: Vec<String>,
    devices: Vec<ExtraDevice>,
}

impl Query {
    fn parse(text: &str) -> Result<Self, String> {
        let mut query = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = answer::percent::decode(value).ok_or_else(|| format!("{pair:?} is no query"))?;
            match key {
                "gpu" => query.gpus.push(value),
                "device" if value.starts_with('/') => {
                    return Err("a device is asked for by number: MAJOR:MINOR=NAME".to_owned());
                }
                "device" => query
                    .devices
                    .push(value.parse().map_err(|error: crate::kernel::ExtraDeviceError| error.to_string())?),
                other => return Err(format!("there is no parameter {other:?}; there are gpu and device")),
            }
        }
        Ok(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_what_was_asked_and_nothing_else_is_taken() {
        let query = Query::parse("gpu=0-3&gpu=GPU-8f&device=1%3A5%3Dnvidia0").unwrap();
        assert_eq!(query.gpus, ["0-3", "GPU-8f"]);
        assert_eq!(query.devices, ["1:5=nvidia0".parse().unwrap()]);
        assert_eq!(Query::parse("").unwrap(), Query::default());
        for bad in ["gpus=1", "device=x", "device=%2Fetc%2Fshadow%3Dx", "gpu=%zz", "gpu=%ff"] {
            assert!(Query::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_user_cannot_take_all_places_and_root_always_finds_one() {
        let places = Places::default();
        let taken: Vec<Place> = std::iter::from_fn(|| places.take(1000)).collect();
        assert_eq!(taken.len(), MOST_OF_A_USER);
        let crowd: Vec<Place> = (2000..2100)
            .flat_map(|uid| (0..16).filter_map(|_| places.take(uid)).collect::<Vec<_>>())
            .collect();
        assert_eq!(taken.len() + crowd.len(), MOST_CONNECTIONS);
        assert!(places.take(0).is_some());
        drop(taken);
        assert!(places.take(1000).is_some(), "a place given back can be taken");
    }
}
