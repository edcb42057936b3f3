//! What is set on TCP sockets: how their segments go out, and how long they
//! linger.

mod common;

use common::{Pair, V4, V6, config, ip};
use std::net::SocketAddr;
use weir_link::mem::Impairments;
use weir_stack::iface::Offload;
use weir_stack::tcp::{ListenerId, SYN_QUEUE_MAX, State, TcpConfig, TcpError, TcpId, TcpOptions};
use weir_wire::tcp::{Flags, Segment};
use weir_wire::{EtherType, Protocol, ethernet, ipv4, ipv6};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// How a TCP segment went out: from which end, its flags, hop limit and
/// traffic class; `None` if it is not a segment.
fn seen((end, frame): &(usize, Vec<u8>)) -> Option<(usize, Flags, u8, u8)> {
    let frame = ethernet::Frame::new(frame).unwrap();
    let (segment, hop_limit, traffic_class) = match frame.ether_type() {
        EtherType::IPV4 => {
            let packet = ipv4::Packet::new(frame.payload()).unwrap();
            let segment = (packet.protocol() == Protocol::TCP).then(|| packet.payload())?;
            (segment, packet.ttl(), packet.traffic_class())
        }
        EtherType::IPV6 => {
            let packet = ipv6::Packet::new(frame.payload()).unwrap();
            let segment = (packet.next_header() == Protocol::TCP).then(|| packet.payload())?;
            let header = ipv6::Repr::parse(&packet);
            (segment, header.hop_limit, header.traffic_class)
        }
        _ => return None,
    };
    let flags = Segment::new(segment).unwrap().flags();
    Some((*end, flags, hop_limit, traffic_class))
}

fn options(hop_limit: u8, traffic_class: u8) -> TcpOptions {
    TcpOptions {
        hop_limit,
        traffic_class,
        ..TcpOptions::default()
    }
}

struct Opened {
    pair: Pair,
    listener: ListenerId,
    client: TcpId,
    server: TcpId,
}

/// A connection from end 0 to end 1 whose client has these options before its
/// SYN goes, whose listener has those.
fn opened(mut pair: Pair, at: [&str; 2], client: TcpOptions, server: TcpOptions) -> Opened {
    let to = SocketAddr::new(ip(at[1]), 80);
    let listener = pair.stacks[1].tcp_listen(to, 4).unwrap();
    pair.stacks[1]
        .tcp_set_listener_options(listener, server)
        .unwrap();
    let id = pair.stacks[0].tcp_connect(0, None, to).unwrap();
    pair.stacks[0].tcp_set_options(id, client).unwrap();
    let mut accepted = None;
    assert!(pair.run(S, |pair| {
        accepted = pair.stacks[1].tcp_accept(pair.now_ns, listener).ok();
        accepted.is_some()
    }));
    Opened {
        pair,
        listener,
        client: id,
        server: accepted.unwrap(),
    }
}

fn slow() -> Impairments {
    Impairments {
        delay_ns: MS,
        ..Impairments::default()
    }
}

/// The traffic class with bits of congestion that belong to a segment: new
/// bytes may be marked.
fn is_marked_well(class: u8, wanted: u8) -> bool {
    class & !3 == wanted && matches!(class & 3, 0 | 2)
}

