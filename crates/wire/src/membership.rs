//! Multicast group membership: IGMP (RFC 1112, RFC 2236, RFC 3376) and MLD
//! (RFC 2710, RFC 3810), the host's side. Queries are parsed, reports written.
//!
//! ```text
//!  IGMP  type 1 │ response time 1 │ checksum 2 │ group 4 │ [ flags 1 │ … ]
//!  MLD   type 1 │ 0 1 │ checksum 2 │ response time 2 │ 0 2 │ group 16 │ [ … ]
//!  IGMPv3 or MLDv2 report
//!        type 1 │ 0 1 │ checksum 2 │ 0 2 │ records 2 │ record …
//!  membership record
//!        type 1 │ 0 1 │ sources 2, 0 │ group 4 or 16
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Error;
use crate::checksum::{self, AddrPair};
use crate::error::require_len;
use crate::field::{array, read_u16, write};
use crate::icmp::{self, Message};

const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORTS: [u8; 2] = [0x12, 0x16];
const IGMP_LEAVE: u8 = 0x17;
const IGMP_REPORT_3: u8 = 0x22;
const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_REPORT_2: u8 = 143;

/// Destination of IGMPv3 reports (RFC 3376 §4.2.14).
pub const IGMP_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
/// Destination of IGMPv2 leave messages: all routers (RFC 2236 §2.4).
pub const ALL_ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// Destination of MLDv2 reports (RFC 3810 §5.2.14).
pub const MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Destination of MLDv1 done messages: all routers (RFC 2710 §5).
pub const ALL_ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Protocol version of a message: 1, 2 or 3 for IGMP, 1 or 2 for MLD.
pub type Version = u8;

/// A message from another node on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MembershipMessage {
    /// A router's query for the members of one group or of all groups.
    Query {
        /// Protocol version of the query.
        version: Version,
        /// The queried group; `None` in a general query.
        group: Option<IpAddr>,
        /// Maximum response time, in milliseconds.
        within_ms: u32,
    },
    /// A report of membership by another host, IGMPv1, IGMPv2 or MLDv1.
    Report(IpAddr),
}

/// Parses an IGMP message; `None` if hosts ignore messages of its type or length.
///
/// # Errors
/// If the message is cut short, or its checksum is wrong.
pub fn parse_igmp(bytes: &[u8]) -> Result<Option<MembershipMessage>, Error> {
    require_len("an IGMP message", bytes, 8)?;
    if checksum::internet_checksum(bytes) != 0 {
        return Err(Error::Field {
            header: "an IGMP message",
            field: "checksum",
            value: read_u16(bytes, 2).into(),
        });
    }
    let group = Ipv4Addr::from(array::<4>(bytes, 4));
    if IGMP_REPORTS.contains(&bytes[0]) {
        return Ok(Some(MembershipMessage::Report(group.into())));
    }
    if bytes[0] != IGMP_QUERY {
        return Ok(None);
    }
    let (version, within_ms) = match (bytes.len(), bytes[1]) {
        (8, 0) => (1, 10_000),
        (8, tenths) => (2, u32::from(tenths) * 100),
        (12.., tenths) => (3, decode_max_resp(tenths.into(), 7) * 100),
        // Between the two forms: hosts ignore the query (RFC 3376 §7.1).
        _ => return Ok(None),
    };
    Ok(Some(MembershipMessage::Query {
        version,
        group: (!group.is_unspecified()).then_some(group.into()),
        within_ms,
    }))
}

/// Parses an MLD message; `None` if it is neither a query nor an MLDv1 report. The
/// caller checks the checksum.
///
/// # Errors
/// If the message is cut short, or is a query of a length of no version.
pub fn parse_mld(message: &Message<'_>) -> Option<Result<MembershipMessage, Error>> {
    matches!(message.kind(), MLD_QUERY | MLD_REPORT).then(|| {
        let payload = message.payload();
        require_len("an MLD message", payload, 16)?;
        let group = Ipv6Addr::from(array::<16>(payload, 0));
        if message.kind() == MLD_REPORT {
            return Ok(MembershipMessage::Report(group.into()));
        }
        let code = icmp::Repr::parse(message).rest >> 16;
        let (version, within_ms) = match payload.len() {
            16 => (1, code),
            _ => {
                // A length between the two forms is an error (RFC 3810 §8.1).
                require_len("an MLDv2 query", payload, 20)?;
                (2, decode_max_resp(code, 15))
            }
        };
        Ok(MembershipMessage::Query {
            version,
            group: (!group.is_unspecified()).then_some(group.into()),
            within_ms,
        })
    })
}

/// Decodes a maximum response code (RFC 3376 §4.1.1, RFC 3810 §5.1.3). With bit
/// number `bit` set, it is a floating-point value: three bits of exponent, then
/// the mantissa.
fn decode_max_resp(code: u32, bit: u32) -> u32 {
    if code >> bit & 1 == 0 {
        return code;
    }
    let mantissa_bits = bit - 3;
    let exponent = code >> mantissa_bits & 7;
    let mantissa = code & ((1 << mantissa_bits) - 1);
    (mantissa | 1 << mantissa_bits) << (exponent + 3)
}

/// A membership record of one group, with an empty source list, for any version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// `MODE_IS_EXCLUDE`: the host is a member; the answer to a query.
    In,
    /// `CHANGE_TO_EXCLUDE_MODE`: the host has joined.
    Joined,
    /// `CHANGE_TO_INCLUDE_MODE`: the host has left.
    Left,
}

