//! Users, passwords, TLS, and addresses that anybody could reach.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kvd::alone::Alone;
use kvd::resp::{BindError, Config, Server, Tls, Users, hash_password};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::support::{Client, assert_kind, encode, start_with};

fn users() -> Config {
    let (ann, bob) = (hash_password(b"apple"), hash_password(b"pear"));
    let list = format!("ann {ann} rw\nbob {bob} ro\ndefault {ann} rw\n");
    Config { users: Some(Arc::new(Users::parse(&list).unwrap())), ..Config::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_must_authenticate_and_readers_cannot_write() {
    let server = start_with(users(), 1).await;
    let mut client = server.client().await;
    client
        .check(&[
            ("get k", "-NOAUTH Authentication required."),
            ("nosuch", "-NOAUTH Authentication required."),
            ("multi", "-NOAUTH Authentication required."),
            ("auth ann pear", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("auth nobody x", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("get k", "-NOAUTH Authentication required."),
            ("auth apple", "+OK"),
            ("set k v", "+OK"),
            ("auth bob pear", "+OK"),
            ("get k", "\"v\""),
            ("set k w", "-NOPERM User bob has no permissions to run the 'set' command"),
            ("kvd.session k", "-NOPERM User bob has no permissions to run the 'kvd.session' command"),
            ("kvd.once 1 1 set k w", "-NOPERM User bob has no permissions to run the 'kvd.once' command"),
            ("multi", "+OK"),
            ("del k", "-NOPERM User bob has no permissions to run the 'del' command"),
            ("exec", "-EXECABORT Transaction discarded because of previous errors."),
            ("get k", "\"v\""),
        ])
        .await;
    assert_eq!(server.metrics.auth_failures.load(Relaxed), 2);
    let mut client = server.client().await;
    assert_kind(&client.call("hello 3").await, "NOAUTH");
    assert_kind(&client.call("hello 3 auth ann x").await, "WRONGPASS");
    assert!(client.call("hello 3 auth ann apple").await.contains("\"proto\": 3"));
    client.check(&[("set k w", "+OK")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_kept_short() {
    let server = start_with(users(), 1).await;
    let mut client = server.client().await;
    client.send(b"*100\r\n").await;
    assert_eq!(client.shown().await, "-ERR Protocol error: unauthenticated multibulk length");
    let mut client = server.client().await;
    client.send(b"*2\r\n$3\r\nget\r\n$100000\r\n").await;
    assert_eq!(client.shown().await, "-ERR Protocol error: unauthenticated bulk length");
    // What is sent behind AUTH in one piece may be long.
    let mut known = server.client().await;
    let long = encode(&[b"set", b"k", &vec![b'x'; 100_000]]);
    known.send(&[encode(&[b"auth", b"ann", b"apple"]), long].concat()).await;
    assert_eq!(known.shown().await, "+OK");
    assert_eq!(known.shown().await, "+OK");
    let mut guesser = server.client().await;
    for _ in 0..10 {
        assert_kind(&guesser.call("auth ann x").await, "WRONGPASS");
    }
    assert_eq!(guesser.shown().await, "closed");
    // One that does not even try is closed after a while.
    let mut config = users();
    config.limits.stall = Duration::from_millis(100);
    let server = start_with(config, 1).await;
    assert_eq!(server.client().await.shown().await, "closed");
}

#[tokio::test]
async fn nothing_listens_beyond_loopback_for_everybody_unless_told_to() {
    let db = tamis::Options::new().open_in_memory().unwrap();
    let replica = Arc::new(Alone::open(&db, 1, "127.0.0.1", 0).unwrap());
    let address = "0.0.0.0:0".parse().unwrap();
    let bind = |config| Server::bind(address, config, Arc::clone(&replica));
    assert!(matches!(bind(Config::default()).await, Err(BindError::Open(_))));
    assert!(bind(users()).await.is_ok());
    assert!(bind(Config { open_to_all: true, ..Config::default() }).await.is_ok());
    let (authority, pem) = authority();
    let (chain, key) = signed(&authority);
    let encrypted = |roots: Option<&[u8]>| {
        let tls = Tls::from_pem(chain.as_bytes(), key.as_bytes(), roots).unwrap();
        bind(Config { tls: Some(tls), ..Config::default() })
    };
    assert!(matches!(encrypted(None).await, Err(BindError::Open(_))), "encryption alone lets anybody in");
    assert!(encrypted(Some(pem.as_bytes())).await.is_ok());
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> (Authority, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let pem = authority.pem();
    (authority, pem)
}

fn signed(authority: &Authority) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, authority).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn connector(roots: &str, own: Option<(String, String)>) -> TlsConnector {
    let mut store = rustls::RootCertStore::empty();
    store.add(CertificateDer::from_pem_slice(roots.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_with_the_right_certificate_are_served_over_tls() {
    let (authority, roots) = authority();
    let (chain, key) = signed(&authority);
    let tls = Tls::from_pem(chain.as_bytes(), key.as_bytes(), Some(roots.as_bytes())).unwrap();
    let mut config = Config { tls: Some(tls), ..Config::default() };
    let server = start_with(config.clone(), 1).await;
    let connect = async |connector: TlsConnector| {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
        Client::new(stream)
    };
    let mut client = connect(connector(&roots, Some(signed(&authority)))).await;
    client.check(&[("set k v", "+OK"), ("get k", "\"v\"")]).await;
    let value = vec![b'x'; 1 << 20];
    client.send(&encode(&[b"set", b"k", &value])).await;
    assert_eq!(client.shown().await, "+OK");
    // Without a certificate, or with that of another authority, nobody is answered.
    let (other, _) = self::authority();
    for own in [None, Some(signed(&other))] {
        let mut client = connect(connector(&roots, own)).await;
        client.send_or_fail(&encode(&[b"ping"])).await;
        assert_eq!(client.call_or_closed("ping").await, "closed");
    }
    // Neither is one that speaks no TLS, or says nothing.
    let mut plain = server.client().await;
    assert_eq!(plain.call_or_closed("ping").await, "closed");
    config.limits.stall = Duration::from_millis(100);
    let server = start_with(config, 1).await;
    assert_eq!(server.client().await.receive_bytes().await, b"");
}

#[test]
fn certificates_that_are_none_are_refused_by_name() {
    let (authority, _) = authority();
    let (chain, key) = signed(&authority);
    let refused = |chain: &str, key: &str, roots: Option<&str>| {
        Tls::from_pem(chain.as_bytes(), key.as_bytes(), roots.map(str::as_bytes)).err().map(|error| error.what)
    };
    assert_eq!(refused(&chain, &key, None), None);
    assert_eq!(refused("", &key, None), Some("the certificate chain"));
    assert_eq!(refused(&chain, "x", None), Some("the key"));
    assert_eq!(refused(&chain, &signed(&authority).1, None), Some("the certificate and key"));
    assert_eq!(refused(&chain, &key, Some("")), Some("the roots of clients"));
}