#[test]
fn every_segment_goes_out_as_the_options_say() {
    for at in [V4, V6] {
        for offload in [Offload::default(), Offload::ALL] {
            let mut configs = [config(0), config(1)];
            configs.iter_mut().for_each(|one| one.offload = offload);
            let mut pair = Pair::with(configs, slow(), 1);
            pair.kept = Some(Vec::new());
            // The lowest bits are TCP's.
            let Opened {
                mut pair,
                client,
                server,
                ..
            } = opened(pair, at, options(7, 0xbb), options(200, 0x20));
            assert_eq!(pair.stacks[0].tcp_options(client), Some(options(7, 0xb8)));
            assert_eq!(pair.stacks[1].tcp_options(server), Some(options(200, 0x20)));
            pair.stacks[0].tcp_write(client, &[1; 30_000]).unwrap();
            pair.run(S, |_| false);
            let mut marked = 0;
            let mut heard = Vec::new();
            for (end, flags, hop_limit, class) in pair
                .kept
                .replace(Vec::new())
                .unwrap()
                .iter()
                .filter_map(seen)
            {
                let (wanted, hops) = [(0xb8, 7), (0x20, 200)][end];
                assert_eq!(hop_limit, hops, "{flags:?} from {end}");
                assert!(is_marked_well(class, wanted), "{class:#x} from {end}");
                marked += usize::from(class & 3 == 2);
                heard.push((end, flags));
            }
            // The two SYNs, acknowledgments and bytes were among them.
            assert!(
                heard
                    .iter()
                    .any(|one| *one == (0, Flags::SYN | Flags::ECE | Flags::CWR))
            );
            assert!(
                heard
                    .iter()
                    .any(|(end, flags)| *end == 1 && flags.0 & 0x12 == 0x12)
            );
            assert!(
                marked >= if offload == Offload::ALL { 1 } else { 20 },
                "{marked}"
            );
            // From now on others, the RST at the end included.
            pair.stacks[0]
                .tcp_set_options(client, options(1, 0x48))
                .unwrap();
            pair.stacks[0].tcp_write(client, b"more").unwrap();
            pair.run(S, |_| false);
            pair.stacks[0].tcp_abort(pair.now_ns, client);
            pair.run(S, |_| false);
            let kept = pair.kept.take().unwrap();
            let ours = || kept.iter().filter_map(seen).filter(|(end, ..)| *end == 0);
            assert!(ours().any(|(_, flags, ..)| flags.0 & Flags::RST.0 != 0));
            for (_, flags, hop_limit, class) in ours() {
                assert_eq!(hop_limit, 1, "{flags:?}");
                assert!(is_marked_well(class, 0x48), "{class:#x} {flags:?}");
            }
        }
    }
}

/// What goes by a cookie, with no connection, goes as the listener says too.
#[test]
fn cookies_go_out_as_the_listener_says() {
    let mut pair = Pair::new(slow(), 2);
    let to = SocketAddr::new(ip(V4[1]), 80);
    let backlog = 2 * SYN_QUEUE_MAX;
    let listener = pair.stacks[1].tcp_listen(to, backlog).unwrap();
    let set = pair.stacks[1].tcp_set_listener_options(listener, options(9, 0x28));
    set.unwrap();
    // The neighbours learn each other first, lest most SYNs be dropped.
    let first = pair.stacks[0].tcp_connect(0, None, to).unwrap();
    pair.run(S, |pair| {
        pair.stacks[0].tcp_state(first) == Some(State::Established)
    });
    pair.kept = Some(Vec::new());
    for _ in 0..SYN_QUEUE_MAX + 3 {
        pair.stacks[0].tcp_connect(pair.now_ns, None, to).unwrap();
    }
    pair.run(S, |_| false);
    assert_eq!(
        pair.stacks[1].tcp_accept_queue_len(listener),
        SYN_QUEUE_MAX + 4
    );
    let mut accepted = Vec::new();
    while let Ok(id) = pair.stacks[1].tcp_accept(pair.now_ns, listener) {
        assert_eq!(pair.stacks[1].tcp_options(id), Some(options(9, 0x28)));
        accepted.push(id);
    }
    let kept = pair.kept.take().unwrap();
    let answers = kept.iter().filter_map(seen).filter(|(end, ..)| *end == 1);
    let answers: Vec<_> = answers.collect();
    assert!(answers.len() >= SYN_QUEUE_MAX + 3, "{}", answers.len());
    for (_, flags, hop_limit, class) in answers {
        assert_eq!((hop_limit, class & !3), (9, 0x28), "{flags:?}");
    }
}