impl Record {
    fn number(self) -> u8 {
        match self {
            Record::In => 2,
            Record::Left => 3,
            Record::Joined => 4,
        }
    }
}

/// Builds an IGMPv3 or MLDv2 report, by the IP version of `src`; returns it with
/// the address pair to send it from and to. All groups must have that IP version.
///
/// # Panics
/// If there are more than 65,535 records.
pub fn report(records: &[(IpAddr, Record)], src: IpAddr) -> (Vec<u8>, AddrPair) {
    let mut bytes = vec![0; 8];
    for (group, record) in records {
        bytes.extend([record.number(), 0, 0, 0]);
        match group {
            IpAddr::V4(group) => bytes.extend(group.octets()),
            IpAddr::V6(group) => bytes.extend(group.octets()),
        }
    }
    let count = u16::try_from(records.len()).expect("a report has at most 65,535 records");
    finish(
        bytes,
        IGMP_REPORT_3,
        MLD_REPORT_2,
        count.into(),
        src,
        |v4| {
            if v4 {
                IGMP_ROUTERS.into()
            } else {
                MLD_ROUTERS.into()
            }
        },
    )
}

/// Builds a report, leave or done message of IGMPv1, IGMPv2 or MLDv1; returns it
/// with the address pair to send it from and to. `None` for a leave in IGMPv1,
/// which has no leave message.
///
/// # Panics
/// If `group` and `src` differ in IP version.
pub fn legacy_report(
    group: IpAddr,
    record: Record,
    version: Version,
    src: IpAddr,
) -> Option<(Vec<u8>, AddrPair)> {
    let left = record == Record::Left;
    if left && group.is_ipv4() && version == 1 {
        return None;
    }
    let igmp = match (left, version) {
        (true, _) => IGMP_LEAVE,
        (false, 1) => IGMP_REPORTS[0],
        (false, _) => IGMP_REPORTS[1],
    };
    let mld = if left { MLD_DONE } else { MLD_REPORT };
    let mut bytes = vec![0; 8];
    let rest = match group {
        IpAddr::V4(group) => group.to_bits(),
        IpAddr::V6(group) => {
            bytes.extend(group.octets());
            0
        }
    };
    let to = |v4| match (left, v4) {
        (false, _) => group,
        (true, true) => ALL_ROUTERS_V4.into(),
        (true, false) => ALL_ROUTERS_V6.into(),
    };
    Some(finish(bytes, igmp, mld, rest, src, to))
}

/// Writes the first eight bytes and the checksum of an IGMP or MLD message. `to` returns
/// the destination; its argument is true for IGMP.
fn finish(
    mut bytes: Vec<u8>,
    igmp: u8,
    mld: u8,
    rest: u32,
    src: IpAddr,
    to: impl Fn(bool) -> IpAddr,
) -> (Vec<u8>, AddrPair) {
    let addresses = AddrPair::new(src, to(src.is_ipv4())).expect("groups of the source's version");
    match addresses {
        AddrPair::V4(..) => {
            bytes[0] = igmp;
            write(&mut bytes, 4, &rest.to_be_bytes());
            let sum = checksum::internet_checksum(&bytes);
            write(&mut bytes, 2, &sum.to_be_bytes());
        }
        AddrPair::V6(..) => {
            let first = icmp::Repr {
                kind: mld,
                code: 0,
                rest,
            };
            first.emit(&mut bytes, addresses);
        }
    }
    (bytes, addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_reach_far() {
        assert_eq!(decode_max_resp(127, 7), 127);
        // RFC 3376 §4.1.1: (mant | 0x10) << (exp + 3).
        assert_eq!(decode_max_resp(0x80, 7), 128);
        assert_eq!(decode_max_resp(0xff, 7), 31 << 10);
        assert_eq!(decode_max_resp(0x7fff, 15), 0x7fff);
        assert_eq!(decode_max_resp(0xffff, 15), 0x1fff << 10);
    }

    #[test]
    fn queries_are_told_apart() {
        let sum = |mut bytes: Vec<u8>| {
            let sum = checksum::internet_checksum(&bytes);
            write(&mut bytes, 2, &sum.to_be_bytes());
            bytes
        };
        let query = |bytes: &[u8]| parse_igmp(&sum(bytes.to_vec())).unwrap();
        let general = |version, within_ms| {
            Some(MembershipMessage::Query {
                version,
                group: None,
                within_ms,
            })
        };
        assert_eq!(query(&[0x11, 0, 0, 0, 0, 0, 0, 0]), general(1, 10_000));
        assert_eq!(query(&[0x11, 100, 0, 0, 0, 0, 0, 0]), general(2, 10_000));
        let three = [0x11, 10, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0];
        assert_eq!(query(&three), general(3, 1000));
        assert_eq!(query(&three[..10]), None);
        assert_eq!(query(&[0x17, 0, 0, 0, 224, 1, 1, 1]), None);
        let group: IpAddr = [224, 1, 1, 1].into();
        let said = query(&[0x16, 0, 0, 0, 224, 1, 1, 1]);
        assert_eq!(said, Some(MembershipMessage::Report(group)));
        assert!(parse_igmp(&three[..7]).is_err() && parse_igmp(&three).is_err());
    }
}
