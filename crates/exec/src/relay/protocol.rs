//! The relay's protocol: all messages between the owner of sockets and the processes that use them.
//!
//! ```text
//!  process                                             owner's relay thread
//!   the pair of a fork      lease number ───────────►  (fork.rs)
//!                           ◄─────────── descriptor or error
//!   the door's connection   secret ─────────────────►  (door.rs)
//!                           request ────────────────►
//!                           ◄──────── answer, descriptor
//!   a datagram socket       header, datagram ◄──────►  (datagrams.rs)
//! ```
//!
//! All three are Unix sockets of type `SOCK_SEQPACKET`, which keep the bounds of messages. A
//! connection's own pair is of type `SOCK_STREAM` and carries the connection's bytes alone.
//!
//! # Leases
//!
//! A child of a fork asks for a socket that its parent has: [`TAKE`] or [`CLOSE`], and the socket's
//! number. The answer to `TAKE` is a descriptor, or an error's number.
//!
//! # The door
//!
//! `weir exec` chooses two random values, which the environment hands down ([`Pass`]). The owner
//! listens at the abstract name of the first (unix(7)); a process of the owner's user, or any
//! process if the owner is the superuser, that sends the second is a *guest*. A guest sends one
//! [`Request`] at a time, and receives one answer: an error's number or 0, the answer's bytes, and a
//! descriptor where the request opens a socket. What is not a request ends the connection.
//!
//! ```text
//!  request   kind, fields; numbers in the machine's order
//!  address   IP as IPv6 or IPv4-mapped (16), transport port, scope (4)
//!  socket    family (4 or 6), type, number of options, each: level, name, length, value
//!  answer    errno (4), bytes
//! ```
//!
//! # Datagrams
//!
//! Each message is a [`Header`] and the datagram. To the owner, the header has the destination, or
//! none for the connected peer; from the owner, the sender, or an error. The rest of the header is
//! ancillary data: to the owner [`Given`](crate::control::Given), from the owner
//! [`Beside`](crate::control::Beside).

use crate::control::BESIDE;
use libc::c_int;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// A child's request for a leased socket: what, and the socket's number.
pub(crate) const TAKE: u8 = 1;
pub(crate) const CLOSE: u8 = 2;
pub(crate) const LEASE: usize = 9;

/// The environment variable with a [`Pass`].
pub(crate) const VARIABLE: &str = "WEIR_EXEC_PASS";

/// Length of a door's name, and of its secret.
pub(crate) const SECRET: usize = 16;
/// Length of random bytes that distinguish a relayed descriptor from all others.
pub(crate) const KEY: usize = 16;
/// Names a relayed socket, in the name of its descriptor.
pub(crate) type Key = [u8; KEY];

/// Longest request or answer: the options of one socket are the most.
pub(crate) const MESSAGE_MAX: usize = 24 << 10;
/// Most options of a socket, and longest value of one.
const OPTIONS_MAX: usize = 64;
const VALUE_MAX: usize = 256;

/// The answer's error if the address is not the host's: the kernel is to do the call. No error of
/// Linux has this number.
pub(crate) const KERNELS: c_int = 4095;

/// The answer's error if the owner has no socket with the request's key, or no more.
pub(crate) const UNKNOWN: c_int = libc::ENOENT;

/// What the processes of one `weir exec` know of their door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pass {
    /// The door's name, which all users can read.
    pub(crate) name: [u8; SECRET],
    pub(crate) secret: [u8; SECRET],
}

impl Pass {
    /// The pass of hexadecimal digits; `None` if they are not one.
    pub(crate) fn from_text(text: &str) -> Option<Pass> {
        if text.len() != 4 * SECRET || !text.is_ascii() {
            return None;
        }
        let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..2 * SECRET).map(byte).collect();
        let bytes = bytes?;
        Some(Pass {
            name: *bytes.first_chunk()?,
            secret: *bytes.last_chunk()?,
        })
    }
}

/// A socket that a guest wants: its family, its type, and the options that were set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// `AF_INET` or `AF_INET6`.
    pub(crate) domain: c_int,
    /// `SOCK_STREAM` or `SOCK_DGRAM`.
    pub(crate) kind: c_int,
    pub(crate) options: Vec<((c_int, c_int), Vec<u8>)>,
}

