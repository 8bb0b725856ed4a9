//! [`Tls`]: certificates and keys for connections of clients.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// How the server proves who it is, and whether clients must.
#[derive(Clone)]
pub struct Tls {
    pub(super) config: Arc<ServerConfig>,
    pub(super) verifies_clients: bool,
}

/// Why certificates or keys are refused.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct TlsError {
    /// Which of the texts given.
    pub what: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

impl Tls {
    /// Takes the server's certificate chain and key, and the roots that must have signed
    /// certificates of clients, all in PEM. Without roots, clients need no certificate.
    pub fn from_pem(chain: &[u8], key: &[u8], client_roots: Option<&[u8]>) -> Result<Tls, TlsError> {
        let chain = certificates("the certificate chain", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| refused("the key", error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused("the protocol versions", error))?;
        let builder = match client_roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                const WHAT: &str = "the roots of clients";
                let mut store = RootCertStore::empty();
                for root in certificates(WHAT, roots)? {
                    store.add(root).map_err(|error| refused(WHAT, error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| refused(WHAT, error))?)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| refused("the certificate and key", error))?;
        Ok(Tls { config: Arc::new(config), verifies_clients: client_roots.is_some() })
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| refused(what, error))?;
    if certificates.is_empty() {
        return Err(refused(what, "there is no certificate in it"));
    }
    Ok(certificates)
}

fn refused(what: &'static str, reason: impl ToString) -> TlsError {
    TlsError { what, reason: reason.to_string() }
}
