//! Pups: types, well-known sockets, error codes, and addresses as text.

use std::fmt;
use std::str::FromStr;
pub use weir_wire::pup::Port;
use weir_wire::pup::{Packet, Repr};

/// Largest number of bytes in a Pup that gateways carry (PupSpec 1978).
pub const PAYLOAD_LEN_MAX: usize = 532;
/// Length of the longest Pup, in bytes.
pub const PUP_LEN_MAX: usize = Repr::LEN + PAYLOAD_LEN_MAX + Repr::CHECKSUM_LEN;
/// Gateways that a Pup passes at most.
pub const HOPS_MAX: u8 = 15;

/// Pup types. Those below 128 mean the same at every socket.
pub mod kind {
    /// Echo Me: answer with I'm an echo.
    pub const ECHO_ME: u8 = 1;
    /// I'm an echo.
    pub const ECHO: u8 = 2;
    /// I'm a bad echo: the checksum was wrong.
    pub const BAD_ECHO: u8 = 3;
    /// Error: a Pup was not delivered.
    pub const ERROR: u8 = 4;
    /// Request for connection (RTP).
    pub const RFC: u8 = 8;
    /// Abort of a connection (RTP).
    pub const ABORT: u8 = 9;
    /// End of a connection (RTP).
    pub const END: u8 = 10;
    /// Reply to an end (RTP).
    pub const END_REPLY: u8 = 11;
    /// Data (BSP).
    pub const DATA: u8 = 16;
    /// Data that asks for an acknowledgment (BSP).
    pub const ADATA: u8 = 17;
    /// Acknowledgment (BSP).
    pub const ACK: u8 = 18;
    /// A mark in the byte stream (BSP).
    pub const MARK: u8 = 19;
    /// Interrupt (BSP).
    pub const INTERRUPT: u8 = 20;
    /// Reply to an interrupt (BSP).
    pub const INTERRUPT_REPLY: u8 = 21;
    /// A mark that asks for an acknowledgment (BSP).
    pub const AMARK: u8 = 22;
    /// Data (EFTP).
    pub const EFTP_DATA: u8 = 24;
    /// Acknowledgment (EFTP).
    pub const EFTP_ACK: u8 = 25;
    /// End (EFTP).
    pub const EFTP_END: u8 = 26;
    /// Abort (EFTP).
    pub const EFTP_ABORT: u8 = 27;
    /// Gateway information request, at socket 2.
    pub const GATEWAY_REQUEST: u8 = 128;
    /// Gateway information, at socket 2.
    pub const GATEWAY_INFORMATION: u8 = 129;
    /// Request for the date and time as text, at socket 4.
    pub const STRING_TIME_REQUEST: u8 = 128;
    /// Date and time as text.
    pub const STRING_TIME: u8 = 129;
    /// Request for the time as an Alto has it, at socket 4.
    pub const ALTO_TIME_REQUEST: u8 = 134;
    /// The time as an Alto has it.
    pub const ALTO_TIME: u8 = 135;
    /// Look-up of a name, at socket 4.
    pub const NAME_LOOKUP: u8 = 144;
    /// Ports of a name.
    pub const NAME_IS: u8 = 145;
    /// A look-up found nothing.
    pub const LOOKUP_ERROR: u8 = 146;
    /// Look-up of an address, at socket 4.
    pub const ADDRESS_LOOKUP: u8 = 147;
    /// The name of an address.
    pub const ADDRESS_IS: u8 = 148;
}

/// Well-known sockets.
pub mod socket {
    /// Telnet.
    pub const TELNET: u32 = 1;
    /// Gateway information.
    pub const GATEWAY: u32 = 2;
    /// FTP.
    pub const FTP: u32 = 3;
    /// Miscellaneous services: time, names.
    pub const MISCELLANEOUS: u32 = 4;
    /// Echo.
    pub const ECHO: u32 = 5;
    /// EFTP.
    pub const EFTP: u32 = 0o20;
}

/// Codes of error Pups.
pub mod error {
    /// The checksum is wrong.
    pub const CHECKSUM: u16 = 1;
    /// There is no such socket at the host.
    pub const NO_SOCKET: u16 = 2;
    /// The host has no room for the Pup.
    pub const NO_ROOM: u16 = 3;
    /// A gateway has no route to the network.
    pub const NO_ROUTE: u16 = 0o1002;
    /// A gateway cannot reach the host.
    pub const NO_HOST: u16 = 0o1003;
    /// The Pup passed too many gateways.
    pub const HOPS: u16 = 0o1004;
}

/// A Pup as it is sent or received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pup {
    /// The header.
    pub head: Repr,
    /// The payload, without padding.
    pub payload: Vec<u8>,
}

impl Pup {
    /// A Pup that has passed no gateway.
    pub fn new(pup_type: u8, identifier: u32, dst: Port, src: Port, payload: &[u8]) -> Pup {
        Pup {
            head: Repr {
                control: 0,
                pup_type,
                identifier,
                dst,
                src,
            },
            payload: payload.to_vec(),
        }
    }

