//! RADIUS packets (RFC 2865 §3, §5), the authenticators of accounting (RFC 2866 §3) and of dynamic
//! authorization (RFC 5176 §3.3, §3.4), and Message-Authenticator (RFC 3579 §3.2).

use hmac::{Hmac, KeyInit, Mac};
use md5::{Digest, Md5};

/// Code of an Accounting-Request.
pub const ACCOUNTING_REQUEST: u8 = 4;
/// Code of an Accounting-Response.
pub const ACCOUNTING_RESPONSE: u8 = 5;
/// Code of a Disconnect-Request (RFC 5176 §2.1); its ACK and NAK are the next two.
pub const DISCONNECT_REQUEST: u8 = 40;
/// Code of a CoA-Request (RFC 5176 §2.2); its ACK and NAK are the next two.
pub const COA_REQUEST: u8 = 43;
/// Length of the header: code, identifier, length, authenticator.
pub const HEADER_LEN: usize = 20;
/// The longest packet (RFC 2866 §3).
pub const LEN_MAX: usize = 4095;

/// Attribute types (RFC 2865, 2866, 2869, 3162, 4372, 4818, 6911).
pub mod attribute {
    /// User-Name.
    pub const USER_NAME: u8 = 1;
    /// NAS-IP-Address.
    pub const NAS_IP_ADDRESS: u8 = 4;
    /// NAS-Port.
    pub const NAS_PORT: u8 = 5;
    /// Service-Type.
    pub const SERVICE_TYPE: u8 = 6;
    /// Framed-IP-Address.
    pub const FRAMED_IP_ADDRESS: u8 = 8;
    /// Filter-Id.
    pub const FILTER_ID: u8 = 11;
    /// Framed-Route: a text, `PREFIX GATEWAY METRIC…`.
    pub const FRAMED_ROUTE: u8 = 22;
    /// Class.
    pub const CLASS: u8 = 25;
    /// Vendor-Specific.
    pub const VENDOR_SPECIFIC: u8 = 26;
    /// Called-Station-Id.
    pub const CALLED_STATION_ID: u8 = 30;
    /// Calling-Station-Id.
    pub const CALLING_STATION_ID: u8 = 31;
    /// NAS-Identifier.
    pub const NAS_IDENTIFIER: u8 = 32;
    /// Proxy-State: copied into the reply.
    pub const PROXY_STATE: u8 = 33;
    /// Acct-Status-Type.
    pub const ACCT_STATUS_TYPE: u8 = 40;
    /// Acct-Delay-Time, seconds.
    pub const ACCT_DELAY_TIME: u8 = 41;
    /// Acct-Input-Octets: from the subscriber.
    pub const ACCT_INPUT_OCTETS: u8 = 42;
    /// Acct-Output-Octets: to the subscriber.
    pub const ACCT_OUTPUT_OCTETS: u8 = 43;
    /// Acct-Session-Id.
    pub const ACCT_SESSION_ID: u8 = 44;
    /// Acct-Session-Time, seconds.
    pub const ACCT_SESSION_TIME: u8 = 46;
    /// Acct-Input-Packets.
    pub const ACCT_INPUT_PACKETS: u8 = 47;
    /// Acct-Output-Packets.
    pub const ACCT_OUTPUT_PACKETS: u8 = 48;
    /// Acct-Multi-Session-Id.
    pub const ACCT_MULTI_SESSION_ID: u8 = 50;
    /// Acct-Input-Gigawords: how often Acct-Input-Octets wrapped.
    pub const ACCT_INPUT_GIGAWORDS: u8 = 52;
    /// Acct-Output-Gigawords.
    pub const ACCT_OUTPUT_GIGAWORDS: u8 = 53;
    /// Event-Timestamp, seconds of Unix time.
    pub const EVENT_TIMESTAMP: u8 = 55;
    /// NAS-Port-Type.
    pub const NAS_PORT_TYPE: u8 = 61;
    /// Message-Authenticator.
    pub const MESSAGE_AUTHENTICATOR: u8 = 80;
    /// NAS-Port-Id.
    pub const NAS_PORT_ID: u8 = 87;
    /// Originating-Line-Info.
    pub const ORIGINATING_LINE_INFO: u8 = 94;
    /// NAS-IPv6-Address.
    pub const NAS_IPV6_ADDRESS: u8 = 95;
    /// Framed-Interface-Id.
    pub const FRAMED_INTERFACE_ID: u8 = 96;
    /// Framed-IPv6-Prefix.
    pub const FRAMED_IPV6_PREFIX: u8 = 97;
    /// Framed-IPv6-Route.
    pub const FRAMED_IPV6_ROUTE: u8 = 99;
    /// Chargeable-User-Identity.
    pub const CHARGEABLE_USER_IDENTITY: u8 = 89;
    /// Error-Cause (RFC 5176 §3.5).
    pub const ERROR_CAUSE: u8 = 101;
    /// Delegated-IPv6-Prefix.
    pub const DELEGATED_IPV6_PREFIX: u8 = 123;
    /// Framed-IPv6-Address.
    pub const FRAMED_IPV6_ADDRESS: u8 = 168;
}

