//! TLS with certificates on both sides.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::error::{Error, Result};

/// Certificates of a node, and the authority that all nodes' certificates come from.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl Tls {
    /// Reads PEM files: the authority's certificate, this node's chain and its key. Whoever
    /// connects must show a certificate of the authority; whoever is connected to, one for the
    /// name or IP address that was dialled.
    pub fn from_files(authority: &Path, chain: &Path, key: &Path) -> Result<Tls> {
        let wrong = |path: &Path| {
            let path = path.display().to_string();
            move |error: rustls::pki_types::pem::Error| Error::Config(format!("{path}: {error}"))
        };
        let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>> {
            let all = CertificateDer::pem_file_iter(path).map_err(wrong(path))?;
            let all: Vec<_> = all.collect::<Result<_, _>>().map_err(wrong(path))?;
            if all.is_empty() {
                return Err(Error::Config(format!("{}: no certificate", path.display())));
            }
            Ok(all)
        };
        let unfit = |error: &dyn fmt::Display| Error::Config(format!("TLS between nodes: {error}"));
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate).map_err(|error| unfit(&error))?;
        }
        let (roots, chain) = (Arc::new(roots), certificates(chain)?);
        let key = PrivateKeyDer::from_pem_file(key).map_err(wrong(key))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let verifier = verifier.build().map_err(|error| unfit(&error))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let server = server.map_err(|error| unfit(&error))?.with_client_cert_verifier(verifier);
        let server = server.with_single_cert(chain.clone(), key.clone_key()).map_err(|error| unfit(&error))?;
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let client = client.map_err(|error| unfit(&error))?.with_root_certificates(roots);
        let client = client.with_client_auth_cert(chain, key).map_err(|error| unfit(&error))?;
        Ok(Tls { connector: TlsConnector::from(Arc::new(client)), acceptor: TlsAcceptor::from(Arc::new(server)) })
    }

    pub(super) async fn connect(&self, tcp: TcpStream, address: &str) -> Result<client::TlsStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let failed = Error::io("open a TLS connection to", address);
        match ServerName::try_from(host) {
            Ok(name) => self.connector.connect(name, tcp).await.map_err(failed),
            Err(error) => Err(failed(io::Error::new(io::ErrorKind::InvalidInput, error))),
        }
    }

    pub(super) async fn accept(&self, tcp: TcpStream, peer: &str) -> Result<server::TlsStream<TcpStream>> {
        self.acceptor.accept(tcp).await.map_err(Error::io("accept a TLS connection from", peer))
    }
}
