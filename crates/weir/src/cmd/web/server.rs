//! The HTTP server of `weir web`, on a thread of its own.
//!
//! A browser that is not asked by its user sends requests, too: another site's page may make it. So a
//! request needs the token, which other sites do not know, and a `Host` that is this server's: a name
//! of another site may lead here (DNS rebinding). Connections, streams and captures are limited; a
//! slow browser gets the newest update, not all. Updates and captures are made on request only.

use super::capture;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::stream::{self, Stream};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task;

/// Most connections at a time; for a further one the oldest is closed that has not shown the token.
const CONNECTIONS_MAX: usize = 128;
/// Most streams of events at a time.
const STREAMS_MAX: usize = 32;
/// Most captures that are being downloaded.
const CAPTURES_MAX: usize = 2;
/// Time for the head of a request.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Time in milliseconds after which a client that reads nothing is left.
const UNREAD_TIME_MAX_MS: u32 = 30_000;
/// Bytes of a request's head, at most.
const HEAD_LEN_MAX: usize = 16 << 10;
/// Bytes of a piece of a download.
const PIECE: usize = 64 << 10;
/// Interval of signs of life on a stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Why a request may come in vain.
const IS_BUSY: &str = "the monitor is busy, or has ended";

/// The browser loads nothing from elsewhere, and runs no script but the page's.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A request to the monitor.
pub(super) enum MonitorRequest {
    /// The present update.
    Update(oneshot::Sender<Arc<str>>),
    /// A capture of the frames that are kept.
    Capture(capture::Waiting),
    /// The last frames.
    Frames(oneshot::Sender<String>),
    /// The frame of that number, if it is kept.
    Frame(u64, oneshot::Sender<Option<String>>),
}

/// Requests that wait for the monitor, at most.
pub(super) const REQUESTS_MAX: usize = 64;

