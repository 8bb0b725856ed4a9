//! What a node shows by HTTP: metrics, and what probes ask for.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Connections at a time. Those beyond wait.
const CONNECTIONS: usize = 16;
/// For a request and its answer.
const TIME: Duration = Duration::from_secs(10);
/// For the head of a request: slow clients do not keep probes waiting.
const HEAD_TIME: Duration = Duration::from_secs(1);
/// Longest head of a request.
const LONGEST_HEAD: usize = 8 << 10;
/// Before the next attempt to accept, when the system cannot.
const PAUSE: Duration = Duration::from_millis(100);

/// What is at a path.
pub(crate) struct Page {
    /// Whether all is well: otherwise the status is 503.
    pub(crate) is_well: bool,
    /// The text.
    pub(crate) text: String,
}

/// Answers requests until the future is dropped. `page` has what is at a path, if anything.
pub(crate) async fn serve(listener: TcpListener, page: impl Fn(&str) -> Option<Page> + Send + Sync + 'static) {
    let (places, page) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(page));
    let mut connections = JoinSet::new();
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let Ok((tcp, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let page = Arc::clone(&page);
        connections.spawn(async move {
            let answer = service_fn(move |request: Request<_>| {
                let answer = answer(&request, &*page);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .keep_alive(false)
                .half_close(true)
                .max_buf_size(LONGEST_HEAD);
            // A client that asks and leaves, or asks too slowly, gets nothing.
            let _ = timeout(TIME, http.serve_connection(TokioIo::new(tcp), answer)).await;
            drop(place);
        });
    }
}

fn answer<B>(request: &Request<B>, page: &impl Fn(&str) -> Option<Page>) -> Response<Full<Bytes>> {
    let (status, body) = match page(request.uri().path()) {
        _ if request.method() != Method::GET => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
        Some(Page { is_well: true, text }) => (StatusCode::OK, text),
        Some(Page { is_well: false, text }) => (StatusCode::SERVICE_UNAVAILABLE, text),
        None => (StatusCode::NOT_FOUND, "There are /metrics, /health and /ready.\n".to_owned()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn ask(request: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let page = |path: &str| match path {
            "/metrics" => Some(Page { is_well: true, text: "kvd 1\n".to_owned() }),
            "/ready" => Some(Page { is_well: false, text: "no\n".to_owned() }),
            _ => None,
        };
        let server = tokio::spawn(serve(listener, page));
        let mut tcp = TcpStream::connect(address).await.unwrap();
        tcp.write_all(request.as_bytes()).await.unwrap();
        tcp.shutdown().await.unwrap();
        let mut answer = String::new();
        // Closed with bytes unread, a connection may be reset.
        let _ = tcp.read_to_string(&mut answer).await;
        server.abort();
        answer
    }

    #[tokio::test]
    async fn pages_are_at_their_paths_alone() {
        let answer = ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nkvd 1\n"), "{answer}");
        let answer = ask("GET /ready HTTP/1.1\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\r\n\r\nno\n"), "{answer}");
        assert!(ask("GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        assert_eq!(ask("GET /metrics HTTP/1.1\r\n").await, "");
        let long = format!("GET /metrics HTTP/1.1\r\nLong: {}\r\n\r\n", "x".repeat(LONGEST_HEAD));
        assert!(!ask(&long).await.contains("kvd 1"));
    }
}
