//! The client protocol of NATS, as much as chunks need: publish, subscribe, request.

use super::NatsError;
use serde::Deserialize;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
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

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    /// Bytes that were read and are not used yet.
    read: Vec<u8>,
    info: Info,
    /// Subjects for answers to this client begin so.
    inbox: String,
    requests: u64,
}

/// Host, port, user and password of a URL `nats://[user:password@]host[:port]`, or `nats://token@host`.
struct Url<'a> {
    host: &'a str,
    port: u16,
    user: Option<(&'a str, &'a str)>,
    token: Option<&'a str>,
}

impl Url<'_> {
    fn parse(text: &str) -> Result<Url<'_>, NatsError> {
        let wrong = || NatsError::Url(text.to_owned());
        let rest = text.strip_prefix("nats://").ok_or_else(wrong)?;
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
        if host.is_empty() || port == 0 {
            return Err(wrong());
        }
        let user = who.and_then(|who| who.split_once(':'));
        Ok(Url {
            host,
            port,
            user,
            token: who.filter(|_| user.is_none()),
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
        };
        let mut client = Client {
            stream,
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
        if client.info.tls_required {
            return Err(NatsError::Said(
                "it wants TLS, which weir has not".to_owned(),
            ));
        }
        if !client.info.headers {
            return Err(NatsError::Said(
                "it is too old: it has no headers".to_owned(),
            ));
        }
        let mut options = serde_json::json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "tls_required": false, "name": "weir", "lang": "rust", "version": "1", "protocol": 1,
        });
        if let Some((user, password)) = parsed.user {
            options["user"] = user.into();
            options["pass"] = password.into();
        }
        if let Some(token) = parsed.token {
            options["auth_token"] = token.into();
        }
        let subscribed = format!("CONNECT {options}\r\nSUB {}.* 1\r\nPING\r\n", client.inbox);
        client.stream.write_all(subscribed.as_bytes())?;
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

    pub(super) fn subscribe(&mut self, subject: &str) -> Result<(), NatsError> {
        Ok(self
            .stream
            .write_all(format!("SUB {subject} 2\r\n").as_bytes())?)
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
        Ok(self.stream.write_all(&message)?)
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
                Some("PING") => self.stream.write_all(b"PONG\r\n")?,
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
        self.stream.set_read_timeout(Some(left))?;
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
        assert_eq!(parts("nats://u:p@a:5"), ("a".into(), 5, true, false));
        assert_eq!(parts("nats://t@[::1]:5"), ("::1".into(), 5, false, true));
        assert_eq!(parts("nats://[::1]"), ("::1".into(), 4222, false, false));
        for text in ["a:4222", "tls://a", "nats://", "nats://a:x", "nats://:1"] {
            assert!(Url::parse(text).is_err(), "{text}");
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
