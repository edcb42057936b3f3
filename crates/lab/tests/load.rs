//! The generator sends the configured frames at the configured rate, and sinks
//! count them.

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt,
};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::Duration;
use weir_lab::load::{
    Counted, Field, Generator, GeneratorError, Order, Rate, Sink, Template, TemplateError, Udp,
};
use weir_lab::net::{Device, Lab, Offloads};
use weir_lab::testenv;
use weir_link::bpf::Hook;
use weir_wire::{ethernet, ipv4, udp};

const SRC: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 250);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn link() -> (Device, Device) {
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    lab.link(&a, &b).connect().unwrap()
}

fn flow(from: &Device, to: &Device) -> Udp {
    Udp::new(from.mac(), to.mac(), SRC, DST)
}

/// Enables GRO, which a veth needs in order to accept redirected frames.
fn take_redirected(device: &Device) {
    let polling = Offloads {
        generic_receive: true,
        ..Offloads::OFF
    };
    device.set_offloads(polling).unwrap();
}

/// A socket that stores every frame that a host receives, up to 16 MiB.
fn capture(device: &Device) -> OwnedFd {
    let all = Protocol::from_raw(NonZeroU32::new(0x0300).unwrap());
    let (raw, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    let open = || socket_with(AddressFamily::PACKET, raw, flags, Some(all));
    let socket = device.host().run(open).unwrap();
    sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
    let patience = Some(Duration::from_secs(5));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, patience).unwrap();
    socket
}

fn next(socket: &OwnedFd) -> Vec<u8> {
    let mut frame = [0; 4096];
    let (len, _) = recv(socket, &mut frame, RecvFlags::empty()).expect("a frame comes");
    frame[..len].to_vec()
}

/// Number, source address, source port and destination port of a frame with
/// valid headers.
fn flow_of(frame: &[u8]) -> (u64, Ipv4Addr, u16, u16) {
    let frame = ethernet::Frame::new(frame).unwrap();
    let packet = ipv4::Packet::new(frame.payload()).unwrap();
    assert!(packet.checksum_is_right(), "{frame:?}");
    assert_eq!(packet.total_len(), frame.payload().len());
    assert_eq!(packet.dst(), DST);
    let datagram = udp::Datagram::new(packet.payload()).unwrap();
    assert_eq!(datagram.length(), packet.payload().len());
    let number = u64::from_be_bytes(datagram.payload()[..8].try_into().unwrap());
    let (src_port, dst_port) = (datagram.src_port(), datagram.dst_port());
    (number, packet.src(), src_port, dst_port)
}

#[test]
fn every_frame_is_right_and_of_the_right_flow() {
    if !testenv::root() {
        return;
    }
    for (order, frame_bytes, src_addresses) in [
        (Order::InTurn, 60, 300),
        (Order::InTurn, 1514, 1),
        (Order::Scattered, 60, 300),
        (Order::Scattered, 61, 256),
    ] {
        let (eth_a, eth_b) = link();
        take_redirected(&eth_b);
        let socket = capture(&eth_b);
        let flows = Udp {
            dst_ports: 3,
            src_ports: 4,
            // From 10.255.255.250 on, so that the checksum has carries.
            src_addresses,
            order,
            frame_bytes,
            ..flow(&eth_a, &eth_b)
        };
        let mut generator = Generator::new(&eth_a, &flows).unwrap();
        // Twice, since numbers and flows continue.
        for count in [1000, 4000] {
            let sent = generator.send(count, Rate::Flat).unwrap();
            assert_eq!((sent.frames, sent.dropped), (count, 0));
        }
        assert_eq!(generator.sent(), 5000);
        let mut seen = BTreeSet::new();
        for expected in 0..5000 {
            let frame = next(&socket);
            assert_eq!(frame.len(), frame_bytes);
            let (number, src, src_port, dst_port) = flow_of(&frame);
            assert_eq!(number, expected);
            let (of_src, of_port) = (src.to_bits() - SRC.to_bits(), src_port - 1024);
            let flow = (of_src * 4 + u32::from(of_port)) * 3 + u32::from(dst_port - 5000);
            assert!(of_src < src_addresses && of_port < 4 && dst_port < 5003);
            if order == Order::InTurn {
                assert_eq!(u64::from(flow), expected % u64::from(12 * src_addresses));
            }
            seen.insert(flow);
        }
        let all = 12 * src_addresses as usize;
        assert!(
            seen.len() * 10 >= all.min(5000) * 6,
            "{} of {all}",
            seen.len()
        );
    }
}

