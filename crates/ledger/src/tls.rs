//! TLS 1.2 and 1.3 (RFC 5246, RFC 8446) of a client: whose certificates it believes.
//!
//! Chains are verified as of RFC 5280 against the system's roots or those of a file, names as of RFC 9525;
//! both by rustls.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// What a client verifies of a server's certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verify {
    /// Nothing: the connection is encrypted, to whatever server.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "a mode of libpq")
    )]
    Nothing,
    /// That a trusted CA has signed it.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "a mode of libpq")
    )]
    Chain,
    /// That, and that it is of the server's name.
    Name,
}

/// A client's configuration. The roots of `file` are trusted, or those of the system.
pub(crate) fn config(verify: Verify, file: Option<&Path>) -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let chain = || {
        let roots = Arc::new(roots(file)?);
        WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(io::Error::other)
    };
    let verifier: Arc<dyn ServerCertVerifier> = match verify {
        Verify::Name => chain()?,
        Verify::Chain => Arc::new(AnyName {
            chain: Some(chain()?),
            provider,
        }),
        Verify::Nothing => Arc::new(AnyName {
            chain: None,
            provider,
        }),
    };
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    Ok(Arc::new(builder.with_no_client_auth()))
}

/// The trusted roots. They are read for each connection, so that a new file serves the next one.
fn roots(file: Option<&Path>) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = "the system has no certificates of CAs: install them (ca-certificates), or name a file";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        return Ok(roots);
    };
    let wrong = |why: &dyn std::fmt::Display| {
        let why = format!(
            "{}: {why}: name a PEM file of CA certificates",
            path.display()
        );
        io::Error::new(io::ErrorKind::InvalidInput, why)
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|why| wrong(&why))? {
        let certificate = certificate.map_err(|why| wrong(&why))?;
        roots.add(certificate).map_err(|why| wrong(&why))?;
    }
    if roots.is_empty() {
        return Err(wrong(&"no certificate is in it"));
    }
    Ok(roots)
}

/// Verifies no name; and the chain, if it has what that needs.
#[derive(Debug)]
struct AnyName {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        // The name comes last.
        match chain.verify_server_cert(certificate, between, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                NotValidForName | NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// Whether a connection to this host stays on the machine.
pub(crate) fn is_local(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The remedy for a certificate that is not believed; empty for other errors.
pub(crate) fn remedy(error: &(dyn Error + 'static)) -> &'static str {
    use CertificateError::{BadSignature, NotValidForName, NotValidForNameContext, UnknownIssuer};
    let mut error = Some(error);
    while let Some(this) = error {
        // An io::Error is not the source of itself.
        let inner = this
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let tls = match inner {
            Some(inner) => inner.downcast_ref::<rustls::Error>(),
            None => this.downcast_ref::<rustls::Error>(),
        };
        match tls {
            // The other one if a trusted CA has the same name.
            Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)) => {
                return ": no CA that is trusted has signed it: name the file of its CA";
            }
            Some(rustls::Error::InvalidCertificate(
                NotValidForName | NotValidForNameContext { .. },
            )) => return ": connect by a name that the certificate has",
            Some(rustls::Error::InvalidCertificate(_)) => {
                return ": let a CA sign a certificate of the server's own, with its name (SAN)";
            }
            _ => {}
        }
        error = this.source();
    }
    ""
}
