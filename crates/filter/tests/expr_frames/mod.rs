//! Hand-made frames, and a table-driven check of expressions on them.
#![allow(dead_code, reason = "each test file uses some of these")]

use weir_filter::interp;
use weir_filter::ir::SNAPLEN_ALL;
use weir_filter::lang::expr::{Context, compile};
use weir_wire::LinkType;

/// Compiles a text; panics with the error if that fails.
pub(crate) fn program(text: &str, context: &Context<'_>) -> weir_filter::ir::Program {
    let program = compile(text, context).unwrap_or_else(|error| panic!("`{text}`: {error}"));
    program
        .verify()
        .unwrap_or_else(|error| panic!("`{text}`: {error}"));
    program
}

/// Checks which of the frames each expression accepts.
pub(crate) fn check<const N: usize>(
    linktype: LinkType,
    frames: &[&[u8]; N],
    rows: &[(&str, [bool; N])],
) {
    check_in(&Context::new(linktype), frames, rows);
}

/// Like [`check`], in any context.
pub(crate) fn check_in<const N: usize>(
    context: &Context<'_>,
    frames: &[&[u8]; N],
    rows: &[(&str, [bool; N])],
) {
    for (text, expected) in rows {
        let program = program(text, context);
        let verdicts = frames.map(|frame| interp::run(&program, frame, frame.len() as u32));
        let accepted = verdicts.map(|verdict| verdict != 0);
        assert_eq!(accepted, *expected, "`{text}`");
        assert!(
            verdicts
                .iter()
                .all(|verdict| matches!(*verdict, 0 | SNAPLEN_ALL))
        );
    }
}

/// The error message of a refused expression.
pub(crate) fn refusal(text: &str, context: &Context<'_>) -> String {
    match compile(text, context) {
        Ok(_) => panic!("`{text}` compiles"),
        Err(error) => error.to_string(),
    }
}

/// An Ethernet frame with a payload.
pub(crate) fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01];
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An IPv4 packet without options.
pub(crate) fn ip4(protocol: u8, src: [u8; 4], dst: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
    packet.extend(src);
    packet.extend(dst);
    packet.extend(payload);
    packet
}

/// An IPv6 packet from 2001:db8::1 to 2001:db8::2.
pub(crate) fn ip6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 64]);
    for host in [1, 2] {
        packet.extend([
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host,
        ]);
    }
    packet.extend(payload);
    packet
}

/// A TCP header with only SYN set.
pub(crate) fn syn(src_port: u16, dst_port: u16) -> Vec<u8> {
    let mut segment = src_port.to_be_bytes().to_vec();
    segment.extend(dst_port.to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    segment
}

/// A UDP datagram with a payload.
pub(crate) fn datagram(src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = src_port.to_be_bytes().to_vec();
    datagram.extend(dst_port.to_be_bytes());
    datagram.extend((8 + payload.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

/// A TCP segment in IPv4 in Ethernet.
pub(crate) fn tcp(src: [u8; 4], dst: [u8; 4], src_port: u16, dst_port: u16) -> Vec<u8> {
    ethernet(0x0800, &ip4(6, src, dst, &syn(src_port, dst_port)))
}

/// A UDP datagram in IPv4 in Ethernet.
pub(crate) fn udp(src: [u8; 4], dst: [u8; 4], src_port: u16, dst_port: u16) -> Vec<u8> {
    ethernet(
        0x0800,
        &ip4(17, src, dst, &datagram(src_port, dst_port, &[])),
    )
}

/// A TCP segment in IPv6 in Ethernet.
pub(crate) fn ip6_tcp(src_port: u16, dst_port: u16) -> Vec<u8> {
    ethernet(0x86dd, &ip6(6, &syn(src_port, dst_port)))
}

/// An ARP request.
pub(crate) fn arp(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend([0x02, 0, 0, 0, 0, 0x01]);
    packet.extend(sender);
    packet.extend([0; 6]);
    packet.extend(target);
    ethernet(0x0806, &packet)
}
