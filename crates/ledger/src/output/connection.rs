//! Connections to PostgreSQL: connection strings as libpq writes them, and TLS.
//!
//! `sslmode` means what it means to libpq: `disable`, `prefer` (TLS if the server has it, and nothing
//! verified), `require` (nothing verified, but the chain if `sslrootcert` is there), `verify-ca` (the
//! chain), `verify-full` (chain and name), which `sslrootcert=system` asks for, too. Unlike libpq, there is
//! no file of roots by default: `verify-full` without `sslrootcert` trusts the system's.

use crate::tls::{self, Verify};
use ::postgres::config::{ChannelBinding as ChannelBindingMode, Host, SslMode};
use ::postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use ::postgres::{Client, Config, Socket};
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a server may be silent though data waits for its acknowledgment.
const SILENCE: Duration = Duration::from_secs(60);

/// A connection string.
#[derive(Debug)]
struct Connection {
    config: Config,
    verify: Verify,
    roots: Option<PathBuf>,
}

/// What of a connection string is about TLS.
#[derive(Default, PartialEq, Eq, Debug)]
struct TlsKeys {
    mode: Option<String>,
    roots: Option<String>,
}

impl TlsKeys {
    /// Takes the value if the key is one of these.
    fn take(&mut self, key: &str, value: String) -> bool {
        let place = match key {
            "sslmode" => &mut self.mode,
            "sslrootcert" => &mut self.roots,
            _ => return false,
        };
        *place = Some(value);
        true
    }
}

/// A connection string without its keys about TLS, and these.
fn divided(text: &str) -> Option<(String, TlsKeys)> {
    let mut keys = TlsKeys::default();
    let is_url = ["postgresql://", "postgres://"]
        .iter()
        .any(|scheme| text.starts_with(scheme));
    if !is_url {
        let rest = divided_words(text, &mut keys)?;
        return Some((rest, keys));
    }
    let Some((place, query)) = text.split_once('?') else {
        return Some((text.to_owned(), keys));
    };
    let mut rest = Vec::new();
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !keys.take(key, unescaped(value)?) {
            rest.push(pair);
        }
    }
    let sign = if rest.is_empty() { "" } else { "?" };
    Some((format!("{place}{sign}{}", rest.join("&")), keys))
}

/// As [`divided`], of words `key = value` with quotes and backslashes.
fn divided_words(text: &str, keys: &mut TlsKeys) -> Option<String> {
    let mut rest = String::new();
    let mut left = text.trim_start();
    while !left.is_empty() {
        let word = left;
        let (key, behind) = left.split_once('=')?;
        let mut value = String::new();
        let behind = behind.trim_start();
        let is_quoted = behind.starts_with('\'');
        let mut letters = behind.char_indices().skip(usize::from(is_quoted));
        let end = loop {
            match letters.next() {
                Some((_, '\\')) => value.push(letters.next()?.1),
                Some((at, '\'')) if is_quoted => break at + 1,
                Some((at, letter)) if !is_quoted && letter.is_whitespace() => break at,
                Some((_, letter)) => value.push(letter),
                None if is_quoted => return None,
                None => break behind.len(),
            }
        };
        left = behind[end..].trim_start();
        if !keys.take(key.trim(), value) {
            rest += &word[..word.len() - left.len()];
        }
    }
    Some(rest)
}

/// A value of a URL: `%` and two digits stand for a byte.
fn unescaped(value: &str) -> Option<String> {
    let (mut bytes, mut left) = (Vec::new(), value);
    while let Some((before, behind)) = left.split_once('%') {
        bytes.extend(before.bytes());
        bytes.push(u8::from_str_radix(behind.get(..2)?, 16).ok()?);
        left = &behind[2..];
    }
    bytes.extend(left.bytes());
    String::from_utf8(bytes).ok()
}

