//! The access servers, and proxies, that may send requests.

use crate::error::CliError;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// The largest file of a secret, in bytes.
const SECRET_LEN_MAX: usize = 1024;

/// Who may send requests, and with which secret.
#[derive(Debug)]
pub(crate) struct Client {
    address: IpAddr,
    prefix_len: u8,
    secret: Vec<u8>,
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
        let refused = |why: &str| {
            CliError::refused(format!("the secret file {}: {why}", secret_file.display()))
        };
        let mut secret = fs::read(secret_file).map_err(|error| refused(&error.to_string()))?;
        while secret.last().is_some_and(|last| b"\r\n".contains(last)) {
            secret.pop();
        }
        if secret.is_empty() {
            return Err(refused("it is empty: write the shared secret into it"));
        }
        if secret.len() > SECRET_LEN_MAX {
            return Err(refused("it is longer than 1,024 bytes"));
        }
        Ok(Client {
            address,
            prefix_len,
            secret,
            swapped,
        })
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.secret
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

    #[test]
    fn the_longest_prefix_answers() {
        let client = |address: &str, prefix_len, secret: &[u8]| Client {
            address: address.parse().unwrap(),
            prefix_len,
            secret: secret.to_vec(),
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
    }
}
