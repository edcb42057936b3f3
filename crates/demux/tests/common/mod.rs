//! What the tests share: predicates that become programs of the look the
//! expression front end gives them, frames that nearly match, and the plan's
//! definition in a few lines.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod flows;

use weir_demux::{Binding, BindingId, Delivery, Filter, Plan, Target, Verdict};
use weir_filter::interp;
use weir_filter::ir::{BinOp, Block, Builder, Cmp, Program, SNAPLEN_ALL, Value, Width};
use weir_lab::program::Tape;

/// A predicate on Ethernet frames.
#[derive(Clone, Debug)]
pub enum Pred {
    All,
    Not(Box<Pred>),
    And(Box<Pred>, Box<Pred>),
    Or(Box<Pred>, Box<Pred>),
    /// Ethertype.
    Ether(u16),
    /// IPv4 with that protocol.
    Proto(u8),
    /// IPv4 source network: address and prefix length.
    Src(u32, u32),
    /// IPv4 destination network.
    Dst(u32, u32),
    /// First fragment of IPv4, with that protocol, and its source port within
    /// bounds.
    SrcPort(u8, u16, u16),
    /// The same for the destination port.
    DstPort(u8, u16, u16),
    /// IPv6 with that next header and destination port.
    Port6(u8, u16),
    /// A byte with some bits set.
    Bits(u32, u8),
    /// The frame is longer.
    Longer(u32),
}

use Pred::*;

pub fn and(a: Pred, b: Pred) -> Pred {
    And(Box::new(a), Box::new(b))
}

pub fn or(a: Pred, b: Pred) -> Pred {
    Or(Box::new(a), Box::new(b))
}

pub fn not(a: Pred) -> Pred {
    Not(Box::new(a))
}

/// One TCP or UDP connection, as `src host … and dst host … and … port …`.
pub fn five_tuple(proto: u8, src: u32, dst: u32, src_port: u16, dst_port: u16) -> Pred {
    let hosts = and(Src(src, 32), Dst(dst, 32));
    let ports = and(
        SrcPort(proto, src_port, src_port),
        DstPort(proto, dst_port, dst_port),
    );
    and(hosts, ports)
}

/// Unoptimised, as a front end makes it.
pub fn program(pred: &Pred) -> Program {
    program_with(pred, SNAPLEN_ALL)
}

pub fn program_with(pred: &Pred, snap: u32) -> Program {
    let mut builder = Builder::new();
    let (yes, no) = (builder.block(), builder.block());
    emit(&mut builder, pred, yes, no);
    builder.switch_to(yes);
    builder.ret(snap);
    builder.switch_to(no);
    builder.ret(0);
    let program = builder.finish();
    program.verify().expect("the test's programs are well made");
    program
}

pub fn filter(pred: &Pred) -> Filter {
    Filter::new(program(pred))
}

fn emit(builder: &mut Builder, pred: &Pred, yes: Block, no: Block) {
    match pred {
        All => builder.jump(yes, Vec::new()),
        Not(inner) => emit(builder, inner, no, yes),
        And(a, b) => {
            let next = builder.block();
            emit(builder, a, next, no);
            builder.switch_to(next);
            emit(builder, b, yes, no);
        }
        Or(a, b) => {
            let next = builder.block();
            emit(builder, a, yes, next);
            builder.switch_to(next);
            emit(builder, b, yes, no);
        }
        Ether(kind) => test(builder, Width::B2, None, 12, *kind, yes, no),
        Proto(proto) => {
            after(builder, no, |builder, next| {
                test(builder, Width::B2, None, 12, 0x800_u32, next, no);
            });
            test(builder, Width::B1, None, 23, *proto, yes, no);
        }
        Src(net, bits) => network(builder, 26, *net, *bits, yes, no),
        Dst(net, bits) => network(builder, 30, *net, *bits, yes, no),
        SrcPort(proto, lo, hi) => port(builder, *proto, 14, (*lo, *hi), yes, no),
        DstPort(proto, lo, hi) => port(builder, *proto, 16, (*lo, *hi), yes, no),
        Port6(proto, port) => {
            for (width, offset, value) in
                [(Width::B2, 12, 0x86dd), (Width::B1, 20, u16::from(*proto))]
            {
                after(builder, no, |builder, next| {
                    test(builder, width, None, offset, value, next, no);
                });
            }
            test(builder, Width::B2, None, 56, *port, yes, no);
        }
        Bits(offset, mask) => {
            let byte = builder.load(Width::B1, None, *offset);
            builder.branch(Cmp::Set, byte, u32::from(*mask), yes, no);
        }
        Longer(len) => {
            let wire_len = builder.wire_len();
            builder.branch(Cmp::Gt, wire_len, *len, yes, no);
        }
    }
}

