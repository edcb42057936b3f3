//! Composed entries in the kernel, against their oracle: for every frame the
//! program does what [`Composed::apply`] does.

use super::{CTX, NOW, emit_lookup};
use crate::bpf::{Load, Map, Program, ProgramType, TestRun};
use crate::xdp::abi::{KTIME_GET_COARSE_NS, XDP_DROP, XDP_PASS, XDP_REDIRECT};
use crate::xdp::flow_cache::{FlowAction, FlowKey, FlowKind, FlowMaps, Rewrite, Translation};
use crate::xdp::gate::shared_page::SharedPage;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use weir_chain::{Composed, Direction, Edits, Flow, Outcome};
use weir_filter::backend::ebpf::{Asm, Insn, Limits, Reg, op};
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_wire::ethernet::Address;
use weir_wire::{Protocol, checksum};

const STATION: Address = Address([2, 0, 0, 0, 0, 1]);
const MTU: u32 = 120;

struct Kernel {
    program: Program,
    flows: FlowMaps,
    _page: Map,
}

impl Kernel {
    fn new(entries: u32) -> Kernel {
        let page = SharedPage::make().unwrap();
        let words = SharedPage::of(&page).unwrap();
        words.set_longest(1, 4000);
        let flows = FlowMaps::new(&[FlowKind::FiveTuple], entries).unwrap();
        flows.set_egress(1, 1).unwrap();
        let mut asm = Asm::new();
        asm.push(Insn::mov64(CTX, Reg::R1));
        asm.push(Insn::call(KTIME_GET_COARSE_NS));
        asm.push(Insn::store(op::DW, Reg::FP, NOW, Reg::R0));
        emit_lookup(&mut asm, 0, &flows.spec(false), 0, None);
        asm.push(Insn::mov64(Reg::R0, XDP_PASS));
        asm.push(Insn::exit());
        let insns = asm.finish(&Limits::default()).unwrap();
        let maps: Vec<BorrowedFd<'_>> = [page.as_fd(); 3].into_iter().chain(flows.maps()).collect();
        let load = Load {
            name: "weir_tap",
            frags: true,
            maps: &maps,
            ..Load::new(ProgramType::Xdp)
        };
        let program = Program::load(&insns, &load).unwrap();
        Kernel {
            program,
            flows,
            _page: page,
        }
    }

    fn insert(&self, slot: u32, composed: &Composed) {
        let flow = &composed.flow;
        let key = FlowKey::FiveTuple {
            link: 0,
            protocol: flow.protocol.0,
            src: (flow.src, flow.src_port),
            dst: (flow.dst, flow.dst_port),
        };
        assert!(self.flows.insert(&key, slot, &action(composed)));
        self.flows.open_slot(slot, now(), u64::MAX);
    }

    /// The program's result for a frame, and the bytes that it leaves.
    fn run(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        let mut out = vec![0; 4096];
        let ran = self
            .program
            .test_run(&TestRun::new(frame), &mut out)
            .unwrap();
        out.truncate(ran.output_len);
        (ran.returned as i32, out)
    }
}

fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn action(composed: &Composed) -> FlowAction {
    if composed.is_drop {
        return FlowAction::DropFlow;
    }
    let (flow, edits) = (&composed.flow, &composed.edits);
    let v4 = |new: Option<IpAddr>, old: IpAddr| match new.unwrap_or(old) {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => panic!("IPv6 is not translated"),
    };
    let (src, dst) = edits.stations.unwrap();
    FlowAction::Rewrite(Rewrite {
        link: 1,
        station: STATION,
        src,
        dst,
        mtu: edits.mtu,
        dscp: edits.dscp,
        translation: composed.translates().then(|| Translation {
            src: (
                v4(edits.source, flow.src),
                edits.source_port.unwrap_or(flow.src_port),
            ),
            dst: (
                v4(edits.destination, flow.dst),
                edits.destination_port.unwrap_or(flow.dst_port),
            ),
            header: edits.header,
            transport: edits.transport,
        }),
    })
}

fn address(rng: &mut Rng, is_v6: bool) -> IpAddr {
    let bits = rng.bits();
    if is_v6 {
        Ipv6Addr::from_bits(u128::from(bits) << 64 | u128::from(!bits)).into()
    } else {
        Ipv4Addr::from_bits(bits as u32).into()
    }
}

fn composed(rng: &mut Rng) -> Composed {
    let is_v6 = rng.chance(30);
    let flow = Flow {
        protocol: *rng.choose(&[Protocol::UDP, Protocol::TCP]),
        src: address(rng, is_v6),
        src_port: rng.bits() as u16,
        dst: address(rng, is_v6),
        dst_port: rng.bits() as u16,
    };
    let mut edits = Edits {
        ttl: 1,
        stations: Some((Address([2, 0, 0, 0, 1, 1]), Address([2, 0, 0, 0, 1, 2]))),
        output: Some(1),
        mtu: MTU,
        dscp: rng.chance(50).then(|| rng.bits() as u8 & 0x3f),
        ..Edits::default()
    };
    if !is_v6 && rng.chance(80) {
        let bits = rng.bits();
        edits.source = rng.chance(50).then(|| address(rng, false));
        edits.destination = rng.chance(50).then(|| address(rng, false));
        edits.source_port = rng.chance(50).then_some(bits as u16);
        edits.destination_port = rng.chance(50).then_some((bits >> 16) as u16);
        edits.header = *rng.choose(&[(bits >> 32) as u16, 0, 0xffff]);
        edits.transport = *rng.choose(&[(bits >> 48) as u16, 0, 0xffff, 1]);
    }
    Composed {
        flow,
        direction: Direction::Outward,
        is_drop: rng.chance(10),
        edits,
        cookies: [0; weir_chain::STAGES_MAX],
    }
}