/// Why bytes are no packet that counts.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// Shorter than a header, or than its length field says, or longer than 4,095 bytes.
    #[error("a length that no packet has")]
    Length,
    /// An attribute's length is below 2, or ends beyond the packet.
    #[error("an attribute that ends outside of the packet")]
    Attribute,
    /// The authenticator is not that of the shared secret.
    #[error("an authenticator that is not that of the shared secret")]
    Authenticator,
    /// Message-Authenticator is not there.
    #[error("no Message-Authenticator")]
    Unsigned,
}

/// A packet whose attributes have been checked to lie within it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A packet of these bytes; bytes behind its length are padding (RFC 2865 §3).
    ///
    /// # Errors
    ///
    /// If a length is wrong.
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, PacketError> {
        let Some(&[high, low]) = bytes.get(2..4) else {
            return Err(PacketError::Length);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if !(HEADER_LEN..=LEN_MAX).contains(&length) {
            return Err(PacketError::Length);
        }
        let bytes = bytes.get(..length).ok_or(PacketError::Length)?;
        let mut rest = &bytes[HEADER_LEN..];
        while let [_, after @ ..] = rest {
            let length = usize::from(*after.first().ok_or(PacketError::Attribute)?);
            if length < 2 {
                return Err(PacketError::Attribute);
            }
            rest = rest.get(length..).ok_or(PacketError::Attribute)?;
        }
        Ok(Packet { bytes })
    }

    /// Code.
    pub fn code(&self) -> u8 {
        self.bytes[0]
    }

    /// Identifier.
    pub fn identifier(&self) -> u8 {
        self.bytes[1]
    }

    /// Authenticator.
    pub fn authenticator(&self) -> &'a [u8; 16] {
        self.bytes[4..HEADER_LEN].first_chunk().expect("16 bytes")
    }

    /// Types and values of the attributes, in order.
    pub fn attributes(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut rest = &self.bytes[HEADER_LEN..];
        std::iter::from_fn(move || {
            let (attribute, after) = rest.split_at_checked(usize::from(*rest.get(1)?))?;
            rest = after;
            Some((attribute[0], &attribute[2..]))
        })
    }

    /// The value of the first attribute of this type.
    pub fn first(&self, attribute: u8) -> Option<&'a [u8]> {
        let mut attributes = self.attributes();
        attributes.find_map(|(found, value)| (found == attribute).then_some(value))
    }

    /// The first attribute of this type as a 32-bit number; none if its length is not 4.
    pub fn number(&self, attribute: u8) -> Option<u32> {
        Some(u32::from_be_bytes(self.first(attribute)?.try_into().ok()?))
    }

    /// Checks the authenticator of an Accounting-Request, a CoA-Request or a Disconnect-Request: MD5 over the packet with 16 zero bytes in
    /// its place, and the secret (RFC 2866 §3).
    ///
    /// # Errors
    ///
    /// If it is another.
    pub fn verify_request(&self, secret: &[u8]) -> Result<(), PacketError> {
        self.verify(&[0; 16], secret)
    }

    fn verify(&self, authenticator: &[u8; 16], secret: &[u8]) -> Result<(), PacketError> {
        let mut hash = Md5::new();
        hash.update(&self.bytes[..4]);
        hash.update(authenticator);
        hash.update(&self.bytes[HEADER_LEN..]);
        hash.update(secret);
        let expected: [u8; 16] = hash.finalize().into();
        // In constant time: the time of an answer says nothing of the secret.
        let difference = expected.iter().zip(self.authenticator());
        let difference = difference.fold(0, |sum, (a, b)| sum | (a ^ b));
        if difference == 0 {
            Ok(())
        } else {
            Err(PacketError::Authenticator)
        }
    }

    /// Checks Message-Authenticator: HMAC-MD5 over the packet with 16 zero bytes in its place, and with
    /// `authenticator` in that of the packet's: the request's for a response, zeros for an
    /// Accounting-Request, a CoA-Request or a Disconnect-Request (RFC 5176 §3.4).
    ///
    /// # Errors
    ///
    /// [`PacketError::Unsigned`] without it, [`PacketError::Authenticator`] if it is another.
    pub fn verify_message(
        &self,
        authenticator: &[u8; 16],
        secret: &[u8],
    ) -> Result<(), PacketError> {
        let mut at = HEADER_LEN;
        for (kind, value) in self.attributes() {
            if kind != attribute::MESSAGE_AUTHENTICATOR {
                at += 2 + value.len();
                continue;
            }
            if value.len() != 16 {
                return Err(PacketError::Authenticator);
            }
            let mut mac = keyed(secret);
            mac.update(&self.bytes[..4]);
            mac.update(authenticator);
            mac.update(&self.bytes[HEADER_LEN..at + 2]);
            mac.update(&[0; 16]);
            mac.update(&self.bytes[at + 18..]);
            // In constant time.
            return mac
                .verify_slice(value)
                .map_err(|_| PacketError::Authenticator);
        }
        Err(PacketError::Unsigned)
    }

    /// Checks the authenticator of a response to a request with this one (RFC 2865 §3).
    ///
    /// # Errors
    ///
    /// If it is another.
    pub fn verify_response(&self, request: &[u8; 16], secret: &[u8]) -> Result<(), PacketError> {
        self.verify(request, secret)
    }

    /// The answer to a CoA-Request or Disconnect-Request, of this code, with these attributes beside
    /// Proxy-State, and with Message-Authenticator.
    pub fn signed_response(&self, code: u8, attributes: &[(u8, &[u8])], secret: &[u8]) -> Vec<u8> {
        let states = self.attributes();
        let states = states.filter(|(found, _)| *found == attribute::PROXY_STATE);
        let all: Vec<(u8, &[u8])> = attributes.iter().copied().chain(states).collect();
        signed(code, self.identifier(), self.authenticator(), &all, secret)
    }

    /// The Accounting-Response to this request: its identifier, its Proxy-State attributes in order,
    /// and the authenticator of RFC 2866 §3.
    pub fn response(&self, secret: &[u8]) -> Vec<u8> {
        let states = self.attributes();
        let states = states.filter(|(found, _)| *found == attribute::PROXY_STATE);
        let states: Vec<(u8, &[u8])> = states.collect();
        build(
            ACCOUNTING_RESPONSE,
            self.identifier(),
            self.authenticator(),
            &states,
            secret,
        )
    }
}