/// The running server; it ends when this is dropped.
pub(super) struct Server {
    news: Option<watch::Sender<Arc<str>>>,
    streams: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

/// State that requests need.
struct Shared {
    token: String,
    /// The name of the cookie: browsers send a machine's cookies to all of its ports.
    cookie: String,
    names: Vec<String>,
    news: watch::Receiver<Arc<str>>,
    requests: SyncSender<MonitorRequest>,
    streams: Arc<Semaphore>,
    captures: Arc<Semaphore>,
}

impl Server {
    /// Serves on `listener`, also to requests by `names`; asks the monitor by `requests`.
    pub(super) fn start(
        listener: TcpListener,
        token: &str,
        names: &[String],
        requests: SyncSender<MonitorRequest>,
    ) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let (news, shown) = watch::channel(Arc::from("{}"));
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        let shared = Arc::new(Shared {
            token: token.to_owned(),
            cookie: format!("weir-{}", listener.local_addr()?.port()),
            names: names.iter().map(|name| name.to_lowercase()).collect(),
            news: shown,
            requests,
            streams: Arc::clone(&streams),
            captures: Arc::new(Semaphore::new(CAPTURES_MAX)),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let thread = thread::Builder::new().name("web".to_owned());
        let thread = thread.spawn(move || runtime.block_on(serve(listener, shared)))?;
        Ok(Server {
            news: Some(news),
            streams,
            thread: Some(thread),
        })
    }

    /// Whether a browser waits for updates.
    pub(super) fn is_watched(&self) -> bool {
        self.streams.available_permits() < STREAMS_MAX
    }

    /// Sends this to the clients that wait for updates.
    pub(super) fn publish(&self, news: Arc<str>) {
        if let Some(shown) = &self.news {
            shown.send_replace(news);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Without a sender the server ends.
        self.news = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let mut news = shared.news.clone();
    let mut connections = Vec::new();
    let router = router(shared);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ended(&mut news) => return,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, for example.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if !make_room(&mut connections) {
            continue;
        }
        // A client that reads nothing keeps no place.
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREAD_TIME_MAX_MS);
        let trusted = Trusted::default();
        let router = router.clone().layer(Extension(trusted.clone()));
        let task = tokio::spawn(async move {
            let service = TowerToHyperService::new(router);
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME_MAX)
                .max_buf_size(HEAD_LEN_MAX)
                .serve_connection(TokioIo::new(stream), service);
            // What a browser did wrong is its own affair.
            let _ = served.await;
        });
        connections.push((task, trusted));
    }
}

/// Whether a connection has shown the token.
#[derive(Clone, Default)]
struct Trusted(Arc<AtomicBool>);

/// Whether there is room for another connection, if need be by the end of one that has not shown
/// the token.
fn make_room(connections: &mut Vec<(task::JoinHandle<()>, Trusted)>) -> bool {
    connections.retain(|(task, _)| !task.is_finished());
    if connections.len() < CONNECTIONS_MAX {
        return true;
    }
    let mut all = connections.iter();
    let Some(oldest) = all.position(|(_, trusted)| !trusted.0.load(Relaxed)) else {
        return false;
    };
    connections.remove(oldest).0.abort();
    true
}

/// Waits until the sender of updates is gone.
async fn ended(news: &mut watch::Receiver<Arc<str>>) {
    while news.changed().await.is_ok() {}
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(page))
        .route(
            "/page.css",
            get(|| file("text/css", include_str!("page/page.css"))),
        )
        .route(
            "/page.js",
            get(|| file("text/javascript", include_str!("page/page.js"))),
        )
        .route("/state.json", get(state))
        .route("/events", get(events))
        .route("/frames.json", get(frames))
        .route("/frame.json", get(frame))
        .route("/capture.pcapng", get(capture))
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

/// The page with the present update, so that it shows data without a further request.
async fn page(State(shared): State<Arc<Shared>>) -> Response {
    let Some(news) = shared.news_now().await else {
        return busy(IS_BUSY);
    };
    // In JSON it is in strings only, and there means the same. Nothing else ends the element.
    let news = news.replace('<', "\\u003c");
    file(
        "text/html",
        include_str!("page/page.html").replace("FIRST_NEWS", &news),
    )
    .await
}

async fn file(kind: &'static str, text: impl IntoResponse) -> Response {
    let kind = format!("{kind}; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Lets a request in, or says why not.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let mut response = match shared.refusal(&request) {
        Some(refused) => refused,
        None => {
            if let Some(trusted) = request.extensions().get::<Trusted>() {
                trusted.0.store(true, Relaxed);
            }
            next.run(request).await
        }
    };
    let fields = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        fields.insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Shared {
    /// Asks the monitor for an update; `None` if too many requests wait, or it has ended.
    async fn news_now(&self) -> Option<Arc<str>> {
        asked(self, MonitorRequest::Update).await
    }

    fn refusal(&self, request: &Request) -> Option<Response> {
        let said = |status, text: &str| Some((status, format!("{text}\n")).into_response());
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return said(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        }
        if !self.is_own_host(request.headers()) {
            return said(
                StatusCode::FORBIDDEN,
                "this name is not known: start weir web with --name NAME to allow it",
            );
        }
        if request.uri().path() == "/"
            && let Some(given) = token_of(request.uri())
            && self.is_token(given)
        {
            // The token leaves the address, and with it the browser's history. A link on another
            // site's page leads here with the cookie (Lax); its scripts' and frames' requests do not.
            let cookie = format!(
                "{}={}; Path=/; HttpOnly; SameSite=Lax",
                self.cookie, self.token
            );
            let fields = [
                (header::LOCATION, "/".to_owned()),
                (header::SET_COOKIE, cookie),
            ];
            return Some((StatusCode::SEE_OTHER, fields).into_response());
        }
        if !self.is_known(request.headers()) {
            return said(
                StatusCode::UNAUTHORIZED,
                "open the address that weir web printed, with its token",
            );
        }
        None
    }

    /// Whether a request names this server: by an address, as localhost, or by a name that was given.
    fn is_own_host(&self, fields: &HeaderMap) -> bool {
        let Some(host) = fields.get(header::HOST).and_then(|host| host.to_str().ok()) else {
            return false;
        };
        let Ok(authority) = host.parse::<axum::http::uri::Authority>() else {
            return false;
        };
        let name = authority.host().to_lowercase();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_ok() || name == "localhost" || self.names.contains(&name)
    }

    fn is_known(&self, fields: &HeaderMap) -> bool {
        let bearer = fields
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let cookies = fields.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|text| text.split("; "));
        let is_ours = |pair: &str| {
            pair.split_once('=')
                .is_some_and(|(name, value)| name == self.cookie && self.is_token(value))
        };
        bearer.is_some_and(|given| self.is_token(given)) || pairs.any(is_ours)
    }

    /// In a time that does not depend on where the two differ.
    fn is_token(&self, given: &str) -> bool {
        let (given, token) = (given.as_bytes(), self.token.as_bytes());
        let differences = given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
        given.len() == token.len() && std::hint::black_box(differences) == 0
    }
}

fn token_of(uri: &Uri) -> Option<&str> {
    let mut pairs = uri.query()?.split('&');
    pairs.find_map(|pair| pair.strip_prefix("token="))
}

async fn state(State(shared): State<Arc<Shared>>) -> Response {
    match shared.news_now().await {
        Some(news) => (
            [(header::CONTENT_TYPE, "application/json")],
            news.to_string(),
        )
            .into_response(),
        None => busy(IS_BUSY),
    }
}

/// Asks the monitor; `None` if too many requests wait, or it has ended.
async fn asked<T>(
    shared: &Shared,
    request: impl FnOnce(oneshot::Sender<T>) -> MonitorRequest,
) -> Option<T> {
    let (ask, made) = oneshot::channel();
    shared.requests.try_send(request(ask)).ok()?;
    made.await.ok()
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

async fn frames(State(shared): State<Arc<Shared>>) -> Response {
    match asked(&shared, MonitorRequest::Frames).await {
        Some(frames) => json(frames),
        None => busy(IS_BUSY),
    }
}

async fn frame(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let pairs = uri.query().unwrap_or_default().split('&');
    let number = pairs.filter_map(|pair| pair.strip_prefix("number=")).next();
    let Some(number) = number.and_then(|number| number.parse().ok()) else {
        let said = "give the number of a frame: /frame.json?number=1\n";
        return (StatusCode::BAD_REQUEST, said).into_response();
    };
    match asked(&shared, |ask| MonitorRequest::Frame(number, ask)).await {
        Some(Some(frame)) => json(frame),
        Some(None) => (StatusCode::NOT_FOUND, "the frame is not kept\n").into_response(),
        None => busy(IS_BUSY),
    }
}

async fn events(State(shared): State<Arc<Shared>>) -> Response {
    let Ok(permit) = Arc::clone(&shared.streams).try_acquire_owned() else {
        return busy("there are 32 streams of events already");
    };
    let mut news = shared.news.clone();
    news.mark_unchanged();
    let Some(first) = shared.news_now().await else {
        return busy(IS_BUSY);
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(stream_of(first, news, permit))
        .keep_alive(keep_alive)
        .into_response()
}

/// This update, and further ones as they come; it ends with the server.
fn stream_of(
    first: Arc<str>,
    news: watch::Receiver<Arc<str>>,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let state = (Some(first), news, permit);
    stream::unfold(state, |(first, mut news, permit)| async move {
        let text = match first {
            Some(text) => text,
            None => {
                news.changed().await.ok()?;
                Arc::clone(&news.borrow_and_update())
            }
        };
        Some((Ok(Event::default().data(text)), (None, news, permit)))
    })
}

async fn capture(State(shared): State<Arc<Shared>>) -> Response {
    let Ok(permit) = Arc::clone(&shared.captures).try_acquire_owned() else {
        return busy("two captures are being downloaded already");
    };
    let (asked, made) = oneshot::channel();
    if shared
        .requests
        .try_send(MonitorRequest::Capture(asked))
        .is_err()
    {
        return busy(IS_BUSY);
    }
    match made.await {
        Ok(Ok(bytes)) => {
            // With its length, a download that was cut short is noticed.
            let fields = [
                (header::CONTENT_TYPE, "application/x-pcapng".to_owned()),
                (header::CONTENT_LENGTH, bytes.len().to_string()),
                (
                    header::CONTENT_DISPOSITION,
                    "attachment; filename=\"capture.pcapng\"".to_owned(),
                ),
            ];
            let pieces = pieces(Bytes::from(bytes), permit);
            (fields, Body::from_stream(pieces)).into_response()
        }
        Ok(Err(why)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response(),
        Err(_) => busy("the monitor has ended"),
    }
}

/// The bytes, piece by piece; the permit is kept until the last one.
fn pieces(
    bytes: Bytes,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold((bytes, permit), |(mut rest, permit)| async move {
        let piece = rest.split_to(rest.len().min(PIECE));
        (!piece.is_empty()).then_some((Ok(piece), (rest, permit)))
    })
}

fn busy(why: &str) -> Response {
    let fields = [(header::RETRY_AFTER, "1")];
    (
        StatusCode::SERVICE_UNAVAILABLE,
        fields,
        format!("{why}: try again\n"),
    )
        .into_response()
}