/// A server with little room, which reads nothing, so that bytes wait at the
/// client.
fn stuck() -> Opened {
    let mut pair = Pair::new(slow(), 3);
    pair.stacks[1].tcp_configure(TcpConfig {
        receive_buffer: 4000,
        ..TcpConfig::default()
    });
    let plain = TcpOptions::default();
    let mut opened = opened(pair, V4, plain, plain);
    let written = opened.pair.stacks[0].tcp_write(opened.client, &[5; 20_000]);
    assert_eq!(written, Ok(20_000));
    opened.pair.run(S, |_| false);
    assert!(!opened.pair.stacks[0].tcp_all_acked(opened.client));
    opened
}

#[test]
fn a_lingering_close_resets_at_its_deadline() {
    let Opened {
        mut pair,
        client,
        server,
        listener,
    } = stuck();
    let began_ns = pair.now_ns;
    // A question whether the peer is there does not come between.
    let asked = pair.stacks[0].tcp_set_keep_alive(began_ns, client, Some(100 * MS));
    asked.unwrap();
    pair.stacks[0].tcp_close_linger(began_ns, client, 700 * MS);
    assert_eq!(pair.stacks[0].tcp_orphans(), 1);
    let failed = |pair: &Pair| {
        let info = pair.stacks[1].tcp_info(pair.now_ns, server).unwrap();
        info.error
    };
    assert!(!pair.run(690 * MS, |pair| failed(pair).is_some()));
    assert!(pair.run(30 * MS, |pair| failed(pair).is_some()));
    assert_eq!(failed(&pair), Some(TcpError::Reset));
    let stacks = &pair.stacks;
    assert_eq!(
        (stacks[0].tcp_orphans(), stacks[0].tcp_connections()),
        (0, 0)
    );
    assert_eq!(stacks[1].tcp_accept_queue_len(listener), 0);
}

#[test]
fn a_lingering_close_succeeds_if_all_arrives_in_time() {
    let Opened {
        mut pair,
        client,
        server,
        ..
    } = stuck();
    pair.stacks[0].tcp_close_linger(pair.now_ns, client, 60 * S);
    let mut heard = 0;
    let mut out = vec![0; 1 << 16];
    assert!(pair.run(50 * S, |pair| {
        while let Ok(count @ 1..) = pair.stacks[1].tcp_read(server, &mut out) {
            assert!(out[..count].iter().all(|byte| *byte == 5));
            heard += count;
        }
        pair.stacks[0].tcp_orphans() == 0
    }));
    assert_eq!(heard, 20_000);
    assert_eq!(pair.stacks[1].tcp_read(server, &mut out), Ok(0));
    // It waits for the peer's end as others do, not shorter.
    pair.run(30 * S, |_| false);
    assert_eq!(pair.stacks[0].tcp_connections(), 1);
    pair.stacks[1].tcp_close(pair.now_ns, server);
    pair.run(S, |_| false);
    assert_eq!(pair.stacks[1].tcp_connections(), 0);
}

#[test]
fn all_has_arrived_when_it_is_acknowledged() {
    let plain = TcpOptions::default();
    let Opened {
        mut pair, client, ..
    } = opened(Pair::new(slow(), 4), V6, plain, plain);
    let arrived = |pair: &Pair| pair.stacks[0].tcp_all_acked(client);
    assert!(arrived(&pair));
    pair.stacks[0].tcp_write(client, b"bytes").unwrap();
    assert!(!arrived(&pair));
    assert!(pair.run(S, arrived_of(client)));
    pair.stacks[0].tcp_shutdown(pair.now_ns, client).unwrap();
    assert!(!arrived(&pair));
    assert!(pair.run(S, arrived_of(client)));
    assert_eq!(pair.stacks[0].tcp_state(client), Some(State::FinWait2));
}

fn arrived_of(client: TcpId) -> impl FnMut(&mut Pair) -> bool {
    move |pair| pair.stacks[0].tcp_all_acked(client)
}