#[test]
fn frames_arrive_without_a_sender() {
    if !testenv::root() {
        return;
    }
    const FRAMES: u64 = 3000;
    let flows = |from: &Device, to: &Device| Udp {
        dst_ports: 3,
        ..flow(from, to)
    };
    // Behind the driver: the host, an XDP program, a generic one (which counts
    // as the host), and none again.
    let (from, to) = link();
    let socket = capture(&to);
    let mut arriving = Generator::arriving(&to, &flows(&from, &to)).unwrap();
    let sent = arriving.send(FRAMES, Rate::Flat).unwrap();
    assert_eq!((sent.frames, sent.dropped), (FRAMES, 0));
    for expected in 0..FRAMES {
        let (number, _, _, dst_port) = flow_of(&next(&socket));
        assert_eq!(number, expected);
        assert_eq!(u64::from(dst_port - 5000), expected % 3);
    }
    for hook in [Hook::XdpNative, Hook::XdpGeneric, Hook::TcIngress] {
        let sink = Sink::new(&to, hook).unwrap();
        let mut arriving = Generator::arriving(&to, &flows(&from, &to)).unwrap();
        for rate in [Rate::Flat, Rate::PerSecond(1e6)] {
            assert_eq!(arriving.send(FRAMES, rate).unwrap().frames, FRAMES);
        }
        let counted = sink.counted().unwrap();
        assert_eq!(
            (counted.frames, counted.bytes),
            (2 * FRAMES, 120 * FRAMES),
            "{hook}"
        );
    }
    // No frame went over the link.
    assert_eq!(from.counters().unwrap().tx_frames, 0);
}

#[test]
fn any_frame_can_be_sent() {
    if !testenv::root() {
        return;
    }
    let (eth_a, eth_b) = link();
    take_redirected(&eth_b);
    let socket = capture(&eth_b);
    let mut frame: Vec<u8> = (0..200).collect();
    frame[..14].copy_from_slice(b"\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\x01\x88\xb5");
    let template = Template {
        frame: frame.clone(),
        flows: 7,
        order: Order::InTurn,
        fields: vec![Field {
            offset: 101,
            width: 4,
            base: 0xffff_fffe,
            step: 3,
            divisor: 1,
            modulus: 7,
            checksum: None,
        }],
        number_at: None,
        time_at: None,
    };
    let mut generator = Generator::new(&eth_a, template).unwrap();
    generator.send(20, Rate::Flat).unwrap();
    for number in 0..20 {
        let value = 0xffff_fffe_u32.wrapping_add(3 * (number % 7));
        frame[101..105].copy_from_slice(&value.to_be_bytes());
        assert_eq!(next(&socket), frame);
    }
}

#[test]
fn sinks_count_every_frame_and_byte() {
    if !testenv::root() {
        return;
    }
    for hook in [Hook::XdpNative, Hook::XdpGeneric, Hook::TcIngress] {
        let (eth_a, eth_b) = link();
        let sink = Sink::new(&eth_b, hook).unwrap();
        let mut generator = Generator::new(&eth_a, &flow(&eth_a, &eth_b)).unwrap();
        let sent = generator.send(30_000, Rate::Flat).unwrap();
        assert_eq!((sent.frames, sent.dropped), (30_000, 0), "{hook}");
        let expected = Counted {
            frames: 30_000,
            bytes: 30_000 * 60,
        };
        assert_eq!(sink.counted().unwrap(), expected, "{hook}");
        assert_eq!(eth_a.counters().unwrap().tx_frames, 30_000, "{hook}");
    }
}

