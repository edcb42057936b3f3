//! Ancillary data of UDP: how a datagram was received, what one datagram has in place of its
//! socket's options, and ICMP errors.

mod common;

use common::{Pair, V4, V6, config, ip};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_link::mem::Impairments;
use weir_stack::Stack;
use weir_stack::udp::{
    Arrival, Datagram, ICMP_ERRORS_MAX, IcmpCause, SendError, SendInfo, UdpId, UdpOptions,
};

const MS: u64 = 1_000_000;

fn any(v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

fn pair() -> Pair {
    Pair::new(Impairments::default(), 7)
}

/// The next datagram of a socket of the second stack.
fn next(pair: &mut Pair, socket: UdpId) -> Datagram {
    let mut came = None;
    pair.run(1000 * MS, |pair| {
        came = came.take().or_else(|| pair.stacks[1].udp_receive(socket));
        came.is_some()
    });
    came.expect("a datagram")
}

fn set(stack: &mut Stack, socket: UdpId, change: impl FnOnce(&mut UdpOptions)) {
    change(stack.udp_options(socket).unwrap());
}

#[test]
fn a_datagram_has_its_hop_limit_class_link_and_time() {
    for at in [V4, V6] {
        let mut pair = pair();
        let [here, there] = at.map(|at| SocketAddr::new(ip(at), 4000));
        let from = pair.stacks[0].udp_bind(here).unwrap();
        let to = pair.stacks[1].udp_bind(there).unwrap();
        set(&mut pair.stacks[0], from, |options| {
            (options.hop_limit, options.traffic_class) = (9, 0xb9);
        });
        // The second time the peer is connected, and the datagram takes the fast path.
        for is_fast in [false, true] {
            if is_fast {
                pair.stacks[1].udp_connect(to, here).unwrap();
            }
            let before_ns = pair.now_ns;
            pair.stacks[0]
                .udp_send(before_ns, from, there, b"datagram")
                .unwrap();
            let came = next(&mut pair, to);
            let Arrival {
                link,
                hop_limit,
                traffic_class,
                at_ns,
            } = came.arrival;
            assert_eq!((link, hop_limit, traffic_class), (0, 9, 0xb9), "{at:?}");
            assert!((before_ns..=pair.now_ns).contains(&at_ns));
            assert_eq!(pair.stacks[1].counters().datagrams_fast, u64::from(is_fast));
            assert_eq!(pair.stacks[1].udp_reply_source(&came), Some(there.ip()));
        }
    }
}

#[test]
fn one_datagram_can_have_its_own_source_and_options() {
    let second = ["192.0.2.3", "2001:db8::3"];
    for (at, own) in [V4, V6].into_iter().zip(second) {
        let first = config(0)
            .address("192.0.2.3/24".parse().unwrap())
            .address("2001:db8::3/64".parse().unwrap());
        let mut pair = Pair::with([first, config(1)], Impairments::default(), 7);
        let there = SocketAddr::new(ip(at[1]), 4000);
        let from = SocketAddr::new(any(there.is_ipv6()), 4000);
        let from = pair.stacks[0].udp_bind(from).unwrap();
        let to = pair.stacks[1].udp_bind(there).unwrap();
        let info = SendInfo {
            from: Some(ip(own)),
            link: Some(0),
            hop_limit: Some(3),
            traffic_class: Some(0x20),
        };
        let send = |pair: &mut Pair, info: &SendInfo| {
            let now_ns = pair.now_ns;
            pair.stacks[0].udp_send_with(now_ns, from, there, info, b"x")
        };
        for source in [at[0], own] {
            let from = Some(ip(source));
            send(&mut pair, &SendInfo { from, ..info }).unwrap();
            let came = next(&mut pair, to);
            assert_eq!(came.from.ip(), ip(source));
            let arrival = came.arrival;
            assert_eq!((arrival.hop_limit, arrival.traffic_class), (3, 0x20));
        }
        // The next one has the socket's options again.
        send(&mut pair, &SendInfo::default()).unwrap();
        let arrival = next(&mut pair, to).arrival;
        assert_eq!((arrival.hop_limit, arrival.traffic_class), (64, 0));
        let foreign = ip(at[1]);
        let wrong = SendInfo {
            from: Some(foreign),
            ..info
        };
        assert_eq!(send(&mut pair, &wrong), Err(SendError::Source(foreign)));
        let wrong = SendInfo {
            link: Some(1),
            ..info
        };
        assert_eq!(send(&mut pair, &wrong), Err(SendError::NoLink(1)));
        // A connected socket sends from another address than its own, too.
        pair.stacks[0].udp_connect(from, there).unwrap();
        for source in [at[0], own] {
            let from = Some(ip(source));
            send(&mut pair, &SendInfo { from, ..info }).unwrap();
            assert_eq!(next(&mut pair, to).from.ip(), ip(source));
        }
    }
}

#[test]
fn icmp_errors_are_queued_for_sockets_that_ask() {
    for at in [V4, V6] {
        let mut pair = pair();
        let closed = SocketAddr::new(ip(at[1]), 4);
        let v6 = closed.is_ipv6();
        let bind = |pair: &mut Pair| pair.stacks[0].udp_bind((any(v6), 0).into()).unwrap();
        let (asks, other) = (bind(&mut pair), bind(&mut pair));
        set(&mut pair.stacks[0], asks, |options| {
            (options.icmp_errors, options.icmpv6_errors) = (!v6, v6);
        });
        // Of the other version of IP.
        set(&mut pair.stacks[0], other, |options| {
            (options.icmp_errors, options.icmpv6_errors) = (v6, !v6);
        });
        for socket in [asks, other] {
            let now_ns = pair.now_ns;
            pair.stacks[0]
                .udp_send(now_ns, socket, closed, b"nowhere")
                .unwrap();
            pair.run(100 * MS, |_| false);
        }
        let now_ns = pair.now_ns;
        let stack = &mut pair.stacks[0];
        assert_eq!(
            (stack.udp_icmp_errors(asks), stack.udp_icmp_errors(other)),
            (1, 0)
        );
        assert!(stack.udp_has_pending_error(asks) && !stack.udp_has_pending_error(other));
        // A call reports it once; the queue keeps it.
        let refused = stack.udp_send(now_ns, asks, closed, b"x");
        assert_eq!(refused, Err(SendError::Refused(closed)));
        assert!(!stack.udp_has_pending_error(asks));
        let error = stack.udp_take_icmp_error(asks).unwrap();
        let (kind, code) = if v6 { (1, 4) } else { (3, 3) };
        assert_eq!(error.cause, IcmpCause { v6, kind, code });
        assert_eq!((error.to, error.offender), (closed, closed.ip()));
        assert_eq!((error.from, error.info), (ip(at[0]), 0));
        assert_eq!(
            (&error.bytes[..], error.arrival.hop_limit),
            (&b"nowhere"[..], 64)
        );
        assert_eq!(stack.udp_take_icmp_error(asks), None);
    }
}

#[test]
fn the_queue_of_icmp_errors_has_a_limit_and_its_first_is_pending() {
    let mut pair = pair();
    let socket = pair.stacks[0].udp_bind((any(false), 0).into()).unwrap();
    set(&mut pair.stacks[0], socket, |options| {
        options.icmp_errors = true
    });
    let closed = SocketAddr::new(ip(V4[1]), 4);
    for number in 0..ICMP_ERRORS_MAX as u8 + 9 {
        let now_ns = pair.now_ns;
        pair.stacks[0].udp_take_pending_error(socket);
        pair.stacks[0]
            .udp_send(now_ns, socket, closed, &[number])
            .unwrap();
        // The peer's limit on errors allows more.
        pair.run(MS, |_| false);
        pair.now_ns += 20 * MS;
    }
    let stack = &mut pair.stacks[0];
    assert_eq!(stack.udp_icmp_errors(socket), ICMP_ERRORS_MAX);
    for number in 0..ICMP_ERRORS_MAX as u8 {
        assert!(stack.udp_has_pending_error(socket), "{number}");
        assert_eq!(stack.udp_take_icmp_error(socket).unwrap().bytes, [number]);
    }
    assert!(!stack.udp_has_pending_error(socket));
    stack.udp_discard_icmp_errors(socket);
    assert_eq!(stack.udp_icmp_errors(socket), 0);
}
