//! The client protocol of NATS, as much as chunks need: publish, subscribe, request.

use super::NatsError;
use crate::tls::{self, Verify};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde::Deserialize;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

/// The port of `nats://host`.
const PORT: u16 = 4222;
/// Bytes of a line of the protocol at most; the server's INFO is the longest.
const LINE_LEN_MAX: usize = 64 << 10;
/// Bytes of a message at most: what the server itself allows.
const MESSAGE_LEN_MAX: usize = 64 << 20;
/// How long the server may take to accept a connection, or to take what is sent.
const LIMIT: Duration = Duration::from_secs(10);

/// The server's description of itself (INFO).
#[derive(Clone, Debug, Deserialize)]
struct Info {
    max_payload: usize,
    #[serde(default)]
    headers: bool,
    #[serde(default)]
    tls_required: bool,
    #[serde(default)]
    tls_available: bool,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) subject: String,
    /// Where an answer goes.
    pub(super) reply: Option<String>,
    /// The status of a message that carries none of a publisher's: 404, 408, 503 and so on.
    pub(super) status: Option<u16>,
    pub(super) payload: Vec<u8>,
}

/// The way to a server.
#[derive(Debug)]
enum Stream {
    Clear(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Clear(socket) => socket,
            Stream::Tls(stream) => &stream.sock,
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Clear(socket) => socket.read(bytes),
            Stream::Tls(stream) => stream.read(bytes),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Clear(socket) => socket.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    stream: Stream,
    /// Bytes that were read and are not used yet.
    read: Vec<u8>,
    info: Info,
    /// Subjects for answers to this client begin so.
    inbox: String,
    requests: u64,
}

/// The parts of a URL: `nats://` or `tls://`, `USER:PASSWORD@` or `TOKEN@` if need be, `HOST` or
/// `HOST:PORT`, and `?ca=FILE` or `?tls=disable`.
struct Url<'a> {
    host: &'a str,
    port: u16,
    user: Option<(&'a str, &'a str)>,
    token: Option<&'a str>,
    is_tls: bool,
    /// The file of the CA, if not the system's are trusted.
    ca: Option<&'a Path>,
}

impl Url<'_> {
    fn parse(text: &str) -> Result<Url<'_>, NatsError> {
        // Without what may be a password.
        let shown = text.rsplit_once('@').map_or(text, |(_, place)| place);
        let wrong = || NatsError::Url(shown.to_owned());
        let (rest, is_tls) = match (text.strip_prefix("nats://"), text.strip_prefix("tls://")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => return Err(wrong()),
        };
        let is_query = |query: &str| query.starts_with("ca=") || query.starts_with("tls=");
        let divided = rest.rsplit_once('?').filter(|(_, query)| is_query(query));
        let (rest, query) = match divided {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let ca = query.and_then(|query| query.strip_prefix("ca="));
        let is_clear = query == Some("tls=disable");
        // A file of a CA belongs to TLS, and consent to its absence does not.
        if query.is_some() && (ca.is_some_and(str::is_empty) || ca.is_some() != is_tls) {
            return Err(wrong());
        }
        if query.is_some() && ca.is_none() && !is_clear {
            return Err(wrong());
        }
        let (who, place) = match rest.rsplit_once('@') {
            Some((who, place)) => (Some(who), place),
            None => (None, rest),
        };
        // An IPv6 address is in brackets.
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse::<u16>().map_err(|_| wrong())?)
            }
            _ => (place, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains(['?', '/']) || port == 0 {
            return Err(wrong());
        }
        if who.is_some() && !is_tls && !is_clear && !tls::is_local(host) {
            return Err(NatsError::Clear(host.to_owned()));
        }
        let user = who.and_then(|who| who.split_once(':'));
        Ok(Url {
            host,
            port,
            user,
            token: who.filter(|_| user.is_none()),
            is_tls,
            ca: ca.map(Path::new),
        })
    }
}

/// Whether a URL is one.
pub(super) fn check(url: &str) -> Result<(), NatsError> {
    Url::parse(url).map(drop)
}