/// An Accounting-Request with these attributes; each value has at most 253 bytes.
pub fn request(identifier: u8, attributes: &[(u8, &[u8])], secret: &[u8]) -> Vec<u8> {
    build(ACCOUNTING_REQUEST, identifier, &[0; 16], attributes, secret)
}

/// A CoA-Request or Disconnect-Request with these attributes and Message-Authenticator; each value has
/// at most 253 bytes.
pub fn signed_request(
    code: u8,
    identifier: u8,
    attributes: &[(u8, &[u8])],
    secret: &[u8],
) -> Vec<u8> {
    signed(code, identifier, &[0; 16], attributes, secret)
}

fn keyed(secret: &[u8]) -> Hmac<Md5> {
    Hmac::new_from_slice(secret).expect("a key of any length")
}

/// As [`build`], with Message-Authenticator, which comes first.
fn signed(
    code: u8,
    identifier: u8,
    authenticator: &[u8; 16],
    attributes: &[(u8, &[u8])],
    secret: &[u8],
) -> Vec<u8> {
    let with = |mac: &[u8; 16]| {
        let first: (u8, &[u8]) = (attribute::MESSAGE_AUTHENTICATOR, mac);
        let all: Vec<_> = [first]
            .into_iter()
            .chain(attributes.iter().copied())
            .collect();
        build(code, identifier, authenticator, &all, secret)
    };
    let unsigned = with(&[0; 16]);
    let mut mac = keyed(secret);
    mac.update(&unsigned[..4]);
    mac.update(authenticator);
    mac.update(&unsigned[HEADER_LEN..]);
    with(&mac.finalize().into_bytes().into())
}