#[test]
fn a_rate_is_never_exceeded_and_delays_are_reported() {
    if !testenv::root() {
        return;
    }
    let (eth_a, eth_b) = link();
    let sink = Sink::new(&eth_b, Hook::XdpNative).unwrap();
    let mut generator = Generator::new(&eth_a, &flow(&eth_a, &eth_b)).unwrap();
    let mut total = 0;
    for (rate, count) in [(1e6, 50_000), (100e3, 5_000), (500.0, 20), (3333.0, 100)] {
        let sent = generator.send(count, Rate::PerSecond(rate)).unwrap();
        total += count;
        assert_eq!((sent.frames, sent.dropped), (count, 0), "{rate}");
        assert_eq!(sink.counted().unwrap().frames, total, "{rate}");
        // Late frames may be made up for by 64 frames or 100 µs; more is
        // reported as delay.
        let credit = (64.0 / rate).max(100e-6);
        let least = count as f64 / rate + sent.put_off.as_secs_f64() - credit;
        let elapsed = sent.elapsed.as_secs_f64();
        assert!(elapsed >= least * 0.999, "{rate}: {sent:?}");
    }
}

#[test]
fn a_generator_stops_on_request_and_when_dropped() {
    if !testenv::root() {
        return;
    }
    let (eth_a, eth_b) = link();
    let sink = Sink::new(&eth_b, Hook::XdpNative).unwrap();
    let mut generator = Generator::new(&eth_a, &flow(&eth_a, &eth_b)).unwrap();
    let mut total = 0;
    for rate in [Rate::Flat, Rate::PerSecond(50e3), Rate::PerSecond(1.0)] {
        let sending = generator.start(u64::MAX, rate).unwrap();
        while sending.sent() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let sent = sending.stop().unwrap();
        assert!(sent.frames > 0 && sent.dropped == 0, "{rate:?} {sent:?}");
        total += sent.frames;
        assert_eq!(sink.counted().unwrap().frames, total, "{rate:?}");
    }
    drop(generator.start(u64::MAX, Rate::Flat).unwrap());
    let after = sink.counted().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(sink.counted().unwrap(), after);
    assert_eq!(generator.sent(), after.frames);
}

#[test]
fn a_link_that_takes_nothing_is_reported() {
    if !testenv::root() {
        return;
    }
    let (eth_a, eth_b) = link();
    let mut generator = Generator::new(&eth_a, &flow(&eth_a, &eth_b)).unwrap();
    let error = generator.send(100, Rate::Flat).unwrap_err();
    assert!(matches!(error, GeneratorError::NotTaken { .. }), "{error}");
    assert!(error.to_string().contains("`eth0`"), "{error}");
    eth_b.delete().unwrap();
    let error = generator.send(100, Rate::Flat).unwrap_err();
    assert!(matches!(error, GeneratorError::Device(_)), "{error}");
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = generator.send(1, Rate::PerSecond(rate)).unwrap_err();
        assert!(matches!(error, GeneratorError::Rate { .. }), "{error}");
    }
}

#[test]
fn templates_without_sense_are_refused() {
    if !testenv::root() {
        return;
    }
    let (eth_a, eth_b) = link();
    let good = Template::from(&Udp {
        dst_ports: 2,
        src_addresses: 2,
        ..flow(&eth_a, &eth_b)
    });
    let refusal = |change: &dyn Fn(&mut Template)| {
        let mut template = good.clone();
        change(&mut template);
        match Generator::new(&eth_a, template).unwrap_err() {
            GeneratorError::Template(error) => error,
            other => panic!("{other}"),
        }
    };
    let refused = [
        refusal(&|t| t.frame.truncate(59)),
        refusal(&|t| t.frame.resize(3521, 0)),
        refusal(&|t| t.number_at = Some(53)),
        refusal(&|t| t.fields[0].offset = usize::MAX),
        refusal(&|t| t.fields[0].width = 3),
        refusal(&|t| t.fields[0].modulus = 0),
        refusal(&|t| t.flows = 1 << 31),
        refusal(&|t| t.fields[0].checksum = Some(40)),
    ];
    let length = |len| TemplateError::Length { len };
    let outside = |offset, width| TemplateError::Outside {
        offset,
        width,
        len: 60,
    };
    let count = |what, count| TemplateError::Count { what, count };
    let expected = [
        length(59),
        length(3521),
        outside(53, 8),
        outside(usize::MAX, 2),
        TemplateError::Width { width: 3 },
        count("values of a field", 0),
        count("flows", 1 << 31),
        TemplateError::Checksums,
    ];
    assert_eq!(refused, expected);
    Generator::new(&eth_a, good).unwrap();
}
