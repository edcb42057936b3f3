//! DHCP for IPv4 over Ethernet (RFC 2131, RFC 2132), the client's side: messages
//! that a client sends, and messages that it reads.
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

/// UDP port of DHCP servers (RFC 2131 §4.1).
pub const SERVER_PORT: u16 = 67;
/// UDP port of DHCP clients (RFC 2131 §4.1).
pub const CLIENT_PORT: u16 = 68;
/// Minimum length of a sent message, in bytes: the fixed size of a BOOTP message
/// (RFC 951). Some servers ignore shorter ones.
pub const LEN_MIN: usize = 300;
/// Maximum number of classless routes kept of one message; further ones are ignored.
pub const ROUTES_MAX: usize = 64;
/// Maximum number of routers, and of DNS servers, kept of one message; further ones are
/// ignored.
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

/// DHCP message type (RFC 2132 §9.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MessageType {
    /// DHCPDISCOVER: a client looks for servers.
    Discover = 1,
    /// DHCPOFFER: a server offers an address.
    Offer,
    /// DHCPREQUEST: a client requests an offered address, or extends its lease.
    Request,
    /// DHCPDECLINE: a client reports that another host uses the address.
    Decline,
    /// DHCPACK: a server commits the lease.
    Ack,
    /// DHCPNAK: a server refuses or revokes the lease.
    Nak,
    /// DHCPRELEASE: a client gives its address back.
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

/// A message from client to server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientMessage {
    /// The message type (option 53).
    pub message_type: MessageType,
    /// Transaction identifier (`xid`), the same in all messages of one exchange.
    pub transaction: u32,
    /// Seconds since the client began (`secs`).
    pub seconds: u16,
    /// The client's address (`ciaddr`), if it has one and can receive at it.
    pub client: Option<Ipv4Addr>,
    /// The client's hardware address (`chaddr`).
    pub hardware: Address,
    /// The address that the client requests or declines (option 50).
    pub requested: Option<Ipv4Addr>,
    /// The server that the message is for (server identifier, option 54).
    pub server: Option<Ipv4Addr>,
    /// Longest message that the client accepts, in bytes (option 57).
    pub len_max: u16,
}

impl ClientMessage {
    /// Serialises the message, padded to [`LEN_MIN`]. A client without an address
    /// sets the BROADCAST flag in DISCOVER and REQUEST (RFC 2131 §4.1).
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

/// A message from server to client.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ServerMessage {
    /// Transaction identifier (`xid`) of the exchange.
    pub transaction: u32,
    /// Hardware address of the client that the message is for (`chaddr`).
    pub hardware: Address,
    /// The assigned address (`yiaddr`); `None` if the field is zero.
    pub yiaddr: Option<Ipv4Addr>,
    /// The server identifier (option 54).
    pub server: Option<Ipv4Addr>,
    /// Prefix length of the subnet mask (option 1).
    pub prefix_len: Option<u8>,
    /// Lease time, in seconds (option 51).
    pub lease_s: Option<u32>,
    /// Renewal time T1, in seconds (option 58): when to ask the server for an extension.
    pub t1_s: Option<u32>,
    /// Rebinding time T2, in seconds (option 59): when to ask any server.
    pub t2_s: Option<u32>,
    /// Default routers in order of preference (option 3).
    pub routers: Vec<Ipv4Addr>,
    /// Classless static routes (option 121, RFC 3442): network, prefix length, router.
    /// A router of 0.0.0.0 means that the network is on the link. If this list has
    /// entries, `routers` must be ignored.
    pub routes: Vec<(Ipv4Addr, u8, Ipv4Addr)>,
    /// DNS servers in order of preference (option 6).
    pub dns_servers: Vec<Ipv4Addr>,
    /// Interface MTU, in bytes (option 26).
    pub mtu: Option<u16>,
    /// Error text of the server (option 56).
    pub message: Option<String>,
}

impl ServerMessage {
    /// Parses a server's message; `None` if it has no known message type (option 53).
    /// Unknown options, and options cut short, are skipped.
    ///
    /// # Errors
    /// If the header is cut short, or the message is not a DHCP reply over Ethernet.
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
        // Option overload: `file` and `sname` may hold options too (RFC 2132 §9.3).
        let overload = read.overload;
        if overload & 1 != 0 {
            read.options(&bytes[108..236], &mut answer);
        }
        if overload & 2 != 0 {
            read.options(&bytes[44..108], &mut answer);
        }
        // An option longer than 255 bytes is split, and concatenated again (RFC 3396).
        answer.routes = routes(&read.routes);
        Ok(read.kind.map(|kind| (kind, answer)))
    }
}

/// State of the option reader that is not a field of [`ServerMessage`].
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

/// Parses classless routes (RFC 3442): prefix length, its significant bytes, a
/// router. Reading stops at the first malformed route, or at [`ROUTES_MAX`].
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
