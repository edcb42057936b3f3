//! DHCP for IPv4 (RFC 2131, RFC 2132): what a client sends, and what it reads.
//!
//! ```text
//!  op 1 │ 1 1 │ 6 1 │ hops 1 │ xid 4 │ secs 2 │ flags 2 │ ciaddr 4 │ yiaddr 4
//!       │ siaddr 4 │ giaddr 4 │ chaddr 16 │ sname 64 │ file 128
//!       │ 63 82 53 63 │ options: code 1 │ length 1 │ …  │ 255
//! ```

use std::net::Ipv4Addr;

use crate::Error;
use crate::error::require_len;
use crate::ethernet::Address;
use crate::field::{array, read_u16, read_u32, write};

const HEADER: &str = "a DHCP message";
const HEADER_LEN: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const BROADCAST: u16 = 0x8000;

/// The UDP ports of servers and clients.
pub const SERVER_PORT: u16 = 67;
/// See [`SERVER_PORT`].
pub const CLIENT_PORT: u16 = 68;
/// The least bytes of a message (RFC 951): some servers ignore shorter ones.
pub const LEN_MIN: usize = 300;
/// Routes that are read of one message; more are passed over.
pub const ROUTES_MAX: usize = 64;
/// Routers and resolvers that are read of one message.
pub const SERVERS_MAX: usize = 8;

mod option {
    pub(super) const MASK: u8 = 1;
    pub(super) const ROUTERS: u8 = 3;
    pub(super) const DNS_SERVERS: u8 = 6;
    pub(super) const MTU: u8 = 26;
    pub(super) const REQUESTED: u8 = 50;
    pub(super) const LEASE: u8 = 51;
    pub(super) const OVERLOAD: u8 = 52;
    pub(super) const MESSAGE_TYPE: u8 = 53;
    pub(super) const SERVER: u8 = 54;
    pub(super) const PARAMETERS: u8 = 55;
    pub(super) const MESSAGE: u8 = 56;
    pub(super) const LEN_MAX: u8 = 57;
    pub(super) const T1: u8 = 58;
    pub(super) const T2: u8 = 59;
    pub(super) const CLIENT: u8 = 61;
    pub(super) const ROUTES: u8 = 121;
    pub(super) const END: u8 = 255;
}

/// What a message does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MessageType {
    /// A client looks for servers.
    Discover = 1,
    /// A server has an address to give.
    Offer,
    /// A client wants it, or to keep it.
    Request,
    /// A client says that somebody else has the address.
    Decline,
    /// It is given.
    Ack,
    /// It is not, or no longer.
    Nak,
    /// A client gives it back.
    Release,
}

