use super::*;
use tokio::net::TcpListener;

/// Connects with one trust to a node with another; returns what both sides have come to.
async fn greet(connects: Trust, accepts: Trust, to: u64) -> (Result<Link>, Result<Link>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accept = async {
        let (tcp, peer) = listener.accept().await.unwrap();
        Link::accept(&accepts, tcp, peer, 7, 0, &Versions::default()).await
    };
    let versions = Versions::default();
    tokio::join!(Link::connect(&connects, &address, to, 0, &versions), accept)
}

fn secret(secret: &str) -> Trust {
    Trust::new(Some(secret.as_bytes().to_vec()), None)
}

#[tokio::test]
async fn nodes_with_one_secret_talk() {
    for trust in [Trust::default(), secret("s")] {
        let (client, server) = greet(trust.clone(), trust, 7).await;
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        client.send(&("hello".to_owned(), 5u64)).await.unwrap();
        assert_eq!(server.receive::<(String, u64)>().await.unwrap(), ("hello".to_owned(), 5));
        drop(client);
        assert!(server.receive_next::<u8>().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn strangers_are_refused_on_both_sides() {
    for (connects, accepts) in
        [(secret("a"), secret("b")), (Trust::default(), secret("b")), (secret("a"), Trust::default())]
    {
        let (client, server) = greet(connects, accepts, 0).await;
        assert!(matches!(client.err(), Some(Error::Config(_))));
        assert!(server.is_err());
    }
}

#[tokio::test]
async fn a_node_refuses_what_is_meant_for_another() {
    let (client, server) = greet(Trust::default(), Trust::default(), 8).await;
    assert!(matches!(client.err(), Some(Error::Refused { reason, .. }) if reason.contains("node 7, not node 8")));
    assert!(server.is_err());
}

/// Files of an authority, and of a node with a certificate by it.
struct Files {
    dir: tempfile::TempDir,
    authority: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Files {
    async fn new() -> Files {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        tokio::fs::write(dir.path().join("ca"), authority.pem()).await.unwrap();
        Files { dir, authority }
    }

    /// Trust in `authority`, with a certificate of this one.
    async fn trust(&self, authority: &Files) -> Trust {
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let (chain_path, key_path) = (self.dir.path().join("cert"), self.dir.path().join("key"));
        tokio::fs::write(&chain_path, certificate.pem()).await.unwrap();
        tokio::fs::write(&key_path, key.serialize_pem()).await.unwrap();
        Trust::new(None, Some(Tls::from_files(&authority.dir.path().join("ca"), &chain_path, &key_path).unwrap()))
    }
}

#[tokio::test]
async fn certificates_are_checked_on_both_sides() {
    let (ours, theirs) = (Files::new().await, Files::new().await);
    let trust = ours.trust(&ours).await;
    let (client, server) = greet(trust.clone(), trust.clone(), 7).await;
    client.unwrap().send(&5u64).await.unwrap();
    assert_eq!(server.unwrap().receive::<u64>().await.unwrap(), 5);
    // A stranger who believes us, one whom we would have to believe, and one without TLS.
    for stranger in [theirs.trust(&ours).await, ours.trust(&theirs).await, Trust::default()] {
        for (connects, accepts) in [(stranger.clone(), trust.clone()), (trust.clone(), stranger)] {
            let (client, server) = greet(connects, accepts, 0).await;
            assert!(client.is_err() && server.is_err());
        }
    }
}

/// What a node answers to raw bytes in place of a greeting.
async fn greet_with(bytes: &[u8]) -> Result<Link> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let send = async {
        let mut tcp = TcpStream::connect(address).await.unwrap();
        tcp.write_all(bytes).await.unwrap();
        tcp.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = tcp.read_to_end(&mut rest).await;
    };
    let accept = async {
        let (tcp, peer) = listener.accept().await.unwrap();
        Link::accept(&Trust::default(), tcp, peer, 7, 0, &Versions::default()).await
    };
    tokio::join!(send, accept).1
}

#[tokio::test]
async fn bytes_that_are_no_greeting_are_refused() {
    let mut long = (u32::MAX).to_le_bytes().to_vec();
    long.extend([0; 4]);
    let error = greet_with(&long).await.err().unwrap().to_string();
    assert!(error.contains("4294967295 bytes, where 1024 are allowed"), "{error}");
    let mut cut = 100u32.to_le_bytes().to_vec();
    cut.extend([0; 14]);
    let error = greet_with(&cut).await.err().unwrap().to_string();
    assert!(error.contains("100 bytes announced, 10 received"), "{error}");
    let mut damaged = 4u32.to_le_bytes().to_vec();
    damaged.extend([0, 0, 0, 0, b'k', b'v', b'd', b'1']);
    let error = greet_with(&damaged).await.err().unwrap().to_string();
    assert!(error.contains("checksum"), "{error}");
    assert!(greet_with(b"").await.is_err());
    assert!(greet_with(b"GET / HTTP/1.1\r\n\r\n").await.is_err());
}

/// Other nodes send these.
#[test]
fn bytes_of_the_handshake_stay_as_they_are() {
    let versions = Spoken { known: Version::FIRST, needed: Version::FIRST };
    let hello = Hello { protocol: PROTOCOL, versions, cluster: 300, to: 2, nonce: [7; 32] };
    let expected = [&b"kvd2\x01\x01\xac\x02\x02"[..], &[7; 32]].concat();
    assert_eq!(encode(&hello).unwrap(), expected);
    let welcome = Welcome::Proof { versions, nonce: [8; 32], proof: vec![9; 2] };
    assert_eq!(encode(&welcome).unwrap(), [&[0, 1, 1][..], &[8; 32], &[2, 9, 9]].concat());
    assert_eq!(encode(&Welcome::Refused("no".to_owned())).unwrap(), b"\x01\x02no");
}

#[tokio::test]
async fn a_node_that_is_too_old_is_refused_on_both_sides() {
    let (old, new) = (Versions::new(Version::FIRST), Versions::default());
    for (is_raised, connects_old) in [(false, true), (false, false), (true, true), (true, false)] {
        if is_raised {
            new.raise(Version::LATEST);
        }
        let (ours, theirs) = if connects_old { (&old, &new) } else { (&new, &old) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accept = async {
            let (tcp, peer) = listener.accept().await.unwrap();
            Link::accept(&Trust::default(), tcp, peer, 7, 0, theirs).await
        };
        let trust = Trust::default();
        let (client, server) = tokio::join!(Link::connect(&trust, &address, 7, 0, ours), accept);
        match (is_raised, connects_old) {
            (false, true) => assert!(server.unwrap().check(Version::LATEST).is_err()),
            (false, false) => assert!(client.unwrap().check(Version::LATEST).is_err()),
            (true, true) => {
                assert!(matches!(client.err(), Some(Error::Outdated { needed: Version::LATEST, .. })));
                assert!(server.is_err());
            }
            (true, false) => {
                assert!(matches!(client.err(), Some(Error::Old { known: Version::FIRST, .. })));
                assert!(server.is_err());
            }
        }
    }
}

/// A secret that only one side has read anew keeps new connections apart, and not those that are.
#[tokio::test]
async fn connections_stay_when_the_secret_changes_and_new_ones_need_it_on_both_sides() {
    let (ours, theirs) = (secret("a"), secret("a"));
    let (client, server) = greet(ours.clone(), theirs.clone(), 7).await;
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    ours.replace(&secret("b"));
    let (refused, also) = greet(ours.clone(), theirs.clone(), 7).await;
    assert!(refused.is_err() && also.is_err());
    client.send(&5u64).await.unwrap();
    assert_eq!(server.receive::<u64>().await.unwrap(), 5);
    theirs.replace(&secret("b"));
    let (client, server) = greet(ours, theirs, 7).await;
    assert!(client.is_ok() && server.is_ok());
}