impl Client {
    /// Connects, and waits until the server has accepted the client.
    pub(super) fn connect(url: &str, random: u64) -> Result<Client, NatsError> {
        let parsed = Url::parse(url)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let mut stream = None;
        for address in (parsed.host, parsed.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, LIMIT) {
                Ok(connected) => {
                    stream = Some(connected);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let stream = stream.ok_or(last)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(LIMIT))?;
        let info = Info {
            max_payload: 0,
            headers: false,
            tls_required: false,
            tls_available: false,
        };
        let mut client = Client {
            stream: Stream::Clear(stream),
            read: Vec::new(),
            info,
            inbox: format!("_INBOX.weir{random:016x}"),
            requests: 0,
        };
        let end = Instant::now() + LIMIT;
        let line = client.line(end)?.ok_or(NatsError::Silent)?;
        let info = line
            .strip_prefix("INFO ")
            .ok_or_else(|| NatsError::Said(line.clone()))?;
        client.info =
            serde_json::from_str(info).map_err(|error| NatsError::Said(error.to_string()))?;
        if parsed.is_tls {
            client = client.encrypted(&parsed)?;
        } else if client.info.tls_required {
            return Err(NatsError::Said(
                "the server requires TLS: write tls:// in place of nats://".to_owned(),
            ));
        }
        if !client.info.headers {
            return Err(NatsError::Said(
                "it is too old: it has no headers".to_owned(),
            ));
        }
        let mut options = serde_json::json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "tls_required": parsed.is_tls, "name": "weir", "lang": "rust", "version": "1", "protocol": 1,
        });
        if let Some((user, password)) = parsed.user {
            options["user"] = user.into();
            options["pass"] = password.into();
        }
        if let Some(token) = parsed.token {
            options["auth_token"] = token.into();
        }
        let subscribed = format!("CONNECT {options}\r\nSUB {}.* 1\r\nPING\r\n", client.inbox);
        client.stream.send(subscribed.as_bytes())?;
        // PONG, or -ERR.
        while let Some(line) = client.line(end)? {
            match &*line {
                "PONG" => return Ok(client),
                _ if line.starts_with("-ERR") => return Err(NatsError::Said(line)),
                _ => {}
            }
        }
        Err(NatsError::Silent)
    }

    /// The connection with TLS, which begins after the server's INFO.
    fn encrypted(self, url: &Url<'_>) -> Result<Client, NatsError> {
        let Stream::Clear(mut socket) = self.stream else {
            return Ok(self);
        };
        // Bytes that came in clear must not count as the server's.
        if !self.read.is_empty() {
            let why = "the server, or another on the way, sends in clear before TLS begins";
            return Err(NatsError::Said(why.to_owned()));
        }
        if !(self.info.tls_required || self.info.tls_available) {
            return Err(NatsError::Said(
                "the server has no TLS: let it have some (tls of its configuration), or write nats://"
                    .to_owned(),
            ));
        }
        let said = |why: &dyn std::fmt::Display| NatsError::Said(format!("TLS: {why}"));
        let config = tls::config(Verify::Name, url.ca).map_err(|why| said(&why))?;
        let name = ServerName::try_from(url.host).map_err(|why| said(&why))?;
        let connection = ClientConnection::new(config, name.to_owned());
        let mut connection = connection.map_err(|why| said(&why))?;
        socket.set_read_timeout(Some(LIMIT))?;
        while connection.is_handshaking() {
            connection
                .complete_io(&mut socket)
                .map_err(|why| said(&format!("{why}{}", tls::remedy(&why))))?;
        }
        let stream = StreamOwned::new(connection, socket);
        Ok(Client {
            stream: Stream::Tls(Box::new(stream)),
            read: self.read,
            info: self.info,
            inbox: self.inbox,
            requests: self.requests,
        })
    }

    pub(super) fn subscribe(&mut self, subject: &str) -> Result<(), NatsError> {
        Ok(self
            .stream
            .send(format!("SUB {subject} 2\r\n").as_bytes())?)
    }

    /// Sends a message.
    pub(super) fn publish(
        &mut self,
        subject: &str,
        reply: &str,
        payload: &[u8],
    ) -> Result<(), NatsError> {
        if payload.len() > self.info.max_payload {
            return Err(NatsError::Large {
                bytes: payload.len(),
                max: self.info.max_payload,
            });
        }
        let reply = if reply.is_empty() {
            String::new()
        } else {
            format!("{reply} ")
        };
        let mut message = format!("PUB {subject} {reply}{}\r\n", payload.len()).into_bytes();
        message.extend(payload);
        message.extend(b"\r\n");
        Ok(self.stream.send(&message)?)
    }

    /// A new subject for an answer.
    pub(super) fn new_inbox(&mut self) -> String {
        self.requests += 1;
        format!("{}.{}", self.inbox, self.requests)
    }

    /// Sends a message and waits for its answer; other messages that come meanwhile go to `others`.
    pub(super) fn request(
        &mut self,
        subject: &str,
        payload: &[u8],
        others: &mut Vec<Message>,
    ) -> Result<Message, NatsError> {
        let inbox = self.new_inbox();
        self.publish(subject, &inbox, payload)?;
        let end = Instant::now() + LIMIT;
        while let Some(message) = self.next(end)? {
            if message.subject != inbox {
                others.push(message);
                continue;
            }
            return match message.status {
                // Without JetStream, or in the moment of its start.
                Some(503) => Err(NatsError::Said(
                    "nothing answers: is JetStream on (nats-server -js)?".to_owned(),
                )),
                _ => Ok(message),
            };
        }
        Err(NatsError::Silent)
    }

    /// The next message; `None` if there is none until then.
    pub(super) fn next(&mut self, end: Instant) -> Result<Option<Message>, NatsError> {
        while let Some(line) = self.line(end)? {
            let mut words = line.split(' ');
            match words.next() {
                Some("PING") => self.stream.send(b"PONG\r\n")?,
                Some("-ERR") => return Err(NatsError::Said(line)),
                Some(kind @ ("MSG" | "HMSG")) => {
                    let words: Vec<&str> = words.collect();
                    return self.message(kind == "HMSG", &words).map(Some);
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// The message whose line has these words: subject, subscription, answer if any, lengths.
    fn message(&mut self, has_headers: bool, words: &[&str]) -> Result<Message, NatsError> {
        let wrong = || NatsError::Said(format!("a message with the line {}", words.join(" ")));
        let lengths = 1 + usize::from(has_headers);
        let fixed = words
            .len()
            .checked_sub(lengths)
            .filter(|fixed| matches!(fixed, 2 | 3));
        let fixed = fixed.ok_or_else(wrong)?;
        let number = |at: usize| words[at].parse::<usize>().map_err(|_| wrong());
        let all = number(words.len() - 1)?;
        let head = if has_headers { number(fixed)? } else { 0 };
        if all > MESSAGE_LEN_MAX || head > all {
            return Err(wrong());
        }
        let bytes = self.bytes(all + 2)?;
        let headers = std::str::from_utf8(&bytes[..head]).unwrap_or_default();
        // "NATS/1.0 404 No Messages".
        let status = headers.strip_prefix("NATS/1.0 ").and_then(|rest| {
            let status = rest.split([' ', '\r']).next()?;
            status.parse().ok()
        });
        Ok(Message {
            subject: words[0].to_owned(),
            reply: (fixed == 3).then(|| words[2].to_owned()),
            status,
            payload: bytes[head..all].to_vec(),
        })
    }

    /// The next line without its end; `None` if there is none until then.
    fn line(&mut self, end: Instant) -> Result<Option<String>, NatsError> {
        let mut looked = 0;
        loop {
            let found = self.read[looked..]
                .windows(2)
                .position(|two| two == b"\r\n");
            if let Some(at) = found.map(|at| at + looked) {
                let line = String::from_utf8_lossy(&self.read[..at]).into_owned();
                self.read.drain(..at + 2);
                return Ok(Some(line));
            }
            looked = self.read.len().saturating_sub(1);
            if self.read.len() > LINE_LEN_MAX {
                return Err(NatsError::Said("a line without an end".to_owned()));
            }
            if !self.more(end)? {
                return Ok(None);
            }
        }
    }

    /// Exactly this many bytes, of which the last two end the message.
    fn bytes(&mut self, count: usize) -> Result<Vec<u8>, NatsError> {
        let end = Instant::now() + LIMIT;
        while self.read.len() < count {
            if !self.more(end)? {
                return Err(NatsError::Silent);
            }
        }
        let rest = self.read.split_off(count);
        let mut bytes = std::mem::replace(&mut self.read, rest);
        bytes.truncate(count - 2);
        Ok(bytes)
    }

    /// Reads what is there; whether something came until then.
    fn more(&mut self, end: Instant) -> Result<bool, NatsError> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        self.stream.socket().set_read_timeout(Some(left))?;
        let mut part = [0; 64 << 10];
        match self.stream.read(&mut part) {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => {
                self.read.extend(&part[..count]);
                Ok(true)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(false),
                io::ErrorKind::Interrupted => Ok(true),
                _ => Err(error.into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn urls_have_hosts_ports_and_users() {
        let parts = |text| {
            let url = Url::parse(text).unwrap();
            (
                url.host.to_owned(),
                url.port,
                url.user.is_some(),
                url.token.is_some(),
            )
        };
        assert_eq!(parts("nats://a"), ("a".into(), 4222, false, false));
        assert_eq!(parts("tls://u:p@a:5"), ("a".into(), 5, true, false));
        assert_eq!(parts("nats://t@[::1]:5"), ("::1".into(), 5, false, true));
        assert_eq!(parts("nats://[::1]"), ("::1".into(), 4222, false, false));
        for text in ["a:4222", "nats://", "nats://a:x", "nats://:1", "http://a"] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }

    /// Else another on the way could put words into the server's mouth (CVE-2021-23222 of PostgreSQL).
    #[test]
    fn bytes_before_tls_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("tls://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let info = br#"INFO {"max_payload":1048576,"headers":true,"tls_required":true}"#;
            let all = [&info[..], b"\r\n-ERR 'x'\r\n"].concat();
            stream.write_all(&all).unwrap();
            stream
        });
        let refused = Client::connect(&url, 1).err().unwrap().to_string();
        assert!(refused.contains("before TLS begins"), "{refused}");
        drop(server.join());
    }

    #[test]
    fn wrong_urls_are_named_without_their_passwords() {
        let wrong = Url::parse("nats://u:pa55@h?tls=off").err().unwrap();
        let said = wrong.to_string();
        assert!(
            said.contains("h?tls=off") && !said.contains("pa55"),
            "{said}"
        );
    }

    #[test]
    fn passwords_go_encrypted_or_stay_on_the_machine() {
        for text in ["nats://u:p@a", "nats://token@192.0.2.1:5"] {
            let refused = Url::parse(text).err().unwrap().to_string();
            assert!(refused.contains("in clear"), "{refused}");
            assert!(
                !refused.contains("u:p") && !refused.contains("token@"),
                "{refused}"
            );
        }
        for text in [
            "nats://u:p@localhost",
            "nats://u:p@127.0.0.1",
            "nats://u:p@[::1]:5",
            "nats://u:p@a?tls=disable",
            "nats://a",
        ] {
            assert!(!Url::parse(text).unwrap().is_tls, "{text}");
        }
        let url = Url::parse("tls://u:p?x@a:5?ca=/b c").unwrap();
        let parts = (url.host, url.port, url.user, url.ca);
        let expected = ("a", 5, Some(("u", "p?x")), Some(Path::new("/b c")));
        assert_eq!(parts, expected);
        assert!(url.is_tls && Url::parse("tls://a").unwrap().ca.is_none());
        for text in [
            "nats://a?ca=/b",
            "tls://a?ca=",
            "tls://a?tls=disable",
            "nats://a?tls=x",
            "tls://a?x=1",
            "tls://a/b",
        ] {
            assert!(matches!(Url::parse(text), Err(NatsError::Url(_))), "{text}");
        }
    }

    /// The client's result with a server that says this after the start.
    fn told(bytes: &'static [u8]) -> Result<Option<Message>, NatsError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let start = b"INFO {\"max_payload\":100,\"headers\":true}\r\nPONG\r\n";
            stream.write_all(start).unwrap();
            stream.write_all(bytes).unwrap();
            let mut read = Vec::new();
            let _ = stream.read_to_end(&mut read);
        });
        let mut client = Client::connect(&url, 1)?;
        let large = client.publish("a", "", &[0; 101]);
        assert!(matches!(large, Err(NatsError::Large { max: 100, .. })));
        let next = client.next(Instant::now() + Duration::from_millis(500));
        drop(client);
        server.join().unwrap();
        next
    }

    #[test]
    fn messages_are_read_and_nonsense_is_refused() {
        let message = told(b"PING\r\nMSG a.b 1 r.1 3\r\nx\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(
            (&*message.subject, message.reply.as_deref()),
            ("a.b", Some("r.1"))
        );
        assert_eq!((message.status, &*message.payload), (None, &b"x\r\n"[..]));
        let head = b"HMSG i 1 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n";
        let message = told(head).unwrap().unwrap();
        assert_eq!((message.status, message.payload.len()), (Some(404), 0));
        assert_eq!(told(b"+OK\r\n").unwrap(), None);
        for hostile in [
            &b"MSG a\r\n"[..],
            b"MSG a 1 x\r\n",
            b"MSG a 1 99999999999\r\n",
            b"HMSG a 1 9 3\r\nxxx\r\n",
            b"MSG a 1 2 3 4 5\r\n",
            b"-ERR 'no'\r\n",
        ] {
            assert!(told(hostile).is_err(), "{hostile:?}");
        }
    }
}