impl MessageType {
    fn of(number: u8) -> Option<MessageType> {
        [
            MessageType::Discover,
            MessageType::Offer,
            MessageType::Request,
            MessageType::Decline,
            MessageType::Ack,
            MessageType::Nak,
            MessageType::Release,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

/// What a client sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientMessage {
    /// What it does.
    pub message_type: MessageType,
    /// Names the exchange.
    pub transaction: u32,
    /// Since the client began, in seconds.
    pub seconds: u16,
    /// The client's address, if it has one and answers at it.
    pub client: Option<Ipv4Addr>,
    /// The client's hardware address.
    pub hardware: Address,
    /// The address that it wants, or refuses.
    pub requested: Option<Ipv4Addr>,
    /// The server that is meant.
    pub server: Option<Ipv4Addr>,
    /// Bytes of the longest message that it takes.
    pub len_max: u16,
}

impl ClientMessage {
    /// The message's bytes. Answers are asked for by broadcast while the client
    /// has no address.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        write(&mut bytes, 0, &[1, 1, 6, 0]);
        write(&mut bytes, 4, &self.transaction.to_be_bytes());
        write(&mut bytes, 8, &self.seconds.to_be_bytes());
        let wants = matches!(
            self.message_type,
            MessageType::Discover | MessageType::Request
        );
        if self.client.is_none() && wants {
            write(&mut bytes, 10, &BROADCAST.to_be_bytes());
        }
        if let Some(client) = self.client {
            write(&mut bytes, 12, &client.octets());
        }
        write(&mut bytes, 28, &self.hardware.0);
        write(&mut bytes, 236, &COOKIE);
        let mut push = |code: u8, value: &[u8]| {
            bytes.extend([code, value.len() as u8]);
            bytes.extend(value);
        };
        push(option::MESSAGE_TYPE, &[self.message_type as u8]);
        let [a, b, c, d, e, f] = self.hardware.0;
        push(option::CLIENT, &[1, a, b, c, d, e, f]);
        if let Some(requested) = self.requested {
            push(option::REQUESTED, &requested.octets());
        }
        if let Some(server) = self.server {
            push(option::SERVER, &server.octets());
        }
        if wants {
            push(option::LEN_MAX, &self.len_max.to_be_bytes());
            let parameters = [
                option::MASK,
                option::ROUTES,
                option::ROUTERS,
                option::DNS_SERVERS,
                option::MTU,
                option::LEASE,
                option::T1,
                option::T2,
            ];
            push(option::PARAMETERS, &parameters);
        }
        bytes.push(option::END);
        bytes.resize(bytes.len().max(LEN_MIN), 0);
        bytes
    }
}

/// What a server answers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ServerMessage {
    /// Which exchange it is of.
    pub transaction: u32,
    /// The hardware address of the client that is meant.
    pub hardware: Address,
    /// The address that is given.
    pub yiaddr: Option<Ipv4Addr>,
    /// The server.
    pub server: Option<Ipv4Addr>,
    /// How many bits name the address's network.
    pub prefix_len: Option<u8>,
    /// How long the address is given for, when to ask to keep it, and when to
    /// ask all servers; in seconds.
    pub lease_s: Option<u32>,
    /// See `lease_s`.
    pub t1_s: Option<u32>,
    /// See `lease_s`.
    pub t2_s: Option<u32>,
    /// Default routers, the best first.
    pub routers: Vec<Ipv4Addr>,
    /// Routes to networks (RFC 3442): address, prefix length, router, which is
    /// unspecified if the network is on the link. If there are any, `routers`
    /// is not to be looked at.
    pub routes: Vec<(Ipv4Addr, u8, Ipv4Addr)>,
    /// Who resolves names.
    pub dns_servers: Vec<Ipv4Addr>,
    /// Bytes of the longest packet on the link.
    pub mtu: Option<u16>,
    /// Why it is not given, as the server says.
    pub message: Option<String>,
}

impl ServerMessage {
    /// Reads a server's message; `None` if it does nothing that a client waits
    /// for. Options that are not understood, or are cut short, are passed over.
    ///
    /// # Errors
    /// If its header is cut short, or it is no DHCP over Ethernet.
    pub fn parse(bytes: &[u8]) -> Result<Option<(MessageType, ServerMessage)>, Error> {
        require_len(HEADER, bytes, HEADER_LEN)?;
        let wrong = |field, value| Error::Field {
            header: HEADER,
            field,
            value,
        };
        if bytes[..3] != [2, 1, 6] {
            return Err(wrong("kind of address", read_u32(bytes, 0)));
        }
        if bytes[236..240] != COOKIE {
            return Err(wrong("cookie", read_u32(bytes, 236)));
        }
        let given = Ipv4Addr::from(array::<4>(bytes, 16));
        let mut answer = ServerMessage {
            transaction: read_u32(bytes, 4),
            hardware: Address(array(bytes, 28)),
            yiaddr: (!given.is_unspecified()).then_some(given),
            ..ServerMessage::default()
        };
        let mut read = OptionReader::default();
        read.options(&bytes[HEADER_LEN..], &mut answer);
        // The fields of names may hold options too (RFC 2132 §9.3).
        let overload = read.overload;
        if overload & 1 != 0 {
            read.options(&bytes[108..236], &mut answer);
        }
        if overload & 2 != 0 {
            read.options(&bytes[44..108], &mut answer);
        }
        // An option longer than 255 bytes comes in pieces (RFC 3396).
        answer.routes = routes(&read.routes);
        Ok(read.kind.map(|kind| (kind, answer)))
    }
}

/// What options besides a [`ServerMessage`]'s values say.
#[derive(Default)]
struct OptionReader {
    kind: Option<MessageType>,
    overload: u8,
    routes: Vec<u8>,
}

impl OptionReader {
    fn options(&mut self, mut bytes: &[u8], answer: &mut ServerMessage) {
        loop {
            bytes = match *bytes {
                [] | [option::END, ..] => return,
                [0, ref rest @ ..] => rest,
                [code, len, ref rest @ ..] if rest.len() >= usize::from(len) => {
                    let (value, rest) = rest.split_at(len.into());
                    self.option(code, value, answer);
                    rest
                }
                _ => return,
            };
        }
    }

