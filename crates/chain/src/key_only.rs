//! Whether a filter's verdict on a flow depends on the flow's key alone.
//!
//! The filter runs on a frame that has the flow's key and zeros elsewhere, and
//! each read is noted. If it reads only bytes that are the same in all frames
//! of the flow, every frame of the flow has this verdict.

use crate::flow::Flow;
use crate::layers::ETHERNET;
use std::net::IpAddr;
use std::ops::Range;
use weir_filter::interp::{Read, run_traced};
use weir_filter::ir::Program;
use weir_wire::field::write;

/// Bytes of a frame of TCP over IPv6 up to its ports.
const FRAME: usize = ETHERNET + 40 + 20;

/// The bytes that all IPv4 frames of a flow have in common: EtherType; version
/// and header length; flags and fragment offset, but for the flags DF and
/// reserved, which are tried both ways; protocol; addresses and ports.
const COMMON_V4: [Range<u64>; 4] = [12..15, 20..22, 23..24, 26..38];

/// As [`COMMON_V4`], for IPv6. The first byte has bits of the traffic class.
const COMMON_V6: [Range<u64>; 3] = [12..14, 20..21, 22..58];

/// Flags of the IPv4 fragment field that differ among frames of a flow.
const FLAGS: [u8; 4] = [0, 0x40, 0x80, 0xc0];

/// The filter's verdict on every frame of the flow; `None` if it reads anything
/// that may differ among them.
pub(crate) fn verdict(program: &Program, flow: &Flow) -> Option<bool> {
    match (flow.src, flow.dst) {
        (IpAddr::V4(_), IpAddr::V4(_)) => {
            let mut verdicts = FLAGS.map(|flags| {
                let mut frame = frame(flow);
                frame[20] = flags;
                verdict_on(program, &frame, &COMMON_V4)
            });
            verdicts.sort_unstable();
            let [first, .., last] = verdicts;
            (first == last).then_some(first).flatten()
        }
        _ => verdict_on(program, &frame(flow), &COMMON_V6),
    }
}

fn verdict_on(program: &Program, frame: &[u8], common: &[Range<u64>]) -> Option<bool> {
    let mut is_by_key = true;
    let wire_len = frame.len() as u32;
    let verdict = run_traced(program, frame, wire_len, |read| {
        is_by_key &= match read {
            Read::Len => false,
            Read::Bytes(at, len) => common
                .iter()
                .any(|range| range.start <= at && at + u64::from(len) <= range.end),
        };
    });
    is_by_key.then_some(verdict != 0)
}

/// A frame of the flow.
fn frame(flow: &Flow) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    let payload = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            write(&mut frame, 12, &[8, 0, 0x45]);
            frame[23] = flow.protocol.0;
            write(&mut frame, 26, &src.octets());
            write(&mut frame, 30, &dst.octets());
            34
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            write(&mut frame, 12, &[0x86, 0xdd, 0x60]);
            frame[20] = flow.protocol.0;
            write(&mut frame, 22, &src.octets());
            write(&mut frame, 38, &dst.octets());
            54
        }
        // No flow is of two families.
        _ => return frame,
    };
    write(&mut frame, payload, &flow.src_port.to_be_bytes());
    write(&mut frame, payload + 2, &flow.dst_port.to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::program;
    use weir_filter::lang::expr::NoNames;
    use weir_wire::Protocol;

    fn of(text: &str, src: &str, dst: &str) -> Option<bool> {
        let flow = Flow {
            protocol: Protocol::UDP,
            src: src.parse().unwrap(),
            src_port: 1234,
            dst: dst.parse().unwrap(),
            dst_port: 53,
        };
        verdict(&program(text, &NoNames).unwrap(), &flow)
    }

    #[test]
    fn filters_of_the_key_have_a_verdict() {
        let v4 = |text| of(text, "10.0.0.1", "192.0.2.1");
        assert_eq!(v4("udp"), Some(true));
        assert_eq!(v4("tcp"), Some(false));
        assert_eq!(v4("udp port 53"), Some(true));
        assert_eq!(v4("udp dst port 54"), Some(false));
        assert_eq!(v4("src net 10.0.0.0/8 and dst host 192.0.2.1"), Some(true));
        assert_eq!(v4("ip6"), Some(false));
        let v6 = |text| of(text, "2001:db8::1", "2001:db8::2");
        assert_eq!(v6("udp port 53"), Some(true));
        assert_eq!(v6("ip"), Some(false));
        assert_eq!(v6("dst host 2001:db8::2"), Some(true));
    }

    #[test]
    fn filters_of_other_fields_have_none() {
        let v4 = |text| of(text, "10.0.0.1", "192.0.2.1");
        assert_eq!(v4("ip[1] = 0xb8"), None);
        assert_eq!(v4("greater 500"), None);
        assert_eq!(v4("ip[8] < 5"), None);
        assert_eq!(v4("ip[6] & 0x40 != 0"), None, "the flag DF");
        assert_eq!(v4("ether src 02:00:00:00:00:01"), None);
        // Decided before the field is read.
        assert_eq!(v4("tcp and greater 500"), Some(false));
        assert_eq!(v4("udp or greater 500"), Some(true));
    }
}