/// A guest's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// `bind` of a TCP socket: takes the address. The answer is a number, and the address.
    Bind { wanted: Wanted, to: SocketAddr },
    /// Gives an address back that was taken.
    Release { number: u64 },
    /// `listen`, at a taken address; number 0 is any. The answer has a descriptor.
    Listen {
        wanted: Wanted,
        number: u64,
        backlog: c_int,
    },
    /// `connect` of a TCP socket, as above.
    Connect {
        wanted: Wanted,
        number: u64,
        to: SocketAddr,
    },
    /// A UDP socket, bound to `local` or connected to `peer`. The answer has a descriptor.
    Datagrams {
        wanted: Wanted,
        local: Option<SocketAddr>,
        peer: Option<SocketAddr>,
    },
    /// `connect` of a relayed UDP socket.
    Peer { key: Key, to: SocketAddr },
    /// `getsockname` and `getpeername` of a relayed UDP socket.
    Names { key: Key },
    /// `setsockopt` of a relayed socket.
    Set {
        key: Key,
        option: (c_int, c_int),
        value: Vec<u8>,
    },
    /// `getsockopt` of a relayed socket. The answer is the value.
    Get { key: Key, option: (c_int, c_int) },
    /// `recvmsg` with `MSG_ERRQUEUE` of a relayed UDP socket. The answer is a
    /// [`Reported`](crate::control::Reported).
    IcmpError { key: Key },
    /// The forwarders of names. The answer has the transport port of each.
    Forwarders,
}

const BIND: u8 = 1;
const RELEASE: u8 = 2;
const LISTEN: u8 = 3;
const CONNECT: u8 = 4;
const DATAGRAMS: u8 = 5;
const PEER: u8 = 6;
const NAMES: u8 = 7;
const SET: u8 = 8;
const GET: u8 = 9;
const ICMP_ERROR: u8 = 10;
const FORWARDERS: u8 = 11;

impl Request {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(128);
        match self {
            Request::Bind { wanted, to: at } => {
                to.push(BIND);
                put_wanted(&mut to, wanted);
                put_address(&mut to, *at);
            }
            Request::Release { number } => {
                to.push(RELEASE);
                to.extend(number.to_ne_bytes());
            }
            Request::Listen {
                wanted,
                number,
                backlog,
            } => {
                to.push(LISTEN);
                put_wanted(&mut to, wanted);
                to.extend(number.to_ne_bytes());
                to.extend(backlog.to_ne_bytes());
            }
            Request::Connect {
                wanted,
                number,
                to: peer,
            } => {
                to.push(CONNECT);
                put_wanted(&mut to, wanted);
                to.extend(number.to_ne_bytes());
                put_address(&mut to, *peer);
            }
            Request::Datagrams {
                wanted,
                local,
                peer,
            } => {
                to.push(DATAGRAMS);
                put_wanted(&mut to, wanted);
                put_optional(&mut to, *local);
                put_optional(&mut to, *peer);
            }
            Request::Peer { key, to: peer } => {
                to.push(PEER);
                to.extend(key);
                put_address(&mut to, *peer);
            }
            Request::Names { key } => {
                to.push(NAMES);
                to.extend(key);
            }
            Request::Set { key, option, value } => {
                to.push(SET);
                to.extend(key);
                put_option(&mut to, *option, value);
            }
            Request::Get { key, option } => {
                to.push(GET);
                to.extend(key);
                put_option(&mut to, *option, &[]);
            }
            Request::IcmpError { key } => {
                to.push(ICMP_ERROR);
                to.extend(key);
            }
            Request::Forwarders => to.push(FORWARDERS),
        }
        to
    }

    /// The request of these bytes; `None` if they are not exactly one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Request> {
        let mut from = Reader(bytes);
        let [kind] = from.array()?;
        let request = match kind {
            BIND => Request::Bind {
                wanted: from.wanted()?,
                to: from.address()?,
            },
            RELEASE => Request::Release {
                number: from.u64()?,
            },
            LISTEN => Request::Listen {
                wanted: from.wanted()?,
                number: from.u64()?,
                backlog: from.int()?,
            },
            CONNECT => Request::Connect {
                wanted: from.wanted()?,
                number: from.u64()?,
                to: from.address()?,
            },
            DATAGRAMS => Request::Datagrams {
                wanted: from.wanted()?,
                local: from.optional()?,
                peer: from.optional()?,
            },
            PEER => Request::Peer {
                key: from.array()?,
                to: from.address()?,
            },
            NAMES => Request::Names { key: from.array()? },
            SET => {
                let key = from.array()?;
                let (option, value) = from.option()?;
                Request::Set { key, option, value }
            }
            GET => {
                let key = from.array()?;
                let (option, _) = from.option()?;
                Request::Get { key, option }
            }
            ICMP_ERROR => Request::IcmpError { key: from.array()? },
            FORWARDERS => Request::Forwarders,
            _ => return None,
        };
        from.0.is_empty().then_some(request)
    }
}

/// Length of an address.
pub(crate) const ADDRESS: usize = 16 + 2 + 4;

pub(crate) fn put_address(bytes: &mut Vec<u8>, address: SocketAddr) {
    let (ip, scope) = match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    bytes.extend(ip.octets());
    bytes.extend(address.port().to_be_bytes());
    bytes.extend(scope.to_be_bytes());
}

/// The address that these bytes begin with; an IPv4-mapped one is IPv4's.
pub(crate) fn take_address(bytes: &[u8]) -> Option<SocketAddr> {
    let ip: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    let port = u16::from_be_bytes(bytes.get(16..18)?.try_into().ok()?);
    let scope = u32::from_be_bytes(bytes.get(18..ADDRESS)?.try_into().ok()?);
    let ip = Ipv6Addr::from(ip);
    Some(match IpAddr::V6(ip).to_canonical() {
        IpAddr::V4(v4) => (v4, port).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
    })
}

