//! Ancillary data of weir's UDP sockets (cmsg(3), ip(7), ipv6(7), RFC 3542): from what the stack knows
//! to the caller's buffer, and back. The order of messages and the treatment of short buffers are
//! Linux' (`put_cmsg`).

use crate::sock::Sock;
use crate::{address, host};
use libc::{c_int, msghdr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::copy_nonoverlapping;
use std::time::UNIX_EPOCH;
use weir_socket::UdpSocket;
use weir_stack::udp::{Arrival, Datagram, IcmpError, SendInfo};

const SOL_SOCKET: c_int = libc::SOL_SOCKET;
const IP: c_int = libc::IPPROTO_IP;
const IPV6: c_int = libc::IPPROTO_IPV6;
/// Level of the options of UDP.
const UDP: c_int = libc::IPPROTO_UDP;

/// Options that ask for messages, in the order of their bits.
const REQUESTS: [(c_int, c_int); 8] = [
    (SOL_SOCKET, libc::SO_TIMESTAMP),
    (SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (IP, libc::IP_PKTINFO),
    (IP, libc::IP_RECVTTL),
    (IP, libc::IP_RECVTOS),
    (IPV6, libc::IPV6_RECVPKTINFO),
    (IPV6, libc::IPV6_RECVHOPLIMIT),
    (IPV6, libc::IPV6_RECVTCLASS),
];

/// Whether an option asks for messages with each datagram.
pub(crate) fn is_request(option: (c_int, c_int)) -> bool {
    REQUESTS.contains(&option)
}

/// The messages that the options of a socket ask for, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Requested(u8);

impl Requested {
    /// The messages that are on according to `is_on`.
    pub(crate) fn of(is_on: impl Fn((c_int, c_int)) -> bool) -> Requested {
        let on = REQUESTS.iter().enumerate().filter(|(_, one)| is_on(**one));
        Requested(on.fold(0, |bits, (at, _)| bits | 1 << at))
    }

    fn has(self, option: (c_int, c_int)) -> bool {
        let at = REQUESTS.iter().position(|one| *one == option);
        at.is_some_and(|at| self.0 >> at & 1 != 0)
    }
}

/// What a received packet brings beside its bytes, and which messages its socket asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Beside {
    requested: Requested,
    /// The destination.
    to: IpAddr,
    /// The address that a reply is sent from (`ipi_spec_dst`).
    reply_from: Ipv4Addr,
    /// The kernel's number of the link's interface.
    ifindex: u32,
    hop_limit: u8,
    traffic_class: u8,
    /// Since the beginning of 1970.
    time_ns: u64,
}

/// Length of [`Beside::to_bytes`] and of [`Given::to_bytes`].
pub(crate) const BESIDE: usize = 36;

impl Beside {
    /// What a datagram brings; `None` if the socket asks for nothing.
    pub(crate) fn of(sock: &Sock, udp: &UdpSocket, datagram: &Datagram) -> Option<Beside> {
        let requested = sock.requested();
        if requested.0 == 0 {
            return None;
        }
        let mut beside = Beside::at(requested, udp, datagram.to, &datagram.arrival);
        if let Some(IpAddr::V4(own)) = udp.reply_source(datagram) {
            beside.reply_from = own;
        }
        Some(beside)
    }

    fn at(requested: Requested, udp: &UdpSocket, to: IpAddr, arrival: &Arrival) -> Beside {
        let time = udp.system_time(arrival.at_ns).duration_since(UNIX_EPOCH);
        Beside {
            requested,
            to,
            reply_from: Ipv4Addr::UNSPECIFIED,
            ifindex: host::ifindex_of(arrival.link),
            hop_limit: arrival.hop_limit,
            traffic_class: arrival.traffic_class,
            time_ns: time.map_or(0, |time| time.as_nanos() as u64),
        }
    }

    /// The form for another process: requested, hop limit, traffic class, 0; interface (4);
    /// destination as IPv6 (16); own address (4); time (8).
    pub(crate) fn to_bytes(self) -> [u8; BESIDE] {
        let mut bytes = [0; BESIDE];
        bytes[..3].copy_from_slice(&[self.requested.0, self.hop_limit, self.traffic_class]);
        bytes[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        bytes[8..24].copy_from_slice(&mapped(self.to).octets());
        bytes[24..28].copy_from_slice(&self.reply_from.octets());
        bytes[28..].copy_from_slice(&self.time_ns.to_ne_bytes());
        bytes
    }

    /// `None` if the socket asks for nothing.
    pub(crate) fn from_bytes(bytes: &[u8; BESIDE]) -> Option<Beside> {
        let [requested, hop_limit, traffic_class, _, rest @ ..] = bytes;
        let (ifindex, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk::<16>()?;
        let (reply_from, time) = rest.split_first_chunk::<4>()?;
        (*requested != 0).then_some(Beside {
            requested: Requested(*requested),
            to: IpAddr::V6(Ipv6Addr::from(*to)).to_canonical(),
            reply_from: Ipv4Addr::from(*reply_from),
            ifindex: u32::from_ne_bytes(*ifindex),
            hop_limit: *hop_limit,
            traffic_class: *traffic_class,
            time_ns: u64::from_ne_bytes(*time.first_chunk()?),
        })
    }
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// An ICMP error as a socket with `IP_RECVERR` or `IPV6_RECVERR` receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reported {
    /// The destination of the datagram.
    pub(crate) to: SocketAddr,
    /// The payload of the datagram, as far as it is known.
    pub(crate) bytes: Vec<u8>,
    offender: IpAddr,
    beside: Beside,
    errno: u32,
    origin: u8,
    kind: u8,
    code: u8,
    info: u32,
}

/// Longest payload of a [`Reported`].
const REPORTED_MAX: usize = 4096;
/// Length of [`Reported::to_bytes`] without the payload.
const REPORTED: usize = 18 + 16 + BESIDE + 12;

impl Reported {
    pub(crate) fn of(sock: &Sock, udp: &UdpSocket, error: IcmpError) -> Reported {
        let requested = sock.requested();
        let mut bytes = error.bytes;
        bytes.truncate(REPORTED_MAX);
        Reported {
            to: error.to,
            bytes,
            offender: error.offender,
            beside: Beside::at(requested, udp, error.from, &error.arrival),
            errno: weir_socket::icmp_error_number(error.cause).unsigned_abs(),
            origin: if error.cause.v6 {
                libc::SO_EE_ORIGIN_ICMP6
            } else {
                libc::SO_EE_ORIGIN_ICMP
            },
            kind: error.cause.kind,
            code: error.cause.code,
            info: error.info,
        }
    }

    /// The form for another process.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = mapped(self.to.ip()).octets().to_vec();
        bytes.extend(self.to.port().to_ne_bytes());
        bytes.extend(mapped(self.offender).octets());
        bytes.extend(self.beside.to_bytes());
        bytes.extend(self.errno.to_ne_bytes());
        bytes.extend(self.info.to_ne_bytes());
        bytes.extend([self.origin, self.kind, self.code, 0]);
        bytes.extend(&self.bytes);
        bytes
    }

    /// `None` if the bytes are not one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Reported> {
        let (head, rest) = bytes.split_at_checked(REPORTED)?;
        let ip = |bytes: &[u8; 16]| IpAddr::V6(Ipv6Addr::from(*bytes)).to_canonical();
        let (to, head) = head.split_first_chunk::<16>()?;
        let (port, head) = head.split_first_chunk::<2>()?;
        let (offender, head) = head.split_first_chunk::<16>()?;
        let (beside, head) = head.split_first_chunk::<BESIDE>()?;
        let (errno, head) = head.split_first_chunk::<4>()?;
        let (info, head) = head.split_first_chunk::<4>()?;
        let [origin, kind, code, _] = *head.first_chunk()?;
        let mut whole = *beside;
        // What asks for nothing is no less there.
        whole[0] |= 1;
        let mut known = Beside::from_bytes(&whole)?;
        known.requested = Requested(beside[0]);
        Some(Reported {
            to: SocketAddr::new(ip(to), u16::from_ne_bytes(*port)),
            bytes: rest.to_vec(),
            offender: ip(offender),
            beside: known,
            errno: u32::from_ne_bytes(*errno),
            origin,
            kind,
            code,
            info: u32::from_ne_bytes(*info),
        })
    }
}

/// The part of a message's buffer for ancillary data that is not written yet.
struct Writer {
    to: *mut u8,
    len: usize,
    flags: c_int,
}

const HEAD: usize = size_of::<libc::cmsghdr>();

/// A length rounded up to that of the next message.
fn aligned(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

impl Writer {
    /// Writes a message, cut to the room that is left.
    ///
    /// # Safety
    /// `len` bytes can be written at `to`.
    unsafe fn put(&mut self, level: c_int, kind: c_int, value: &[u8]) {
        if self.to.is_null() || self.len < HEAD {
            self.flags |= libc::MSG_CTRUNC;
            return;
        }
        let mut whole = HEAD + value.len();
        if self.len < whole {
            self.flags |= libc::MSG_CTRUNC;
            whole = self.len;
        }
        // SAFETY: all fields of a zeroed header are valid.
        let mut head: libc::cmsghdr = unsafe { std::mem::zeroed() };
        head.cmsg_len = whole as _;
        head.cmsg_level = level;
        head.cmsg_type = kind;
        let step = aligned(HEAD + value.len()).min(self.len);
        // SAFETY: the caller's promise; no more than `len` bytes are written.
        unsafe {
            self.to.cast::<libc::cmsghdr>().write_unaligned(head);
            copy_nonoverlapping(value.as_ptr(), self.to.add(HEAD), whole - HEAD);
            self.to = self.to.add(step);
        }
        self.len -= step;
    }

    /// Writes what the socket has asked for, as `sock_recv_timestamp`, `ip6_datagram_recv_ctl` and
    /// `ip_cmsg_recv` do.
    ///
    /// # Safety
    /// As [`Writer::put`].
    unsafe fn beside(&mut self, domain: c_int, beside: &Beside) {
        let has = |level, kind| beside.requested.has((level, kind));
        let (seconds, ns) = (
            beside.time_ns / 1_000_000_000,
            beside.time_ns % 1_000_000_000,
        );
        let time = |fraction: u64| [seconds.to_ne_bytes(), fraction.to_ne_bytes()].concat();
        let (limit, class) = (beside.hop_limit, beside.traffic_class);
        let number = |value: u8| c_int::from(value).to_ne_bytes();
        // SAFETY: the caller's promise.
        unsafe {
            if has(SOL_SOCKET, libc::SO_TIMESTAMPNS) {
                self.put(SOL_SOCKET, libc::SO_TIMESTAMPNS, &time(ns));
            } else if has(SOL_SOCKET, libc::SO_TIMESTAMP) {
                self.put(SOL_SOCKET, libc::SO_TIMESTAMP, &time(ns / 1000));
            }
            if domain == libc::AF_INET6 && has(IPV6, libc::IPV6_RECVPKTINFO) {
                let to = mapped(beside.to).octets();
                let info = [&to[..], &beside.ifindex.to_ne_bytes()].concat();
                self.put(IPV6, libc::IPV6_PKTINFO, &info);
            }
            match beside.to {
                IpAddr::V4(to) => {
                    if has(IP, libc::IP_PKTINFO) {
                        let (own, to) = (beside.reply_from.octets(), to.octets());
                        let info = [beside.ifindex.to_ne_bytes(), own, to].concat();
                        self.put(IP, libc::IP_PKTINFO, &info);
                    }
                    if has(IP, libc::IP_RECVTTL) {
                        self.put(IP, libc::IP_TTL, &number(limit));
                    }
                    if has(IP, libc::IP_RECVTOS) {
                        self.put(IP, libc::IP_TOS, &[class]);
                    }
                }
                IpAddr::V6(_) => {
                    if has(IPV6, libc::IPV6_RECVHOPLIMIT) {
                        self.put(IPV6, libc::IPV6_HOPLIMIT, &number(limit));
                    }
                    if has(IPV6, libc::IPV6_RECVTCLASS) {
                        self.put(IPV6, libc::IPV6_TCLASS, &number(class));
                    }
                }
            }
        }
    }

    /// Writes an ICMP error, behind what the socket has asked for.
    ///
    /// # Safety
    /// As [`Writer::put`].
    unsafe fn reported(&mut self, domain: c_int, error: &Reported) {
        // SAFETY: the caller's promise.
        unsafe { self.beside(domain, &error.beside) };
        // `sock_extended_err` of ip(7), and the offender's address.
        let mut value = error.errno.to_ne_bytes().to_vec();
        value.extend([error.origin, error.kind, error.code, 0]);
        value.extend(error.info.to_ne_bytes());
        value.extend([0; 4]);
        let offender = address::shown((error.offender, 0).into(), domain);
        let mut name = [0_u8; size_of::<libc::sockaddr_in6>()];
        let mut len = name.len() as libc::socklen_t;
        // SAFETY: the buffer has the stated length.
        let _ = unsafe { address::write(offender, name.as_mut_ptr().cast(), &raw mut len) };
        value.extend(&name[..len as usize]);
        let (level, kind) = if domain == libc::AF_INET6 {
            (IPV6, libc::IPV6_RECVERR)
        } else {
            (IP, libc::IP_RECVERR)
        };
        // SAFETY: the caller's promise.
        unsafe { self.put(level, kind, &value) };
    }
}

/// What a call has received beside bytes and sender.
pub(crate) enum Ancillary {
    None,
    Datagram(Beside),
    Error(Box<Reported>),
}

/// Writes ancillary data to a message, and its length; returns `MSG_CTRUNC` if there was no room.
///
/// # Safety
/// The message's buffer for ancillary data is valid.
pub(crate) unsafe fn write(message: &mut msghdr, domain: c_int, what: &Ancillary) -> c_int {
    let room = message.msg_controllen;
    let mut writer = Writer {
        to: message.msg_control.cast(),
        len: room,
        flags: 0,
    };
    // SAFETY: the caller's promise.
    unsafe {
        match what {
            Ancillary::None => {}
            Ancillary::Datagram(beside) => writer.beside(domain, beside),
            Ancillary::Error(error) => writer.reported(domain, error),
        }
    }
    message.msg_controllen = (room - writer.len) as _;
    writer.flags
}

/// What a message to be sent gives in place of its socket's address and options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Given {
    from: Option<IpAddr>,
    /// The kernel's number of the interface; 0 is any.
    ifindex: u32,
    hop_limit: Option<u8>,
    traffic_class: Option<u8>,
}

impl Given {
    /// Reads the ancillary data of a datagram to an address of IPv4 or not, on a socket of `domain`,
    /// as `ip_cmsg_send` and `ip6_datagram_send_ctl` do.
    ///
    /// # Errors
    /// `EINVAL` for what is not valid, and for messages that weir does not know.
    ///
    /// # Safety
    /// The message's ancillary data is valid.
    pub(crate) unsafe fn read(
        message: &msghdr,
        domain: c_int,
        to_v4: bool,
    ) -> Result<Given, c_int> {
        let mut given = Given::default();
        // SAFETY: the caller's promise.
        for (level, kind, value) in unsafe { messages(message) } {
            given.take(domain, to_v4, (level, kind), value?)?;
        }
        Ok(given)
    }

    fn take(
        &mut self,
        domain: c_int,
        to_v4: bool,
        what: (c_int, c_int),
        value: &[u8],
    ) -> Result<(), c_int> {
        /// RFC 2292's, which Linux keeps.
        const OLD_PKTINFO: c_int = 2;
        const OLD_HOPLIMIT: c_int = 8;
        let whole = |least: c_int| {
            let bytes: [u8; 4] = value.try_into().map_err(|_| libc::EINVAL)?;
            let value = c_int::from_ne_bytes(bytes);
            match value {
                -1 if least < 0 => Ok(None),
                _ if value < least => Err(libc::EINVAL),
                _ => u8::try_from(value).map(Some).map_err(|_| libc::EINVAL),
            }
        };
        match what {
            (SOL_SOCKET | UDP, _) => return Err(libc::EINVAL),
            (IP, libc::IP_PKTINFO) if to_v4 => {
                let bytes: &[u8; 12] = value.try_into().map_err(|_| libc::EINVAL)?;
                let (ifindex, rest) = bytes.split_first_chunk().ok_or(libc::EINVAL)?;
                let own: &[u8; 4] = rest.first_chunk().ok_or(libc::EINVAL)?;
                self.ifindex = u32::from_ne_bytes(*ifindex);
                self.from = Some(Ipv4Addr::from(*own).into());
            }
            (IP, libc::IP_TTL) if to_v4 => self.hop_limit = whole(1)?,
            (IP, libc::IP_TOS) if to_v4 => {
                self.traffic_class = match value {
                    [class] => Some(*class),
                    _ => whole(0)?,
                };
            }
            (IP, _) if to_v4 => return Err(libc::EINVAL),
            (IPV6, libc::IPV6_PKTINFO) if to_v4 && domain == libc::AF_INET6 => {
                self.packet_info(value, true)?;
            }
            (IPV6, libc::IPV6_PKTINFO | OLD_PKTINFO) if !to_v4 => self.packet_info(value, false)?,
            (IPV6, libc::IPV6_HOPLIMIT | OLD_HOPLIMIT) if !to_v4 => self.hop_limit = whole(-1)?,
            (IPV6, libc::IPV6_TCLASS) if !to_v4 => self.traffic_class = whole(-1)?,
            (IPV6, _) if !to_v4 => return Err(libc::EINVAL),
            // Of another protocol.
            _ => {}
        }
        self.from = self.from.filter(|from| !from.is_unspecified());
        Ok(())
    }

    /// `struct in6_pktinfo`.
    fn packet_info(&mut self, value: &[u8], to_v4: bool) -> Result<(), c_int> {
        let bytes: &[u8; 20] = value.try_into().map_err(|_| libc::EINVAL)?;
        let (own, ifindex) = bytes.split_first_chunk::<16>().ok_or(libc::EINVAL)?;
        let own = IpAddr::V6(Ipv6Addr::from(*own)).to_canonical();
        if to_v4 != own.is_ipv4() {
            return Err(libc::EINVAL);
        }
        let ifindex = ifindex.first_chunk().ok_or(libc::EINVAL)?;
        self.ifindex = u32::from_ne_bytes(*ifindex);
        self.from = Some(own);
        Ok(())
    }

    /// The same for the stack.
    ///
    /// # Errors
    /// `ENODEV` if no link of the host has this interface.
    pub(crate) fn resolve(&self) -> Result<SendInfo, c_int> {
        let link = match self.ifindex {
            0 => None,
            ifindex => Some(host::link_of(ifindex).ok_or(libc::ENODEV)?),
        };
        Ok(SendInfo {
            from: self.from,
            link,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
        })
    }

    /// The form for another process: which fields there are, hop limit, traffic class, 0; interface
    /// (4); source as IPv6 (16); 0.
    pub(crate) fn to_bytes(self) -> [u8; BESIDE] {
        let mut bytes = [0; BESIDE];
        let there = [
            self.from.is_some(),
            self.hop_limit.is_some(),
            self.traffic_class.is_some(),
        ];
        let bits = there.iter().rev();
        bytes[0] = bits.fold(0, |bits, is_there| bits << 1 | u8::from(*is_there));
        bytes[1] = self.hop_limit.unwrap_or(0);
        bytes[2] = self.traffic_class.unwrap_or(0);
        bytes[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        let from = self.from.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
        bytes[8..24].copy_from_slice(&mapped(from).octets());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; BESIDE]) -> Given {
        let [there, hop_limit, traffic_class, _, rest @ ..] = bytes;
        let (ifindex, rest) = rest.split_at(4);
        let own: [u8; 16] = std::array::from_fn(|at| rest[at]);
        let from = IpAddr::V6(Ipv6Addr::from(own)).to_canonical();
        Given {
            from: (there & 1 != 0).then_some(from),
            ifindex: u32::from_ne_bytes(std::array::from_fn(|at| ifindex[at])),
            hop_limit: (there & 2 != 0).then_some(*hop_limit),
            traffic_class: (there & 4 != 0).then_some(*traffic_class),
        }
    }
}

/// Whether a stream may be sent this ancillary data, as `sock_cmsg_send` decides: what is not for all
/// sockets is ignored.
///
/// # Errors
/// `EINVAL`.
///
/// # Safety
/// The message's ancillary data is valid.
pub(crate) unsafe fn check_of_stream(message: &msghdr) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    for (level, _, value) in unsafe { messages(message) } {
        value?;
        if level == SOL_SOCKET {
            return Err(libc::EINVAL);
        }
    }
    Ok(())
}

/// The messages of ancillary data that is to be sent; the last one is an error if its length is wrong.
///
/// # Safety
/// The message's ancillary data is valid while the result lives.
unsafe fn messages<'a>(
    message: &'a msghdr,
) -> impl Iterator<Item = (c_int, c_int, Result<&'a [u8], c_int>)> {
    let len = message.msg_controllen;
    let mut rest: &'a [u8] = if message.msg_control.is_null() || len < HEAD {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(message.msg_control.cast(), len) }
    };
    std::iter::from_fn(move || {
        if rest.len() < HEAD {
            return None;
        }
        // SAFETY: as many bytes are there, and all values of them are valid.
        let head = unsafe { rest.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let (level, kind) = (head.cmsg_level, head.cmsg_type);
        let len = head.cmsg_len as usize;
        let value = rest.get(HEAD..len).ok_or(libc::EINVAL);
        rest = match value {
            Ok(_) => rest.get(aligned(len)..).unwrap_or_default(),
            Err(_) => &[],
        };
        Some((level, kind, value))
    })
}
