//! IPv4 options in transit (RFC 791 §3.1, RFC 1812 §5.2.4, §5.3.13): the router
//! fills the record route and timestamp options where the sender left room.

use std::net::{IpAddr, Ipv4Addr};
use weir_wire::field::write;
use weir_wire::ipv4::option::{LOOSE_SOURCE_ROUTE, RECORD_ROUTE, STRICT_SOURCE_ROUTE, TIMESTAMP};
use weir_wire::{checksum, ipv4};

/// The options in a header that concern a router.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::router::engine) struct Options {
    /// The offset of a record route option with room for an address.
    record: Option<usize>,
    /// The offset of the timestamp option.
    stamp: Option<usize>,
    /// The packet has a source route option.
    pub(in crate::router::engine) source_route: bool,
}

impl Options {
    pub(in crate::router::engine) fn is_to_be_filled(&self) -> bool {
        self.record.is_some() || self.stamp.is_some()
    }
}

/// Reads a header's options.
///
/// # Errors
/// The offset in the header of the first invalid byte (RFC 792, parameter
/// problem).
pub(in crate::router::engine) fn parse(header: &[u8]) -> Result<Options, u8> {
    let mut options = Options::default();
    for found in ipv4::Options::new(&header[ipv4::Repr::LEN..]) {
        let place = |at: usize| ipv4::Repr::LEN + at;
        let (at, option) = found.map_err(|at| place(at) as u8)?;
        let (at, len) = (place(at), option.len());
        let wrong = |place: usize| Err((at + place) as u8);
        match option[0] {
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE if options.source_route => return wrong(0),
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => match pointed(option, 4) {
                Err(place) => return wrong(place),
                Ok(_) => options.source_route = true,
            },
            RECORD_ROUTE if options.record.is_some() => return wrong(0),
            RECORD_ROUTE => match pointed(option, 4) {
                Err(place) => return wrong(place),
                Ok(Some(start)) if start + 4 > len => return wrong(2),
                Ok(Some(_)) => options.record = Some(at),
                Ok(None) => {}
            },
            TIMESTAMP if options.stamp.is_some() => return wrong(0),
            TIMESTAMP => match stamp_problem(option) {
                Some(place) => return wrong(place),
                None => options.stamp = Some(at),
            },
            _ => {}
        }
    }
    Ok(options)
}

/// The offset of the next field in an option with a pointer, which has to be at
/// least `least`; `None` if the option is full. The error is the offset of the
/// invalid byte.
fn pointed(option: &[u8], least: u8) -> Result<Option<usize>, usize> {
    match option {
        [_, _] => Err(1),
        [_, _, pointer, ..] if *pointer < least => Err(2),
        [_, len, pointer, ..] => Ok((pointer <= len).then(|| usize::from(*pointer) - 1)),
        _ => Err(0),
    }
}

/// The offset of the invalid byte in a timestamp option; `None` if the option
/// is valid.
fn stamp_problem(option: &[u8]) -> Option<usize> {
    let [_, _, _, flags, ..] = option else {
        return Some(1);
    };
    let field = match flags & 0xf {
        0 => 4,
        1 | 3 => 8,
        _ => return Some(3),
    };
    match pointed(option, 5) {
        Err(place) => Some(place),
        Ok(Some(start)) => (start + field > option.len()).then_some(2),
        // The option is full, and so is its count of routers that found no
        // room.
        Ok(None) => (flags >> 4 == 15).then_some(3),
    }
}

/// Writes the requested values into a packet's options: the router's address on
/// the outgoing link, and the time.
pub(in crate::router::engine) fn fill(
    packet: &mut [u8],
    options: &Options,
    own: Option<IpAddr>,
    day_ms: u32,
) {
    let own = match own {
        Some(IpAddr::V4(own)) => own,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    let header_len = ipv4::header_len(packet);
    let header = &mut packet[..header_len];
    if let Some(at) = options.record {
        let start = at + usize::from(header[at + 2]) - 1;
        write(header, start, &own.octets());
        header[at + 2] += 4;
    }
    if let Some(at) = options.stamp {
        stamp(header, at, own, day_ms);
    }
    write(header, 10, &[0, 0]);
    let sum = checksum::internet_checksum(header);
    write(header, 10, &sum.to_be_bytes());
}

fn stamp(header: &mut [u8], at: usize, own: Ipv4Addr, day_ms: u32) {
    let (len, pointer, flags) = (header[at + 1], header[at + 2], header[at + 3]);
    if pointer > len {
        header[at + 3] = flags.saturating_add(0x10);
        return;
    }
    let start = at + usize::from(pointer) - 1;
    let time = day_ms.to_be_bytes();
    match flags & 0xf {
        0 => {
            write(header, start, &time);
            header[at + 2] += 4;
        }
        kind => {
            // With flag 3 the sender lists the routers that are to answer.
            if kind == 3 && header[start..start + 4] != own.octets() {
                return;
            }
            write(header, start, &own.octets());
            write(header, start + 4, &time);
            header[at + 2] += 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(options: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 20];
        header.extend(options);
        header.resize(header.len().next_multiple_of(4), 0);
        header[0] = 0x40 | (header.len() / 4) as u8;
        header
    }

    #[test]
    fn a_route_is_recorded_where_there_is_room() {
        let mut packet = header(&[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        let options = parse(&packet).unwrap();
        let own = Some("192.0.2.1".parse().unwrap());
        fill(&mut packet, &options, own, 0);
        assert_eq!(packet[20..31], [7, 11, 8, 192, 0, 2, 1, 0, 0, 0, 0]);
        assert_eq!(checksum::internet_checksum(&packet), 0);
        packet[22] = 12;
        assert!(!parse(&packet).unwrap().is_to_be_filled());
    }

    #[test]
    fn the_time_is_stamped_and_want_of_room_counted() {
        let mut packet = header(&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let own = Some("192.0.2.1".parse().unwrap());
        let options = parse(&packet).unwrap();
        fill(&mut packet, &options, own, 0x01020304);
        assert_eq!(packet[20..32], [68, 12, 13, 1, 192, 0, 2, 1, 1, 2, 3, 4]);
        let options = parse(&packet).unwrap();
        fill(&mut packet, &options, own, 0);
        assert_eq!(packet[23], 0x11);
        packet[23] = 0xf1;
        assert_eq!(parse(&packet).unwrap_err(), 23);
    }

    #[test]
    fn what_cannot_be_is_pointed_at() {
        for (options, place) in [
            (&[7, 1][..], 20),
            (&[7, 40], 20),
            (&[1, 7, 3, 3], 23),
            (&[7, 2, 0, 0], 21),
            (&[7, 6, 4, 0, 0, 0], 22),
            (&[68, 4, 5, 2], 23),
            (&[68, 3, 5], 21),
        ] {
            assert_eq!(parse(&header(options)).unwrap_err(), place, "{options:?}");
        }
        assert!(
            parse(&header(&[131, 7, 4, 1, 2, 3, 4]))
                .unwrap()
                .source_route
        );
    }
}