fn after(builder: &mut Builder, _no: Block, emit: impl FnOnce(&mut Builder, Block)) {
    let next = builder.block();
    emit(builder, next);
    builder.switch_to(next);
}

fn test(
    builder: &mut Builder,
    width: Width,
    base: Option<Value>,
    offset: u32,
    value: impl Into<u32>,
    yes: Block,
    no: Block,
) {
    let field = builder.load(width, base, offset);
    builder.branch(Cmp::Eq, field, value.into(), yes, no);
}

fn network(builder: &mut Builder, offset: u32, net: u32, bits: u32, yes: Block, no: Block) {
    after(builder, no, |builder, next| {
        test(builder, Width::B2, None, 12, 0x800_u32, next, no);
    });
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    let address = builder.load(Width::B4, None, offset);
    if bits == 32 {
        builder.branch(Cmp::Eq, address, net, yes, no);
    } else {
        let masked = builder.bin(BinOp::And, address, mask);
        builder.branch(Cmp::Eq, masked, net & mask, yes, no);
    }
}

fn port(builder: &mut Builder, proto: u8, offset: u32, bounds: (u16, u16), yes: Block, no: Block) {
    after(builder, no, |builder, next| {
        test(builder, Width::B2, None, 12, 0x800_u32, next, no);
    });
    after(builder, no, |builder, next| {
        test(builder, Width::B1, None, 23, proto, next, no);
    });
    after(builder, no, |builder, next| {
        let fragment = builder.load(Width::B2, None, 20);
        builder.branch(Cmp::Set, fragment, 0x1fff, no, next);
    });
    let byte = builder.load(Width::B1, None, 14);
    let words = builder.bin(BinOp::And, byte, 0xf);
    let header = builder.bin(BinOp::Shl, words, 2);
    let field = builder.load(Width::B2, Some(header), offset);
    let (lo, hi) = (u32::from(bounds.0), u32::from(bounds.1));
    if lo == hi {
        builder.branch(Cmp::Eq, field, lo, yes, no);
    } else {
        let next = builder.block();
        builder.branch(Cmp::Ge, field, lo, next, no);
        builder.switch_to(next);
        builder.branch(Cmp::Gt, field, hi, no, yes);
    }
}

/// An IPv4 frame: Ethernet, header of `words` words, ports, some payload.
pub fn ip_frame(proto: u8, src: u32, dst: u32, ports: (u16, u16), words: u8) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes.extend([8, 0, 0x40 | words, 0, 0, 60, 0, 0, 0, 0, 64, proto, 0, 0]);
    bytes.extend(src.to_be_bytes());
    bytes.extend(dst.to_be_bytes());
    bytes.resize(14 + 4 * usize::from(words), 1);
    bytes.extend(ports.0.to_be_bytes());
    bytes.extend(ports.1.to_be_bytes());
    bytes.resize(bytes.len() + 16, 0);
    bytes
}

pub fn ip6_frame(proto: u8, port: u16) -> Vec<u8> {
    let mut bytes = vec![0; 60];
    bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
    bytes[20] = proto;
    bytes[56..58].copy_from_slice(&port.to_be_bytes());
    bytes
}