    fn option(&mut self, code: u8, value: &[u8], answer: &mut ServerMessage) {
        let seconds = || (value.len() == 4).then(|| read_u32(value, 0));
        match (code, value.len()) {
            (option::MESSAGE_TYPE, 1) => self.kind = MessageType::of(value[0]),
            (option::OVERLOAD, 1) => self.overload = value[0],
            (option::MASK, 4) => {
                let mask = read_u32(value, 0);
                let is_mask = mask.leading_ones() + mask.trailing_zeros() == 32;
                answer.prefix_len = is_mask.then(|| mask.leading_ones() as u8);
            }
            (option::ROUTERS, _) => answer.routers = addresses(value),
            (option::DNS_SERVERS, _) => answer.dns_servers = addresses(value),
            (option::MTU, 2) => answer.mtu = Some(read_u16(value, 0)),
            (option::LEASE, _) => answer.lease_s = seconds(),
            (option::T1, _) => answer.t1_s = seconds(),
            (option::T2, _) => answer.t2_s = seconds(),
            (option::SERVER, 4) => answer.server = Some(Ipv4Addr::from(array::<4>(value, 0))),
            (option::MESSAGE, _) => {
                answer.message = Some(String::from_utf8_lossy(value).into_owned());
            }
            (option::ROUTES, _) => self.routes.extend(value),
            _ => {}
        }
    }
}

fn addresses(value: &[u8]) -> Vec<Ipv4Addr> {
    let all = value.as_chunks::<4>().0.iter();
    all.take(SERVERS_MAX)
        .map(|bytes| Ipv4Addr::from(*bytes))
        .collect()
}

/// Routes of RFC 3442: a prefix's length, as many of its bytes as count, a
/// router. What cannot be read ends them.
fn routes(mut value: &[u8]) -> Vec<(Ipv4Addr, u8, Ipv4Addr)> {
    let mut routes = Vec::new();
    while let [len @ 0..=32, rest @ ..] = value
        && routes.len() < ROUTES_MAX
    {
        let significant = usize::from(*len).div_ceil(8);
        if rest.len() < significant + 4 {
            break;
        }
        let mut to = [0; 4];
        to[..significant].copy_from_slice(&rest[..significant]);
        let router = Ipv4Addr::from(array::<4>(rest, significant));
        routes.push((Ipv4Addr::from(to), *len, router));
        value = &rest[significant + 4..];
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_as_the_rfc_writes_them() {
        // The examples of RFC 3442.
        let value = [
            0, 10, 0, 0, 1, 8, 10, 10, 0, 0, 2, 25, 10, 17, 0, 128, 10, 0, 0, 3, 33, 1,
        ];
        let at = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        assert_eq!(
            routes(&value),
            [
                (at("0.0.0.0"), 0, at("10.0.0.1")),
                (at("10.0.0.0"), 8, at("10.0.0.2")),
                (at("10.17.0.128"), 25, at("10.0.0.3")),
            ]
        );
        assert_eq!(routes(&[24, 10, 0]), []);
    }

    #[test]
    fn what_is_asked_stands_in_the_message() {
        let ask = ClientMessage {
            message_type: MessageType::Request,
            transaction: 7,
            seconds: 3,
            client: None,
            hardware: Address([2, 0, 0, 0, 0, 9]),
            requested: Some(Ipv4Addr::new(192, 0, 2, 9)),
            server: Some(Ipv4Addr::new(192, 0, 2, 1)),
            len_max: 1500,
        };
        let mut bytes = ask.to_bytes();
        assert!(bytes.len() >= LEN_MIN && read_u16(&bytes, 10) == BROADCAST);
        assert!(ServerMessage::parse(&bytes).is_err());
        bytes[0] = 2;
        bytes[16..20].copy_from_slice(&[192, 0, 2, 9]);
        let (kind, answer) = ServerMessage::parse(&bytes).unwrap().unwrap();
        assert_eq!((kind, answer.transaction), (MessageType::Request, 7));
        assert_eq!((answer.yiaddr, answer.server), (ask.requested, ask.server));
        assert_eq!(answer.hardware, ask.hardware);
        for len in 0..bytes.len() {
            let _ = ServerMessage::parse(&bytes[..len]);
        }
    }
}
