//! TLS for PostgreSQL: rustls with ring, given explicitly, never the process's default.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{StoreError, StoreErrorKind};
use crate::options::Tls;

/// The connector that checks the server's certificate, and its name, as `tls` says.
///
/// # Errors
/// `Configuration`: the file with the authorities cannot be read or holds none.
pub(super) fn connector(tls: &Tls) -> Result<MakeRustlsConnect, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| StoreError::new(StoreErrorKind::Configuration, format!("TLS: {e}")))?;
    let config = if tls.insecure {
        let anyone = Arc::new(AnyCertificate(provider));
        builder.dangerous().with_custom_certificate_verifier(anyone).with_no_client_auth()
    } else {
        builder.with_root_certificates(authorities(tls.ca_file.as_deref())?).with_no_client_auth()
    };
    Ok(MakeRustlsConnect::new(config))
}

fn authorities(file: Option<&Path>) -> Result<RootCertStore, StoreError> {
    let Some(file) = file else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let failure = |why: String| {
        StoreError::new(StoreErrorKind::Configuration, format!("certificate authorities in {}: {why}", file.display()))
    };
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|e| failure(e.to_string()))? {
        store.add(certificate.map_err(|e| failure(e.to_string()))?).map_err(|e| failure(e.to_string()))?;
    }
    if store.is_empty() { Err(failure("no certificate in it".into())) } else { Ok(store) }
}

/// Takes every certificate; the handshake's signatures are checked all the same, so that at least the two ends agree.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
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
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