impl Connection {
    fn parse(text: &str) -> Result<Connection, String> {
        let parsed = |text: &str| text.parse::<Config>().map_err(|error| chain(&error));
        let Some((rest, keys)) = divided(text) else {
            // The driver takes some that cannot be divided, and would lose `sslmode`.
            parsed(text)?;
            return Err("a value ends in `\\`, or has a `%` without two digits".into());
        };
        let mut config = parsed(&rest)?;
        if config.get_hosts().is_empty() {
            return Err(
                "it names no host: give `host=` with a name or the folder of a socket".into(),
            );
        }
        // Nothing is encrypted on a socket of the machine, as libpq has it.
        let is_socket = |host: &Host| matches!(host, Host::Unix(_));
        let by_sockets =
            config.get_hostaddrs().is_empty() && config.get_hosts().iter().all(is_socket);
        let is_of_system = keys.roots.as_deref() == Some("system");
        let roots = keys
            .roots
            .filter(|file| file != "system")
            .map(PathBuf::from);
        let require = if roots.is_some() {
            Verify::Chain
        } else {
            Verify::Nothing
        };
        let (mode, verify) = match keys.mode.as_deref() {
            // As libpq: who trusts the system's CAs wants the name checked.
            None if is_of_system => (SslMode::Require, Verify::Name),
            Some("disable") => (SslMode::Disable, Verify::Nothing),
            None | Some("prefer") => (SslMode::Prefer, Verify::Nothing),
            Some("require") => (SslMode::Require, require),
            Some("verify-ca") => (SslMode::Require, Verify::Chain),
            Some("verify-full") => (SslMode::Require, Verify::Name),
            Some(other) => {
                return Err(format!(
                    "there is no `sslmode={other}`: give disable, prefer, require, verify-ca or verify-full"
                ));
            }
        };
        if is_of_system && verify != Verify::Name {
            return Err("`sslrootcert=system` needs `sslmode=verify-full`: any certificate of a public CA would do".into());
        }
        if verify == Verify::Chain && roots.is_none() {
            return Err(
                "`sslmode=verify-ca` needs `sslrootcert=FILE`; or give `sslmode=verify-full`"
                    .into(),
            );
        }
        if config.get_channel_binding() == ChannelBindingMode::Require {
            return Err("`channel_binding=require` cannot be had: leave it out".into());
        }
        let may_be_clear = mode == SslMode::Prefer && !is_local(&config);
        if may_be_clear && config.get_password().is_some() {
            return Err(
                "the password could go to another machine in clear: add `sslmode=verify-full` (with \
                 `sslrootcert=FILE` if the CA is your own), or `sslmode=disable` to have it so"
                    .into(),
            );
        }
        config.ssl_mode(if by_sockets { SslMode::Disable } else { mode });
        Ok(Connection {
            config,
            verify,
            roots,
        })
    }
}

/// Whether a connection stays on the machine, whichever host it is to.
fn is_local(config: &Config) -> bool {
    let addresses = config.get_hostaddrs();
    if !addresses.is_empty() {
        return addresses.iter().all(std::net::IpAddr::is_loopback);
    }
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => tls::is_local(name),
        Host::Unix(_) => true,
    })
}

/// Whether a connection string is one; if not, why.
pub(super) fn check(text: &str) -> Result<(), String> {
    Connection::parse(text).map(drop)
}

/// Connects; if that fails, says why.
pub(super) fn connect(text: &str) -> Result<Client, String> {
    let Connection {
        mut config,
        verify,
        roots,
    } = Connection::parse(text)?;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT);
    }
    if config.get_application_name().is_none() {
        config.application_name("weir mediate");
    }
    config.tcp_user_timeout(SILENCE);
    config.keepalives_idle(SILENCE);
    let connected = if config.get_ssl_mode() == SslMode::Disable {
        config.connect(::postgres::NoTls)
    } else {
        let mut tls = tls::config(verify, roots.as_deref()).map_err(|error| error.to_string())?;
        // `sslnegotiation=direct` asks for it.
        Arc::make_mut(&mut tls).alpn_protocols = vec![b"postgresql".to_vec()];
        config.connect(Connector(tls))
    };
    connected.map_err(|error| chain(&error))
}

/// An error with its causes: the driver's own text is short.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let why = error.to_string();
        if !said.contains(&why) {
            said = format!("{said}: {why}");
        }
        source = error.source();
    }
    said + tls::remedy(error)
}

/// TLS for the driver.
#[derive(Clone)]
struct Connector(Arc<ClientConfig>);

struct Named {
    connector: TlsConnector,
    name: ServerName<'static>,
}

struct Encrypted(TlsStream<Socket>);

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type TlsConnect = Named;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Named, InvalidDnsNameError> {
        Ok(Named {
            connector: TlsConnector::from(self.0.clone()),
            name: ServerName::try_from(host)?.to_owned(),
        })
    }
}

impl TlsConnect<Socket> for Named {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let connecting = self.connector.connect(self.name, socket);
        Box::pin(async move { connecting.await.map(Encrypted) })
    }
}