/// Few distinct addresses, so that filters overlap and frames nearly match.
pub fn address(tape: &mut Tape) -> u32 {
    let low = u32::try_from(tape.below(4)).expect("below four");
    tape.pick(&[0x0a00_0000, 0x0a01_0000, 0x0a01_0100, 0xc0a8_0000]) | low
}

pub fn transport_port(tape: &mut Tape) -> u16 {
    tape.pick(&[22, 53, 80, 81, 443, 1024, 5555, 5556, 40_000, 65_535])
}

pub fn protocol(tape: &mut Tape) -> u8 {
    tape.pick(&[6, 17, 1])
}

pub fn frame(tape: &mut Tape) -> Vec<u8> {
    let proto = protocol(tape);
    let mut bytes = if tape.chance(80) {
        let (src, dst) = (address(tape), address(tape));
        let ports = (transport_port(tape), transport_port(tape));
        let words = tape.pick(&[5, 5, 6, 15]);
        ip_frame(proto, src, dst, ports, words)
    } else {
        ip6_frame(proto, transport_port(tape))
    };
    if tape.chance(10) {
        // A later fragment, or some other near miss.
        bytes[21] = tape.byte();
    }
    if tape.chance(20) {
        let at = tape.below(bytes.len());
        bytes[at] = tape.byte();
    }
    if tape.chance(20) {
        bytes.truncate(tape.below(bytes.len()));
    }
    bytes
}

/// A random predicate, `depth` operators deep at most.
pub fn predicate(tape: &mut Tape, depth: usize) -> Pred {
    if depth > 0 && tape.chance(60) {
        let (a, b) = (predicate(tape, depth - 1), predicate(tape, depth - 1));
        return match tape.below(5) {
            0 | 1 => and(a, b),
            2 | 3 => or(a, b),
            _ => not(a),
        };
    }
    let (lo, hi) = {
        let (a, b) = (transport_port(tape), transport_port(tape));
        if tape.chance(70) {
            (a, a)
        } else {
            (a.min(b), a.max(b))
        }
    };
    let prefix = tape.pick(&[32, 32, 24, 16, 8, 31, 15, 0]);
    match tape.below(12) {
        0 => All,
        1 => Ether(tape.pick(&[0x800, 0x86dd, 0x806])),
        2 => Proto(protocol(tape)),
        3 | 4 => Src(address(tape), prefix),
        5 | 6 => Dst(address(tape), prefix),
        7 => SrcPort(protocol(tape), lo, hi),
        8 => DstPort(protocol(tape), lo, hi),
        9 => Port6(protocol(tape), lo),
        10 => Bits(tape.pick(&[47, 13, 21]), tape.byte()),
        _ => Longer(u32::from(tape.byte())),
    }
}

/// A random binding's filter: any predicate, or a connection.
pub fn random_filter(tape: &mut Tape) -> Program {
    match tape.below(10) {
        0..4 => {
            let (src, dst) = (address(tape), address(tape));
            let ports = (transport_port(tape), transport_port(tape));
            program(&five_tuple(protocol(tape), src, dst, ports.0, ports.1))
        }
        4..8 => {
            let depth = tape.below(4);
            program_with(&predicate(tape, depth), tape.pick(&[SNAPLEN_ALL, 96]))
        }
        _ => weir_lab::program::program(tape),
    }
}

pub fn random_binding(tape: &mut Tape) -> Binding {
    Binding {
        filter: Filter::new(random_filter(tape)),
        priority: tape.pick(&[0, 5, 5, 5, 9, u16::MAX]),
        copy: tape.chance(40),
        target: tape.pick(&[
            Target::Port(3),
            Target::Kernel,
            Target::Drop,
            Target::Link(1),
        ]),
        tag: tape.word(),
    }
}

/// What a plan has to give, straight from its definition.
pub struct Reference(pub Vec<(BindingId, Binding)>);

