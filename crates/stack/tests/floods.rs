//! Floods below TCP: what strangers send without end takes bounded memory, is
//! answered at a bounded rate, and leaves others served.

mod common;

use common::packet::{Ends, frame, icmpv6, mld, v4};
use common::{HARDWARE, Pair, V4, V6, ip};
use std::net::{Ipv4Addr, Ipv6Addr};
use weir_link::mem::Impairments;
use weir_stack::Stack;
use weir_stack::iface::{
    ANSWER_MIN_NS, BYTES_MAX, DATAGRAMS_MAX, DropReason, NEIGHBOURS_MAX, QUEUE_MAX,
};
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, EtherType, Protocol, arp, checksum, icmp, ipv4};

const MS: u64 = 1_000_000;

/// To host 0, from the flooding host.
const ENDS: Ends = [HARDWARE[0], Address([2, 9, 9, 9, 9, 9])];

/// Two hosts talk by datagrams in fragments, while `flood` comes to host 0 each
/// millisecond; the datagrams that arrived of a hundred.
fn served(mut flood: impl FnMut(&mut Stack, u64)) -> (Pair, usize) {
    let mut pair = Pair::new(Impairments::default(), 3);
    let at = |end: usize| format!("{}:7", V4[end]).parse().unwrap();
    let sockets = [0, 1].map(|end| pair.stacks[end].udp_bind(at(end)).unwrap());
    let mut arrived = 0;
    for _ in 0..100 {
        for _ in 0..10 {
            pair.now_ns += MS;
            flood(&mut pair.stacks[0], pair.now_ns);
            pair.settle();
        }
        let now_ns = pair.now_ns;
        // A datagram of its own may find the queue full for a moment.
        let _ = pair.stacks[1].udp_send(now_ns, sockets[1], at(0), &[7; 3000]);
        for _ in 0..6 {
            pair.settle();
        }
        arrived += usize::from(pair.stacks[0].udp_receive(sockets[0]).is_some());
    }
    (pair, arrived)
}

#[test]
fn fragments_that_never_end_are_forgotten() {
    let mut number = 0_u32;
    let (mut pair, arrived) = served(|stack, now_ns| {
        for _ in 0..20 {
            number += 1;
            let mut packet = vec![0; ipv4::Repr::LEN];
            ipv4::Repr {
                src: Ipv4Addr::from_bits(0xcb00_7100 | number & 0xff),
                dst: V4[0].parse().unwrap(),
                protocol: Protocol::UDP,
                ttl: 9,
                traffic_class: 0,
                identification: number as u16,
                dont_fragment: false,
                payload_len: 1400,
            }
            .emit_fragment(&mut packet, 8 * (number as usize % 64), true);
            packet.extend([0; 1400]);
            stack.receive(now_ns, &frame(ENDS, EtherType::IPV4, &packet));
        }
    });
    assert_eq!(arrived, 100);
    let counters = pair.stacks[0].counters();
    let forgotten = counters.dropped(DropReason::ReassemblyFull);
    let most = DATAGRAMS_MAX.min(BYTES_MAX / 1400) as u64;
    assert!(
        forgotten >= u64::from(number) - most,
        "{forgotten} of {number}"
    );
    // What is left goes by itself.
    pair.run(120_000 * MS, |_| false);
    let late = pair.stacks[0]
        .counters()
        .dropped(DropReason::ReassemblyTimeout);
    assert!(late > 0 && late <= most, "{late}");
}

#[test]
fn neighbours_that_are_made_up_displace_each_other() {
    let mut number = 0_u32;
    let (mut pair, arrived) = served(|stack, now_ns| {
        for _ in 0..20 {
            number += 1;
            // They ask for us, and so are known; and want an answer each.
            let mut asked = vec![0; arp::Repr::LEN];
            arp::Repr {
                operation: arp::Operation::REQUEST,
                sender: Address([2, 9, 9, 9, 9, 9]),
                sender_ip: Ipv4Addr::from_bits(0xc000_0203 + number % 250),
                target: Address::default(),
                target_ip: V4[0].parse().unwrap(),
            }
            .emit(&mut asked);
            stack.receive(now_ns, &frame(ENDS, EtherType::ARP, &asked));
            let src = Ipv6Addr::from_bits((0x2001_0db8_u128 << 96) + 0x1000 + u128::from(number));
            let target: Ipv6Addr = V6[0].parse().unwrap();
            let body = [&target.octets()[..], &[1, 1, 2, 9, 9, 9, 9, 9]].concat();
            stack.receive(now_ns, &icmpv6(ENDS, (src, target), 255, 135, 0, &body));
        }
    });
    assert_eq!(arrived, 100);
    assert!(number as usize > 4 * NEIGHBOURS_MAX);
    // One that we send to stays known: nothing of ours waited or was lost.
    let counters = pair.stacks[0].counters();
    assert_eq!(counters.dropped(DropReason::NeighbourUnresolved), 0);
    // And a silent neighbour takes no more than its place.
    let socket = pair.stacks[0].udp_bind("[::]:9".parse().unwrap()).unwrap();
    let mut asks = 0;
    for number in 0..3000_u32 {
        let to = format!("[2001:db8::ffff:{number:x}]:9").parse().unwrap();
        let now_ns = pair.now_ns;
        let _ = pair.stacks[0].udp_send(now_ns, socket, to, b"x");
        let mut frames: Vec<Vec<u8>> = Vec::new();
        pair.stacks[0].poll(now_ns, &mut frames);
        asks += frames.len();
    }
    assert!(asks <= 3000 + QUEUE_MAX, "{asks}");
}

