//! TLS: whom to trust, who we are.
//!
//! Brokers and name servers speak TLS on their ordinary port: they look at the first byte (`TlsHelper`,
//! `NettyRemotingServer`, 4.9.4). Their default is a certificate that they sign themselves at each start, which
//! proves nothing.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::connection::Address;
use crate::error::Error;

/// How to make a [`Tls`]. All certificates and keys are PEM text.
#[derive(Clone, Default)]
pub struct TlsOptions {
    trusted: Vec<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
    accept_anybody: bool,
}

impl TlsOptions {
    /// Trusts nobody yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts servers whose certificate was signed by one of these authorities (one or more PEM certificates). No
    /// other authorities are trusted: brokers have private ones.
    #[must_use]
    pub fn trust(mut self, authorities_pem: impl Into<Vec<u8>>) -> Self {
        self.trusted.push(authorities_pem.into());
        self
    }

    /// Shows a client certificate (chain, the client's own first) with its private key (PKCS#8, PKCS#1 or SEC1).
    #[must_use]
    pub fn identity(mut self, chain_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((chain_pem.into(), key_pem.into()));
        self
    }

    /// Expects this name (or IP address) in every server's certificate, instead of the host of its address. Name
    /// servers give brokers' addresses as IPs, which certificates seldom have.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// **Insecure.** Accepts any certificate of anybody: the traffic is encrypted, but whoever stands in between can
    /// read and change it. For brokers in their test mode, which sign their certificate themselves.
    #[must_use]
    pub const fn danger_accept_any_certificate_of_anybody(mut self) -> Self {
        self.accept_anybody = true;
        self
    }

    /// Checks all of it.
    ///
    /// # Errors
    /// [`Error::Tls`] if nobody is trusted, a PEM text cannot be read, or key and certificate do not fit.
    pub fn build(&self) -> Result<Tls, Error> {
        let wrong = |problem: String| Error::Tls { address: "settings".into(), problem };
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| wrong(e.to_string()))?;
        let builder = if self.accept_anybody {
            let verifier = Anybody(provider.signature_verification_algorithms);
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        } else {
            let verifier = self.verifier(provider).map_err(wrong)?;
            builder.with_webpki_verifier(verifier)
        };
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain, "the client certificate").map_err(wrong)?;
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|e| wrong(format!("the client's private key cannot be read: {e}")))?;
                builder.with_client_auth_cert(chain, key).map_err(|e| wrong(e.to_string()))?
            }
        };
        let server_name = match &self.server_name {
            None => None,
            Some(name) => Some(
                ServerName::try_from(name.clone()).map_err(|_| wrong(format!("{name:?} is no name of a server")))?,
            ),
        };
        Ok(Tls { connector: TlsConnector::from(Arc::new(config)), server_name })
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, String> {
        let mut roots = RootCertStore::empty();
        for pem in &self.trusted {
            for certificate in certificates(pem, "the trusted authorities")? {
                roots.add(certificate).map_err(|e| format!("a trusted authority cannot be used: {e}"))?;
            }
        }
        if roots.is_empty() {
            return Err("no authority is trusted: name the one that signed the brokers' certificates".into());
        }
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(|e| e.to_string())
    }
}

/// Without the key.
impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("trusted", &self.trusted.len())
            .field("identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .field("accept_anybody", &self.accept_anybody)
            .finish()
    }
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("{what}: a certificate cannot be read: {e}"))?;
    if all.is_empty() {
        return Err(format!("{what}: no certificate in the PEM text"));
    }
    Ok(all)
}

/// Settings that have been checked. Cheap to clone; clones share remembered sessions.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

impl Tls {
    pub(crate) async fn shake_hands(&self, address: &Address, tcp: TcpStream) -> Result<TlsStream<TcpStream>, Error> {
        let failed = |problem: String| Error::Tls { address: address.to_string(), problem };
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(address.host().to_owned()).map_err(|e| failed(e.to_string()))?,
        };
        self.connector.connect(name, tcp).await.map_err(|e| failed(e.to_string()))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// Believes everybody; checks that the peer has the key of the certificate that it shows, which costs nothing.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
