#![allow(clippy::unwrap_used, reason = "tests")]

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;

use super::*;

fn app(dir: &tempfile::TempDir, queue: usize) -> App {
    App { db: Db::open(dir.path().join("db")).unwrap(), queue: Arc::new(Semaphore::new(queue)), inline_reads: false }
}

async fn ask(app: &App, method: Method, path: &str, body: &'static str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(Body::from(body)).unwrap();
    let response = router(app.clone()).oneshot(request).await.unwrap();
    let status = response.status();
    (status, String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap())
}

#[tokio::test]
async fn keys_are_put_read_listed_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    for inline_reads in [false, true] {
        let app = App { inline_reads, ..app(&dir, 8) };
        for (key, value) in [("apple", "red"), ("apricot", "orange"), ("a%2Fb", "slash")] {
            let put = ask(&app, Method::PUT, &format!("/keys/{key}?sync=true"), value).await;
            assert_eq!(put.0, StatusCode::NO_CONTENT);
        }
        assert_eq!(ask(&app, Method::GET, "/keys/apple", "").await, (StatusCode::OK, "red".into()));
        assert_eq!(app.db.get("a/b").unwrap().unwrap(), b"slash");
        assert_eq!(ask(&app, Method::GET, "/keys?prefix=ap&limit=9", "").await.1, "apple\napricot\n");
        assert_eq!(ask(&app, Method::GET, "/keys?limit=1", "").await.1, "a/b\n");
        assert_eq!(ask(&app, Method::DELETE, "/keys/apple", "").await.0, StatusCode::NO_CONTENT);
        assert_eq!(ask(&app, Method::GET, "/keys/apple", "").await.0, StatusCode::NOT_FOUND);
        assert!(ask(&app, Method::GET, "/metrics", "").await.1.contains("tamis_last_seqno "));
        app.db.close().unwrap();
    }
}

#[tokio::test]
async fn a_request_that_finds_the_queue_full_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let app = app(&dir, 1);
    let permit = Arc::clone(&app.queue).try_acquire_owned().unwrap();
    assert_eq!(ask(&app, Method::GET, "/keys/apple", "").await.0, StatusCode::SERVICE_UNAVAILABLE);
    drop(permit);
    assert_eq!(ask(&app, Method::GET, "/keys/apple", "").await.0, StatusCode::NOT_FOUND);
    assert_eq!(app.queue.available_permits(), 1);
}

#[tokio::test]
async fn the_server_answers_what_it_has_and_closes_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let app = app(&dir, 8);
    let db = app.db.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(app, listener, async { drop(ended.await) }));
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = "PUT /keys/apple HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    // The server is told to end when it has said that it has begun with the request.
    let mut go_on = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    client.read_exact(&mut go_on).await.unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100"), "{}", go_on.escape_ascii());
    client.write_all(b"r").await.unwrap();
    end.send(()).unwrap();
    client.write_all(b"ed").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    server.await.unwrap().unwrap();
    assert!(matches!(db.get("apple"), Err(tamis::Error::Closed)));
    let db = Db::open(dir.path().join("db")).unwrap();
    assert_eq!(db.get("apple").unwrap().unwrap(), b"red");
}

#[tokio::test]
async fn the_client_counts_answers_and_refusals() {
    use super::load::{KEYS, Method, fill, measure};
    let dir = tempfile::tempdir().unwrap();
    let app = app(&dir, 8);
    let (db, queue) = (app.db.clone(), Arc::clone(&app.queue));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(app, listener, async { drop(ended.await) }));
    fill(address).await.unwrap();
    assert_eq!((db.last_seqno(), db.keys(..).count() as u64), (KEYS, KEYS));
    for (method, written) in [(Method::Get, 0), (Method::Put, 50)] {
        let before = db.last_seqno();
        let figures = measure(address, method, 4, 50).await.unwrap();
        assert_eq!((figures.answered(), figures.refused, db.last_seqno() - before), (50, 0, written));
    }
    let all = Arc::clone(&queue).acquire_many_owned(8).await.unwrap();
    let figures = measure(address, Method::Get, 4, 50).await.unwrap();
    assert_eq!((figures.answered(), figures.refused), (0, 50));
    drop((all, figures));
    end.send(()).unwrap();
    server.await.unwrap().unwrap();
    assert!(matches!(db.get("key00000000"), Err(tamis::Error::Closed)));
}