#[test]
fn errors_that_are_made_up_change_nothing_and_draw_no_answers() {
    let mut number = 0_u32;
    let (pair, arrived) = served(|stack, now_ns| {
        for _ in 0..20 {
            number += 1;
            let (ours, far) = (
                V4[0].parse().unwrap(),
                Ipv4Addr::from_bits(0x0808_0000 + number),
            );
            // About a datagram that we never sent, to a path each time another.
            let mut quoted = vec![0; ipv4::Repr::LEN];
            ipv4::Repr {
                src: ours,
                dst: far,
                protocol: Protocol::UDP,
                ttl: 9,
                traffic_class: 0,
                identification: 0,
                dont_fragment: true,
                payload_len: 8,
            }
            .emit(&mut quoted);
            quoted.extend([200, 1, 0, 53, 0, 8, 0, 0]);
            for (kind, code, rest) in [(3, 4, 600), (3, 3, 0), (3, 1, 0), (11, 0, 0), (5, 1, 9)] {
                let mut message = vec![0; 8];
                message.extend(&quoted);
                let addresses = AddrPair::V4(far, ours);
                icmp::Repr { kind, code, rest }.emit(&mut message, addresses);
                let packet = v4(ENDS, (far, ours), Protocol::ICMPV4, 9, &message);
                stack.receive(now_ns, &packet);
            }
            // Packets that would draw an error of ours without the limit: to a port without a
            // socket.
            let mut datagram = vec![0; 8];
            let nobody = weir_wire::udp::Repr {
                src_port: 1,
                dst_port: 9,
            };
            let near = Ipv4Addr::new(192, 0, 2, 2);
            nobody.emit(&mut datagram, AddrPair::V4(near, ours));
            stack.receive(now_ns, &v4(ENDS, (near, ours), Protocol::UDP, 9, &datagram));
        }
    });
    assert_eq!(arrived, 100);
    let counters = pair.stacks[0].counters();
    let unrelated = counters.dropped(DropReason::IcmpUnrelated);
    assert_eq!(unrelated, 4 * u64::from(number));
    assert_eq!(counters.dropped(DropReason::IcmpUnknown), u64::from(number));
    // A thousand a second and fifty at once, for a second.
    let told = u64::from(number) - counters.dropped(DropReason::IcmpRateLimited);
    assert!((500..=1050).contains(&told), "{told} of {number}");
}

#[test]
fn queries_without_end_are_answered_now_and_then() {
    let group = ip("224.1.2.3");
    let mut joined = false;
    let mut number = 0_u64;
    let (pair, arrived) = served(|stack, now_ns| {
        if !joined {
            for (bound, group) in [("0.0.0.0:5", group), ("[::]:5", ip("ff15::5"))] {
                let socket = stack.udp_bind(bound.parse().unwrap()).unwrap();
                stack.udp_join(socket, group).unwrap();
            }
            joined = true;
        }
        for _ in 0..20 {
            number += 1;
            let all = [0x11, 0, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0];
            let older = [0x11, 1, 0, 0, 224, 1, 2, 3];
            let query: &[u8] = if number.is_multiple_of(2) {
                &all
            } else {
                &older
            };
            let mut query = query.to_vec();
            let sum = checksum::internet_checksum(&query);
            query[2..4].copy_from_slice(&sum.to_be_bytes());
            let from = Ipv4Addr::new(192, 0, 2, 9);
            let to = Ipv4Addr::new(224, 0, 0, 1);
            stack.receive(now_ns, &v4(ENDS, (from, to), Protocol::IGMP, 1, &query));
            let (src, all) = ("fe80::9".parse().unwrap(), "ff02::1".parse().unwrap());
            stack.receive(now_ns, &mld(ENDS, (src, all), 130, 0, &[0; 20]));
        }
    });
    assert_eq!(arrived, 100);
    let sent = pair.stacks[0].counters().frames_out;
    // Each of the two versions of IP within a second; the group of the older
    // version besides.
    let most = 3 * 1000 * MS / ANSWER_MIN_NS + 20;
    assert!(sent < most, "{sent} of at most {most} for {number} queries");
    assert!(sent > 20, "{sent}");
    let refused = pair.stacks[0].counters().dropped(DropReason::GroupRefused);
    assert_eq!(refused, 0);
}