fn build(
    code: u8,
    identifier: u8,
    authenticator: &[u8; 16],
    attributes: &[(u8, &[u8])],
    secret: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![code, identifier, 0, 0];
    bytes.extend_from_slice(authenticator);
    for (kind, value) in attributes {
        let length = u8::try_from(value.len() + 2).expect("a value of at most 253 bytes");
        bytes.extend_from_slice(&[*kind, length]);
        bytes.extend_from_slice(value);
    }
    let length = u16::try_from(bytes.len()).expect("attributes of one packet");
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    let mut hash = Md5::new();
    hash.update(&bytes);
    hash.update(secret);
    bytes[4..HEADER_LEN].copy_from_slice(&hash.finalize());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_proves_its_secret_and_has_its_response() {
        let state: (u8, &[u8]) = (attribute::PROXY_STATE, b"proxy");
        let bytes = request(7, &[(attribute::USER_NAME, b"alice"), state], b"secret");
        let packet = Packet::new(&bytes).unwrap();
        assert_eq!(packet.first(attribute::USER_NAME), Some(&b"alice"[..]));
        assert_eq!(packet.verify_request(b"secret"), Ok(()));
        assert_eq!(
            packet.verify_request(b"Secret"),
            Err(PacketError::Authenticator)
        );
        let response = packet.response(b"secret");
        let answer = Packet::new(&response).unwrap();
        assert_eq!(
            (answer.code(), answer.identifier()),
            (ACCOUNTING_RESPONSE, 7)
        );
        assert_eq!(answer.attributes().collect::<Vec<_>>(), [state]);
        for at in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[at] ^= 1;
            let good = Packet::new(&forged).is_ok_and(|it| it.verify_request(b"secret").is_ok());
            assert!(!good, "byte {at}");
        }
    }

    #[test]
    fn a_signed_request_and_its_answer_prove_their_secret() {
        let attributes: [(u8, &[u8]); 2] = [
            (attribute::ACCT_SESSION_ID, b"7"),
            (attribute::PROXY_STATE, b"proxy"),
        ];
        let bytes = signed_request(DISCONNECT_REQUEST, 9, &attributes, b"secret");
        let packet = Packet::new(&bytes).unwrap();
        assert_eq!(packet.verify_request(b"secret"), Ok(()));
        assert_eq!(packet.verify_message(&[0; 16], b"secret"), Ok(()));
        let wrong = packet.verify_message(&[0; 16], b"Secret");
        assert_eq!(wrong, Err(PacketError::Authenticator));
        let cause: (u8, &[u8]) = (attribute::ERROR_CAUSE, &[0, 0, 1, 247]);
        let answer = packet.signed_response(DISCONNECT_REQUEST + 2, &[cause], b"secret");
        let answer = Packet::new(&answer).unwrap();
        assert_eq!((answer.code(), answer.identifier()), (42, 9));
        let asked = packet.authenticator();
        assert_eq!(answer.verify_response(asked, b"secret"), Ok(()));
        assert_eq!(answer.verify_message(asked, b"secret"), Ok(()));
        assert_eq!(answer.number(attribute::ERROR_CAUSE), Some(503));
        assert_eq!(answer.first(attribute::PROXY_STATE), Some(&b"proxy"[..]));
        for at in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[at] ^= 1;
            let good =
                Packet::new(&forged).is_ok_and(|it| it.verify_message(&[0; 16], b"secret").is_ok());
            // The authenticator of the packet is not part of this proof.
            assert_eq!(good, (4..20).contains(&at), "byte {at}");
        }
        let unsigned = request(1, &attributes, b"secret");
        let unsigned = Packet::new(&unsigned).unwrap();
        let refused = unsigned.verify_message(&[0; 16], b"secret");
        assert_eq!(refused, Err(PacketError::Unsigned));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let bytes = request(7, &[(attribute::USER_NAME, b"alice")], b"secret");
        for length in 0..bytes.len() {
            assert!(Packet::new(&bytes[..length]).is_err());
        }
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut wrong = bytes.clone();
                wrong[at] = value;
                if let Ok(packet) = Packet::new(&wrong) {
                    packet.attributes().for_each(drop);
                }
            }
        }
    }
}