    /// Reads a Pup; the bytes may end with padding. `None` if it is cut short,
    /// contradicts the format, or its checksum is wrong.
    pub fn parse(bytes: &[u8]) -> Option<Pup> {
        let packet = Packet::new(bytes).ok()?;
        if packet.length() > PUP_LEN_MAX || packet.checksum_is_right() == Some(false) {
            return None;
        }
        let payload = packet.payload();
        let whole = payload.len() == packet.length() - Repr::LEN - Repr::CHECKSUM_LEN;
        whole.then(|| Pup {
            head: Repr::parse(&packet),
            payload: payload.to_vec(),
        })
    }

    /// Appends the Pup to `out`, with its checksum.
    ///
    /// # Panics
    /// If the payload is longer than [`PAYLOAD_LEN_MAX`].
    pub fn emit(&self, out: &mut Vec<u8>) {
        assert!(self.payload.len() <= PAYLOAD_LEN_MAX, "a Pup's length");
        let start = out.len();
        out.resize(start + Repr::packet_len(self.payload.len()), 0);
        let packet = &mut out[start..];
        packet[Repr::LEN..Repr::LEN + self.payload.len()].copy_from_slice(&self.payload);
        self.head.emit(packet, self.payload.len());
    }

    /// Gateways that the Pup has passed.
    pub fn hops(&self) -> u8 {
        self.head.control >> 4
    }

    /// The answer of this Pup's receiver to its sender, from the port that was
    /// asked.
    pub fn reply(&self, pup_type: u8, payload: &[u8]) -> Pup {
        let (head, identifier) = (&self.head, self.head.identifier);
        Pup::new(pup_type, identifier, head.src, head.dst, payload)
    }

    /// The error Pup about this Pup: its header, a code, an argument, and a text.
    pub fn error(&self, code: u16, text: &str) -> Pup {
        let mut whole = Vec::new();
        self.emit(&mut whole);
        let mut payload = whole[..Repr::LEN].to_vec();
        payload.extend(code.to_be_bytes());
        payload.extend([0, 0]);
        payload.extend(text.bytes().take(200));
        self.reply(kind::ERROR, &payload)
    }

    /// Code and text of an error Pup; `None` if it is cut short.
    pub fn error_reason(&self) -> Option<(u16, String)> {
        let rest = self.payload.get(Repr::LEN..)?;
        let code = u16::from_be_bytes(*rest.first_chunk()?);
        let text = String::from_utf8_lossy(rest.get(4..)?).into_owned();
        Some((code, text))
    }
}

/// An address as text: `NET#HOST#SOCKET`, in octal, as the Pup world writes it;
/// the net and the socket may be empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address(pub Port);

/// The error of a text that is not an address.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error(
    "`{0}` is no Pup address: write NET#HOST#SOCKET in octal, such as 1#2#5 or 1#2#; \
     net and host are at most 377"
)]
pub struct ParseAddressError(pub String);

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Address, ParseAddressError> {
        let refuse = || ParseAddressError(text.chars().take(40).collect());
        let octal = |part: &str| match part {
            "" => Some(0),
            part if part.bytes().all(|byte| byte.is_ascii_digit()) => {
                u32::from_str_radix(part, 8).ok()
            }
            _ => None,
        };
        let parts: Vec<&str> = text.split('#').collect();
        let [net, host, socket] = parts[..] else {
            return Err(refuse());
        };
        let byte = |part| octal(part).and_then(|number| u8::try_from(number).ok());
        Ok(Address(Port {
            net: byte(net).ok_or_else(refuse)?,
            host: byte(host).ok_or_else(refuse)?,
            socket: octal(socket).ok_or_else(refuse)?,
        }))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Port { net, host, socket } = self.0;
        write!(f, "{net:o}#{host:o}#")?;
        if socket == 0 {
            return Ok(());
        }
        write!(f, "{socket:o}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Port = Port {
        net: 1,
        host: 2,
        socket: 5,
    };
    const B: Port = Port {
        net: 1,
        host: 3,
        socket: 0o777,
    };

    #[test]
    fn addresses_are_octal() {
        let address: Address = "1#12#5".parse().unwrap();
        assert_eq!(
            (address.0.net, address.0.host, address.0.socket),
            (1, 10, 5)
        );
        for text in ["1#2#", "0#377#", "1#2#20"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "1#2", "1#400#", "8#1#", "1#2#3#4", "+1#2#", "1#-2#"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_pup_reads_back_and_a_damaged_one_does_not() {
        for len in [0, 1, 2, 531, 532] {
            let pup = Pup::new(kind::ECHO_ME, 9, A, B, &vec![7; len]);
            let mut bytes = Vec::new();
            pup.emit(&mut bytes);
            assert_eq!(Pup::parse(&bytes), Some(pup));
            for cut in 0..bytes.len() {
                assert_ne!(
                    Pup::parse(&bytes[..cut]).map(|one| one.payload.len()),
                    Some(len + 1)
                );
            }
            bytes[5] ^= 1;
            assert_eq!(Pup::parse(&bytes), None);
        }
    }

    #[test]
    fn an_error_quotes_the_pup() {
        let pup = Pup::new(kind::ECHO_ME, 9, A, B, b"hello");
        let error = pup.error(error::NO_SOCKET, "nobody");
        assert_eq!((error.head.dst, error.head.src), (B, A));
        let reason = (error::NO_SOCKET, "nobody".to_owned());
        assert_eq!(error.error_reason(), Some(reason));
    }
}