impl ::postgres::tls::TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings_are_divided_from_their_keys_of_tls() {
        let divided = |text| {
            let (rest, keys) = divided(text).unwrap();
            let or_none = |value: Option<String>| value.unwrap_or_default();
            (rest, or_none(keys.mode), or_none(keys.roots))
        };
        for (text, rest, mode, roots) in [
            ("host=db user=weir", "host=db user=weir", "", ""),
            ("host=db sslmode=require", "host=db ", "require", ""),
            (
                "sslrootcert = '/a b/c\\'d' host=db",
                "host=db",
                "",
                "/a b/c'd",
            ),
            (
                "password='sslmode=x' sslmode=disable",
                "password='sslmode=x' ",
                "disable",
                "",
            ),
            (
                "password=a\\ b\\'c user=x",
                "password=a\\ b\\'c user=x",
                "",
                "",
            ),
            ("postgresql://u:p@db/x", "postgresql://u:p@db/x", "", ""),
            (
                "postgres://db/x?sslmode=verify-full&connect_timeout=3&sslrootcert=/a%20b",
                "postgres://db/x?connect_timeout=3",
                "verify-full",
                "/a b",
            ),
            (
                "postgres://db/x?sslmode=prefer",
                "postgres://db/x",
                "prefer",
                "",
            ),
        ] {
            let expected = (rest.to_owned(), mode.to_owned(), roots.to_owned());
            assert_eq!(divided(text), expected, "{text}");
        }
        for text in ["host", "host='a", "host=a\\", "postgres://a?sslmode=%4"] {
            assert_eq!(super::divided(text), None, "{text}");
        }
    }

    #[test]
    fn modes_are_libpqs_and_no_password_goes_in_clear_unasked() {
        let parsed = |text: &str| {
            let connection = Connection::parse(text).unwrap();
            (connection.config.get_ssl_mode(), connection.verify)
        };
        for (text, mode, verify) in [
            ("host=db", SslMode::Prefer, Verify::Nothing),
            (
                "host=db sslmode=disable password=x",
                SslMode::Disable,
                Verify::Nothing,
            ),
            (
                "host=db sslmode=require password=x",
                SslMode::Require,
                Verify::Nothing,
            ),
            (
                "host=db sslmode=require sslrootcert=f",
                SslMode::Require,
                Verify::Chain,
            ),
            ("host=db sslrootcert=system", SslMode::Require, Verify::Name),
            (
                "host=db sslmode=verify-ca sslrootcert=f",
                SslMode::Require,
                Verify::Chain,
            ),
            // The driver connects to the address.
            (
                "host=/run/postgresql hostaddr=192.0.2.1 sslmode=verify-full",
                SslMode::Require,
                Verify::Name,
            ),
            (
                "host=db sslmode=verify-full",
                SslMode::Require,
                Verify::Name,
            ),
            (
                "host=/run/postgresql password=x",
                SslMode::Disable,
                Verify::Nothing,
            ),
            (
                "host=/run/postgresql sslmode=require",
                SslMode::Disable,
                Verify::Nothing,
            ),
            (
                "host=localhost password=x",
                SslMode::Prefer,
                Verify::Nothing,
            ),
            (
                "host=db hostaddr=127.0.0.1 password=x",
                SslMode::Prefer,
                Verify::Nothing,
            ),
            ("postgres://u:p@[::1]/d", SslMode::Prefer, Verify::Nothing),
        ] {
            assert_eq!(parsed(text), (mode, verify), "{text}");
        }
        for (text, why) in [
            ("host=db password=x", "in clear"),
            ("host=db,/run/postgresql password=x", "in clear"),
            ("host=localhost hostaddr=192.0.2.1 password=x", "in clear"),
            ("postgres://u:p@192.0.2.1/d?sslmode=prefer", "in clear"),
            ("host=db sslmode=allow", "no `sslmode=allow`: give"),
            ("host=db sslmode=require sslrootcert=system", "verify-full"),
            ("host=db sslmode=verify-ca", "sslrootcert=FILE"),
            ("host=db channel_binding=require", "leave it out"),
            ("host=db sslmode=require application_name=a\\", "ends in"),
            (
                "postgres://db/x?sslmode=require&application_name=1%",
                "two digits",
            ),
            ("dbname=x", "no host"),
            ("host='db", "unterminated"),
        ] {
            let found = check(text).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
            assert!(!found.contains("password=x"), "{found}");
        }
    }
}
