//! A certificate authority of a test's own, by `openssl`.

use crate::testenv;
use std::fs;
use std::path::{Path, PathBuf};

/// The name of a CA's own files.
const CA: &str = "ca";

/// A CA, whose files are in a folder.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
}

/// A server's certificate and its private key: PEM files.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// The private key, which its user alone may read.
    pub key: PathBuf,
}

impl Authority {
    /// Makes a CA in a new folder, whose name it bears; `None` (after [`testenv::skip`]) without `openssl`.
    ///
    /// # Panics
    /// Under CI without it, and if it fails.
    pub fn new(folder: &Path) -> Option<Authority> {
        testenv::program("openssl")?;
        fs::create_dir_all(folder).expect("a folder for the CA");
        let authority = Authority {
            folder: folder.to_owned(),
        };
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let is_ca = ["basicConstraints=critical,CA:TRUE"];
        authority.make(CA, &format!("CA of {name}"), &is_ca, &[]);
        Some(authority)
    }

    /// Its own certificate, by which clients know it.
    pub fn file(&self) -> PathBuf {
        self.folder.join(format!("{CA}.pem"))
    }

    /// Signs a certificate of a server with this DNS name.
    ///
    /// # Panics
    /// If `openssl` fails.
    pub fn sign(&self, name: &str) -> Certificate {
        let is_server = "basicConstraints=critical,CA:FALSE";
        let names = format!("subjectAltName=DNS:{name}");
        let by = [
            ("-CA", self.file()),
            ("-CAkey", self.folder.join(format!("{CA}.key"))),
        ];
        self.make(name, name, &[is_server, &names], &by)
    }

    fn make(
        &self,
        file: &str,
        name: &str,
        extensions: &[&str],
        by: &[(&str, PathBuf)],
    ) -> Certificate {
        let made = Certificate {
            certificate: self.folder.join(format!("{file}.pem")),
            key: self.folder.join(format!("{file}.key")),
        };
        let mut openssl = testenv::program("openssl").expect("it was there before");
        openssl.args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]);
        openssl.args(["-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        openssl.arg("-subj").arg(format!("/CN={name}"));
        openssl.arg("-out").arg(&made.certificate);
        openssl.arg("-keyout").arg(&made.key);
        for extension in extensions {
            openssl.args(["-addext", extension]);
        }
        for (key, file) in by {
            openssl.arg(key).arg(file);
        }
        let output = openssl.output().expect("openssl starts");
        assert!(output.status.success(), "{output:?}");
        made
    }
}