/// Whether there is an address, and the address.
pub(crate) fn put_optional(to: &mut Vec<u8>, address: Option<SocketAddr>) {
    to.push(u8::from(address.is_some()));
    put_address(to, address.unwrap_or((Ipv6Addr::UNSPECIFIED, 0).into()));
}

fn put_option(to: &mut Vec<u8>, (level, name): (c_int, c_int), value: &[u8]) {
    let value = &value[..value.len().min(VALUE_MAX)];
    to.extend(level.to_ne_bytes());
    to.extend(name.to_ne_bytes());
    to.extend((value.len() as u16).to_ne_bytes());
    to.extend(value);
}

fn put_wanted(to: &mut Vec<u8>, wanted: &Wanted) {
    let family = if wanted.domain == libc::AF_INET6 {
        6
    } else {
        4
    };
    let options = &wanted.options[..wanted.options.len().min(OPTIONS_MAX)];
    to.extend([family, wanted.kind as u8, options.len() as u8]);
    for (option, value) in options {
        put_option(to, *option, value);
    }
}

/// Takes fields off a message.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.array()?))
    }

    fn int(&mut self) -> Option<c_int> {
        Some(c_int::from_ne_bytes(self.array()?))
    }

    pub(crate) fn address(&mut self) -> Option<SocketAddr> {
        take_address(&self.array::<ADDRESS>()?)
    }

    pub(crate) fn optional(&mut self) -> Option<Option<SocketAddr>> {
        let [is_there] = self.array()?;
        let address = self.address()?;
        match is_there {
            0 => Some(None),
            1 => Some(Some(address)),
            _ => None,
        }
    }

    fn option(&mut self) -> Option<((c_int, c_int), Vec<u8>)> {
        let option = (self.int()?, self.int()?);
        let len = u16::from_ne_bytes(self.array()?).into();
        if len > VALUE_MAX {
            return None;
        }
        let (value, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some((option, value.to_vec()))
    }

    fn wanted(&mut self) -> Option<Wanted> {
        let [family, kind, count] = self.array()?;
        let domain = match family {
            4 => libc::AF_INET,
            6 => libc::AF_INET6,
            _ => return None,
        };
        let kind = c_int::from(kind);
        let count = usize::from(count);
        if !matches!(kind, libc::SOCK_STREAM | libc::SOCK_DGRAM) || count > OPTIONS_MAX {
            return None;
        }
        let options: Option<Vec<_>> = (0..count).map(|_| self.option()).collect();
        Some(Wanted {
            domain,
            kind,
            options: options?,
        })
    }
}

/// Length of a [`Header`], with ancillary data.
pub(crate) const HEADER: usize = 2 + ADDRESS + BESIDE;
/// The largest datagram of UDP over IPv4 without options: 65,535 - 20 - 8 bytes.
pub(crate) const DATAGRAM_MAX: usize = 65_507;

/// What stands before each datagram of a relayed UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Header {
    /// To the connected peer.
    Connected,
    /// To this address, or from it.
    Address(SocketAddr),
    /// No datagram, but the error that the next call reports.
    Error(c_int),
}

impl Header {
    /// The header with this ancillary data.
    pub(crate) fn with(self, ancillary: [u8; BESIDE]) -> [u8; HEADER] {
        let mut bytes = self.to_bytes();
        bytes[HEADER - BESIDE..].copy_from_slice(&ancillary);
        bytes
    }

    /// The header without ancillary data.
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = Vec::with_capacity(HEADER);
        match self {
            Header::Connected => bytes.extend([0, 0]),
            Header::Address(address) => {
                bytes.extend([1, 0]);
                put_address(&mut bytes, address);
            }
            Header::Error(error) => {
                bytes.extend([2, 0]);
                bytes.extend(error.to_ne_bytes());
            }
        }
        let mut header = [0; HEADER];
        header[..bytes.len()].copy_from_slice(&bytes);
        header
    }

    /// The ancillary data of the header that a message begins with; none if it has no header.
    pub(crate) fn ancillary(bytes: &[u8]) -> [u8; BESIDE] {
        let header = bytes.get(..HEADER).and_then(<[u8]>::last_chunk);
        header.copied().unwrap_or([0; BESIDE])
    }

    /// The header that a message begins with; `None` if it is not one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Header> {
        let (kind, rest) = bytes.get(..HEADER)?.split_at(2);
        match kind {
            [0, 0] => Some(Header::Connected),
            [1, 0] => take_address(rest).map(Header::Address),
            [2, 0] => {
                let error = c_int::from_ne_bytes(*rest.first_chunk()?);
                (1..4096).contains(&error).then_some(Header::Error(error))
            }
            _ => None,
        }
    }
}