impl Reference {
    /// By decreasing priority, copies first, then in the order bound, each
    /// filter by the interpreter, up to the first that takes the frame; behind
    /// a claim, the copies alone. Returns whether it is taken, and claimed.
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> (Vec<Given>, bool, bool) {
        let mut order: Vec<_> = self.0.iter().collect();
        order.sort_by_key(|(_, binding)| (u16::MAX - binding.priority, !binding.copy));
        let mut given = Vec::new();
        let mut claimed = false;
        for (id, binding) in order {
            if claimed && !binding.copy {
                continue;
            }
            let snap = interp::run(binding.filter.program(), bytes, wire_len);
            if snap != 0 {
                given.push((*id, binding.target, binding.tag, snap));
                if !binding.copy && binding.target != Target::Kernel {
                    return (given, true, false);
                }
                claimed |= !binding.copy;
            }
        }
        (given, false, claimed)
    }
}

/// Binding, target, tag and snap length.
pub type Given = (BindingId, Target, u32, u32);

pub fn given(delivery: &Delivery) -> Given {
    (
        delivery.binding,
        delivery.target,
        delivery.tag,
        delivery.snap_len,
    )
}

/// Checks one frame, and that it is the same however far it was captured.
pub fn check(
    plan: &Plan,
    reference: &Reference,
    verdict: &mut Verdict,
    bytes: &[u8],
    wire_len: u32,
) {
    plan.run(bytes, wire_len, verdict);
    let found: Vec<Given> = verdict.deliveries().iter().map(given).collect();
    let (expected, taken, claimed) = reference.run(bytes, wire_len);
    let fate = (verdict.is_taken(), verdict.is_claimed());
    if (&found, fate) != (&expected, (taken, claimed)) {
        for (id, binding) in &reference.0 {
            let either = found.iter().chain(&expected).any(|given| given.0 == *id);
            if either {
                eprintln!(
                    "{id} {binding:?}\n{}\n{}",
                    binding.filter,
                    binding.filter.program()
                );
            }
        }
        panic!("{bytes:02x?} ({wire_len}):\nplan {found:?}\nreference {expected:?}");
    }
}

/// A frame's length on the wire: mostly as captured or somewhat more; now and
/// then any, as a capture file may claim.
pub fn wire_len(tape: &mut Tape, captured: usize) -> u32 {
    match tape.below(16) {
        0 => tape.word(),
        1 => u32::from(tape.byte()),
        _ => captured as u32 + u32::from(tape.byte() & 0x3f),
    }
}

/// One random step of a plan and of the reference beside it: a binding made
/// (by `make`), removed, given another filter, or bound again with the filter
/// of another one, up to `again_max` times over.
pub fn step(
    plan: &mut Plan,
    Reference(bound): &mut Reference,
    tape: &mut Tape,
    again_max: usize,
    make: impl Fn(&mut Tape) -> Binding,
) {
    match tape.below(8) {
        0 | 1 if !bound.is_empty() => {
            let at = tape.below(bound.len());
            let (id, binding) = bound.remove(at);
            let unbound = plan.unbind(id).expect("bound");
            assert_eq!(unbound.tag, binding.tag);
            assert!(plan.unbind(id).is_err(), "unbound twice");
        }
        2 if !bound.is_empty() => {
            let at = tape.below(bound.len());
            let (id, binding) = &mut bound[at];
            binding.filter = make(tape).filter;
            plan.change_filter(*id, binding.filter.clone())
                .expect("bound");
        }
        3 if !bound.is_empty() => {
            // Perhaps with the same priority, too.
            let filter = bound[tape.below(bound.len())].1.filter.clone();
            for _ in 0..=tape.below(again_max) {
                let mut binding = make(tape);
                binding.filter = filter.clone();
                let id = plan.bind(binding.clone()).expect("room");
                bound.push((id, binding));
            }
        }
        _ => {
            let binding = make(tape);
            let id = plan.bind(binding.clone()).expect("room");
            bound.push((id, binding));
        }
    }
    assert_eq!(plan.len(), bound.len());
}
