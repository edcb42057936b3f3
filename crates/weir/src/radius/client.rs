//! The access servers, and proxies, that may send requests.

use crate::error::CliError;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The longest secret, in bytes.
const SECRET_LEN_MAX: usize = 1024;

/// The bits of a file's mode for users who are neither its owner nor in its group.
const OTHERS: u32 = 0o007;

/// A shared secret, as its file has it.
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Reads the file of a secret, which other users must not read or write.
    pub(crate) fn read(secret_file: &Path) -> Result<Secret, CliError> {
        let refused = |why: &str| {
            CliError::refused(format!("the secret file {}: {why}", secret_file.display()))
        };
        let failed = |error: io::Error| refused(&error.to_string());
        let file = File::open(secret_file).map_err(failed)?;
        if file.metadata().map_err(failed)?.mode() & OTHERS != 0 {
            return Err(refused(
                "all users may read or write it: take that from them with `chmod o= FILE`",
            ));
        }
        // A line end at its end does not count, and one more byte shows a longer one.
        let mut secret = Vec::new();
        file.take(SECRET_LEN_MAX as u64 + 3)
            .read_to_end(&mut secret)
            .map_err(failed)?;
        while secret.last().is_some_and(|last| b"\r\n".contains(last)) {
            secret.pop();
        }
        if secret.is_empty() {
            return Err(refused("it is empty: write the shared secret into it"));
        }
        if secret.len() > SECRET_LEN_MAX {
            return Err(refused("it is longer than 1,024 bytes"));
        }
        Ok(Secret(secret))
    }

    /// The secret.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Without the secret: what is written for developers ends in logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Who may send requests, and with which secret.
#[derive(Debug)]
pub(crate) struct Client {
    address: IpAddr,
    prefix_len: u8,
    secret: Secret,
    /// Whether its input octets are those to the subscriber.
    swapped: bool,
}

impl Client {
    /// A client of this address, or of all addresses of a prefix.
    pub(crate) fn new(
        address: IpAddr,
        prefix_len: u8,
        secret_file: &Path,
        swapped: bool,
    ) -> Result<Client, CliError> {
        let secret = Secret::read(secret_file)?;
        Ok(Client {
            address,
            prefix_len,
            secret,
            swapped,
        })
    }

    /// Its address or prefix: no other client has the same.
    pub(crate) fn name(&self) -> String {
        let whole = if self.address.is_ipv4() { 32 } else { 128 };
        if self.prefix_len >= whole {
            self.address.to_string()
        } else {
            format!("{}/{}", self.address, self.prefix_len)
        }
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.secret.0
    }

    pub(crate) fn is_swapped(&self) -> bool {
        self.swapped
    }

    fn has(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(of), IpAddr::V4(address)) => {
                let beyond = 32 - u32::from(self.prefix_len.min(32));
                (of.to_bits() ^ address.to_bits())
                    .checked_shr(beyond)
                    .unwrap_or(0)
                    == 0
            }
            (IpAddr::V6(of), IpAddr::V6(address)) => {
                let beyond = 128 - u32::from(self.prefix_len.min(128));
                (of.to_bits() ^ address.to_bits())
                    .checked_shr(beyond)
                    .unwrap_or(0)
                    == 0
            }
            _ => false,
        }
    }
}

/// All clients: the one of the longest prefix answers for an address.
#[derive(Debug)]
pub(crate) struct Clients(Vec<Client>);

impl Clients {
    pub(crate) fn new(mut clients: Vec<Client>) -> Clients {
        clients.sort_by_key(|client| std::cmp::Reverse(client.prefix_len));
        Clients(clients)
    }

    /// The client of an address; an IPv4 address may be mapped into IPv6.
    pub(crate) fn of(&self, address: IpAddr) -> Option<&Client> {
        let address = address.to_canonical();
        self.0.iter().find(|client| client.has(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_longest_prefix_answers() {
        let client = |address: &str, prefix_len, secret: &[u8]| Client {
            address: address.parse().unwrap(),
            prefix_len,
            secret: Secret(secret.to_vec()),
            swapped: false,
        };
        let clients = Clients::new(vec![
            client("192.0.2.0", 24, b"net"),
            client("192.0.2.7", 32, b"host"),
            client("2001:db8::", 32, b"six"),
            client("0.0.0.0", 0, b"any"),
        ]);
        let secret = |address: &str| {
            let client = clients.of(address.parse().unwrap());
            client.map(|client| client.secret().to_vec())
        };
        assert_eq!(secret("192.0.2.7").unwrap(), b"host");
        assert_eq!(secret("::ffff:192.0.2.8").unwrap(), b"net");
        assert_eq!(secret("198.51.100.1").unwrap(), b"any");
        assert_eq!(secret("2001:db8:1::1").unwrap(), b"six");
        assert_eq!(secret("2001:db9::1"), None);
        let name = |address: &str| clients.of(address.parse().unwrap()).unwrap().name();
        assert_eq!(name("192.0.2.7"), "192.0.2.7");
        assert_eq!(name("192.0.2.8"), "192.0.2.0/24");
    }

    #[test]
    fn a_secret_is_short_private_and_not_shown() {
        let path = std::env::temp_dir().join(format!("weir-secret-{}", std::process::id()));
        let written = |content: &[u8], mode| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let client = Client::new(IpAddr::from([192, 0, 2, 1]), 32, &path, false);
            client.map_err(|error| error.to_string())
        };
        let client = written(b"s3cret\r\n", 0o640).unwrap();
        assert_eq!(client.secret(), b"s3cret");
        let shown = format!("{:?}", Clients::new(vec![client]));
        assert!(
            !shown.contains("s3cret") && !shown.contains("115"),
            "{shown}"
        );
        let longest = [[b'x'; SECRET_LEN_MAX].as_slice(), b"\r\n"].concat();
        assert_eq!(written(&longest, 0o600).unwrap().secret().len(), 1024);
        for (content, mode, why) in [
            (&b"s3cret"[..], 0o604, "chmod o= "),
            (b"s3cret", 0o602, "chmod o= "),
            (b"\n", 0o600, "it is empty"),
            (&[b'x'; 1025], 0o600, "longer than 1,024 bytes"),
            (&[b'x'; 5000], 0o600, "longer than 1,024 bytes"),
        ] {
            let said = written(content, mode).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        fs::remove_file(&path).unwrap();
    }
}