/// A frame of a flow, or nearly.
fn frame(rng: &mut Rng, flow: &Flow) -> Vec<u8> {
    let is_tcp = flow.protocol == Protocol::TCP;
    let payload = rng.below(90);
    let len = payload + if is_tcp { 20 } else { 8 };
    let mut frame = [&STATION.0[..], &[2, 0, 0, 0, 0, 9]].concat();
    let ttl = *rng.choose(&[64, 255, 3, 2, 1, 0]);
    let class = rng.bits() as u8;
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total = (20 + len) as u16;
            frame.extend([8, 0, 0x45, class]);
            frame.extend(total.to_be_bytes());
            frame.extend([7, 7, *rng.choose(&[0, 0x40]), 0, ttl, flow.protocol.0, 0, 0]);
            frame.extend(src.octets());
            frame.extend(dst.octets());
            let sum = checksum::internet_checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            frame.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4 | 5, 6, 7]);
            frame.extend((len as u16).to_be_bytes());
            frame.extend([flow.protocol.0, ttl]);
            frame.extend(src.octets());
            frame.extend(dst.octets());
        }
        _ => panic!("two families"),
    }
    frame.extend(flow.src_port.to_be_bytes());
    frame.extend(flow.dst_port.to_be_bytes());
    let start = frame.len() - 4;
    let bits = rng.bits() as u16;
    let sum = *rng.choose(&[bits, 0, 0xffff]);
    if is_tcp {
        let flags = *rng.choose(&[0x10, 0x18, 0x10, 0x02, 0x11, 0x04]);
        frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0xff, 0xff]);
        frame.extend(sum.to_be_bytes());
    } else {
        frame.extend((len as u16).to_be_bytes());
        frame.extend(sum.to_be_bytes());
    }
    frame.resize(start + len, 0xab);
    if rng.chance(20) {
        frame.resize(frame.len() + 1 + rng.below(20), 0xee);
    }
    if rng.chance(15) {
        let at = 12 + rng.below(frame.len() - 12);
        frame[at] ^= 1 << rng.below(8);
    }
    if rng.chance(5) {
        frame.truncate(20 + rng.below(frame.len() - 20));
    }
    frame
}

#[test]
fn the_program_does_what_the_entry_says() {
    if !testenv::root() {
        return;
    }
    const SEED: u64 = 0x00c0_4405;
    println!("seed {SEED:#x}");
    let mut rng = Rng::new(SEED);
    let (mut sent, mut dropped, mut up) = (0, 0, 0);
    let kernel = Kernel::new(512);
    for slot in 0..400 {
        let composed = composed(&mut rng);
        kernel.insert(slot, &composed);
        for _ in 0..12 {
            let frame = frame(&mut rng, &composed.flow);
            let mut right = frame.clone();
            let outcome = composed.apply(&mut right);
            let (verdict, out) = kernel.run(&frame);
            let what = || format!("{composed:?} of {frame:02x?}");
            match outcome {
                Outcome::Sent { len } => {
                    right.truncate(len);
                    assert_eq!(verdict, XDP_REDIRECT, "{}", what());
                    assert_eq!(out, right, "{}", what());
                    sent += 1;
                }
                Outcome::Dropped => {
                    assert_eq!(verdict, XDP_DROP, "{}", what());
                    dropped += 1;
                }
                Outcome::Up => {
                    assert_eq!(verdict, XDP_PASS, "{}", what());
                    assert_eq!(out, frame, "{}", what());
                    up += 1;
                }
            }
        }
    }
    println!("{sent} sent, {dropped} dropped, {up} up");
    assert!(sent > 1000 && dropped > 100 && up > 500);
}

/// A frame that another station gets is not the router's, whatever its flow.
#[test]
fn frames_to_other_stations_go_up() {
    if !testenv::root() {
        return;
    }
    let mut rng = Rng::new(5);
    let kernel = Kernel::new(16);
    let composed = Composed {
        is_drop: false,
        ..composed(&mut rng)
    };
    kernel.insert(0, &composed);
    let good = loop {
        let frame = frame(&mut rng, &composed.flow);
        if matches!(composed.apply(&mut frame.clone()), Outcome::Sent { .. }) {
            break frame;
        }
    };
    assert_eq!(kernel.run(&good).0, XDP_REDIRECT);
    for at in 0..6 {
        let mut other = good.clone();
        other[at] ^= 4;
        assert_eq!(kernel.run(&other).0, XDP_PASS, "byte {at}");
    }
}
