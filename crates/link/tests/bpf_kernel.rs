//! Generated eBPF in the kernel: the verifier accepts it, and its verdicts
//! equal the interpreter's.
//!
//! More random programs than by default: `WEIR_BPF_PROGRAMS=20000 cargo test -p
//! weir-link --test bpf_kernel random`

use weir_filter::backend::ebpf::{Insn, Listing, Options, Reg, Returns, Target, XdpLen, emit};
use weir_filter::interp::Interp;
use weir_filter::ir::{BinOp, Builder, Cmp, Program as Filter, Width};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::program::{Frame, frames, seeded};
use weir_lab::{corpus, testenv};
use weir_link::bpf::{FRAME_BYTES_MIN, Load, Program, ProgramType, TestRun};
use weir_link::pcap::Reader;
use weir_wire::LinkType;

/// Whether this process may load programs; skips the test otherwise.
fn permitted() -> bool {
    let nothing = [Insn::mov32(Reg::R0, 0), Insn::exit()];
    let loaded = Program::load(&nothing, &Load::new(ProgramType::Xdp));
    if let Err(error) = &loaded {
        testenv::skip(&error.to_string());
    }
    loaded.is_ok()
}

/// XDP with the wire length in the frame's metadata.
const META: Target = Target::Xdp(XdpLen::Meta);

/// Each form of a filter in the kernel.
const TARGETS: [Target; 6] = [
    META,
    Target::Xdp(XdpLen::Linear),
    Target::Xdp(XdpLen::Whole),
    Target::XdpFrags,
    Target::Tc,
    Target::SocketFilter,
];

fn load(filter: &Filter, options: &Options) -> Program {
    let insns = emit(filter, options).unwrap_or_else(|error| panic!("{error}\n{filter}"));
    let mut how = Load::new(match options.target {
        Target::Tc => ProgramType::SchedCls,
        Target::SocketFilter => ProgramType::SocketFilter,
        _ => ProgramType::Xdp,
    });
    how.frags = options.target == Target::XdpFrags;
    Program::load(&insns, &how)
        .unwrap_or_else(|error| panic!("{error}\n{}{}", head(filter), Listing(&insns)))
}

/// The filter's text, truncated.
fn head(filter: &Filter) -> String {
    filter.to_string().chars().take(10_000).collect()
}

fn run(program: &Program, target: Target, frame: &Frame, linear: Option<usize>) -> u32 {
    let meta = frame.wire_len.to_ne_bytes();
    // A test run passes the frame from its network layer on to a socket filter.
    let behind_header = [&[0x88; FRAME_BYTES_MIN], &frame.bytes[..]].concat();
    let mut run = TestRun::new(&frame.bytes);
    match target {
        META => run.meta = &meta,
        Target::SocketFilter => run.frame = &behind_header,
        _ => {}
    }
    run.linear = linear;
    let ran = program.test_run(&run, &mut []);
    ran.unwrap_or_else(|error| panic!("{error}: {frame:?}"))
        .returned
}

/// Whether the kernel can run a test on such a frame: it needs an Ethernet
/// header, and for an skb also the header that its EtherType announces.
fn fits(target: Target, bytes: &[u8]) -> bool {
    let header = match (target, bytes.get(12..14)) {
        (Target::SocketFilter, _) => return !bytes.is_empty(),
        (Target::Tc, Some([0x08, 0x00])) => 20,
        (Target::Tc, Some([0x86, 0xdd])) => 40,
        _ => 0,
    };
    bytes.len() >= FRAME_BYTES_MIN + header
}

/// Returns the number of frames, and how many were accepted.
fn assert_equal(filter: &Filter, target: Target, frames: &[Frame]) -> (usize, usize) {
    let program = load(filter, &Options::new(target));
    let mut oracle = Interp::new(filter);
    let (mut seen, mut accepted) = (0, 0);
    for frame in frames.iter().filter(|frame| fits(target, &frame.bytes)) {
        let mut frame = frame.clone();
        if target != META {
            // This target has no way to receive a longer wire length.
            frame.wire_len = frame.bytes.len() as u32;
        }
        let expected = oracle.run(&frame.bytes, frame.wire_len);
        let found = run(&program, target, &frame, None);
        assert_eq!(found, expected, "{target:?} {frame:?}\n{}", head(filter));
        seen += 1;
        accepted += usize::from(found > 0);
    }
    (seen, accepted)
}

#[test]
fn random_programs_are_accepted_and_give_the_interpreters_verdicts() {
    if !permitted() {
        return;
    }
    let count: u64 = std::env::var("WEIR_BPF_PROGRAMS").map_or(500, |text| {
        text.parse().expect("WEIR_BPF_PROGRAMS is a number")
    });
    let mut total = (0, 0);
    for seed in 0..count {
        let mut filter = seeded(seed);
        if seed % 3 == 0 {
            optimise(&mut filter);
        }
        let target = TARGETS[seed as usize % TARGETS.len()];
        let (seen, accepted) = assert_equal(&filter, target, &frames(seed, 20));
        total = (total.0 + seen, total.1 + accepted);
    }
    let (seen, accepted) = total;
    assert!(
        accepted * 10 > seen && seen > accepted,
        "{accepted} of {seen}"
    );
}

/// Length of a frame that a test run always accepts as one fragment.
const LINEAR_MAX: usize = 3_400;

/// Frames of all captures with that link type, spread evenly over each file.
fn captured(linktype: LinkType, per_file: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    for path in testenv::capture_files() {
        let mut reader = Reader::open(&path).expect("a capture opens");
        let mut of_file = Vec::new();
        // A damaged file yields the frames before the damage.
        while let Ok(Some(frame)) = reader.next_frame() {
            let len = frame.bytes.len();
            if frame.linktype() == linktype && (FRAME_BYTES_MIN..=LINEAR_MAX).contains(&len) {
                of_file.push(Frame {
                    bytes: frame.bytes.to_vec(),
                    wire_len: frame.wire_len,
                });
            }
        }
        let step = of_file.len().div_ceil(per_file).max(1);
        frames.extend(of_file.into_iter().step_by(step));
    }
    frames
}

#[test]
fn expressions_give_the_interpreters_verdicts_on_real_captures() {
    if !permitted() {
        return;
    }
    let frames = captured(LinkType::EN10MB, 40);
    if frames.is_empty() {
        return;
    }
    let (mut filters, mut seen, mut accepted) = (0, 0, 0);
    for (index, entry) in corpus::entries().iter().enumerate() {
        let Ok(mut filter) = compile(&entry.text, &Context::new(LinkType::EN10MB)) else {
            continue;
        };
        if index % 2 == 0 {
            optimise(&mut filter);
        }
        let target = TARGETS[index % TARGETS.len()];
        let some: Vec<Frame> = frames
            .iter()
            .skip(index % 16)
            .step_by(16)
            .cloned()
            .collect();
        let counts = assert_equal(&filter, target, &some);
        (filters, seen, accepted) = (filters + 1, seen + counts.0, accepted + counts.1);
    }
    println!("{filters} filters, {seen} runs, {accepted} accepted");
    assert!(filters > 1_000 && accepted > 1_000, "{filters} {accepted}");
}

/// `count` values live at once that are used as bases of loads at the end:
/// spilled variable offsets and addresses.
fn crowded_bases(count: u32, bounded: bool) -> Filter {
    let mut builder = Builder::new();
    let bases: Vec<_> = (0..count)
        .map(|index| {
            let word = builder.load(Width::B2, None, index % 30);
            let mask = if bounded { 0x1f } else { 0x3fff_ffff };
            builder.bin(BinOp::And, word, mask)
        })
        .collect();
    let mut sum = builder.wire_len();
    for round in 0..2 {
        for &base in &bases {
            let value = builder.load(Width::B2, Some(base), round * 3);
            sum = builder.bin(BinOp::Mul, sum, 31);
            sum = builder.bin(BinOp::Xor, sum, value);
        }
    }
    builder.ret(sum);
    builder.finish()
}

#[test]
fn spilled_offsets_stay_bounded() {
    if !permitted() {
        return;
    }
    for target in TARGETS {
        for count in [3, 8, 20, 50] {
            for bounded in [false, true] {
                let filter = crowded_bases(count, bounded);
                assert_equal(&filter, target, &frames(u64::from(count), 20));
            }
        }
    }
}

/// A check of an address that may exceed 65,535 teaches the verifier nothing:
/// the base is bounded again.
#[test]
fn far_loads_behind_a_bounded_base_are_accepted() {
    if !permitted() {
        return;
    }
    for offset in [
        10, 1_000, 65_400, 65_474, 65_475, 65_476, 65_533, 65_534, 65_535, 70_000,
    ] {
        let filter: Filter = format!(
            "filter {{\nb0:\nv0 = load.1 [14]\nv1 = and v0, 0xf\nv2 = shl v1, 2\n\
             v3 = load.1 [v2 + 3]\nbr eq v3, 7, b1, b2\n\
             b1:\nv4 = load.1 [v2 + {offset}]\nv5 = or v4, 1\nret v5\nb2:\nret 6\n}}"
        )
        .parse()
        .unwrap();
        for target in TARGETS {
            let (_, accepted) = assert_equal(&filter, target, &frames(3, 30));
            assert!(accepted > 0, "{offset}");
        }
    }
}

/// Linux 6.18 links a sum to its operands; see `unlink` in the back end. Both
/// forms by which the verifier then rejected random programs.
#[test]
fn sums_as_offsets_are_accepted() {
    if !permitted() {
        return;
    }
    // A copied offset to which a large constant is added in place.
    let copied = |op: &str, constant: u32| {
        format!(
            "b0:\nv0 = load.4 [16]\nv1 = div v0, v0\nbr set v0, v1, b2, b1\n\
             b1:\nv2 = load.4 [20]\njmp b2\n\
             b2:\nv3 = {op} v0, {constant}\nv4 = load.2 [v3 + 3]\nv5 = or v4, 1\nret v5"
        )
    };
    // A byte that is part of a difference, which is compared before the byte is
    // used as an offset.
    let compared = |op: &str, constant: u32| {
        format!(
            "b0:\nv0 = and {constant}, 0x21\nv1 = load.1 [15]\nv2 = {op} v1, v0\n\
             br lt v0, 0xa6a225d2, b1, b2\n\
             b1:\nbr set v2, 0x36, b4, b2\n\
             b2:\nv3 = load.2 [v1 + 16]\nbr ge v3, 0x36, b3, b4\n\
             b3:\nret v3\n\
             b4:\nret v2"
        )
    };
    for op in ["add", "sub"] {
        for constant in [1, 3, 0x351d_5ec4, 0x7fff_fff0, 0x9000_0001, 0xffff_fff1] {
            for text in [copied(op, constant), compared(op, constant)] {
                let filter: Filter = format!("filter {{\n{text}\n}}").parse().unwrap();
                for target in TARGETS {
                    assert_equal(&filter, target, &frames(5, 10));
                }
            }
        }
    }
}

/// The form of a long chain of tests.
#[derive(Clone, Copy, Debug)]
struct Chain {
    tests: u32,
    /// One test that holds accepts; otherwise one test that fails rejects.
    any: bool,
    /// Whether values are loaded again at times, and bits tested instead of
    /// values.
    mixed: bool,
}

/// `value == 1 or value == 4 or …`, or `value != 1 and value != 4 and …`.
fn chain(how: Chain) -> Filter {
    let mut builder = Builder::new();
    let (yes, no) = (builder.block(), builder.block());
    let value = builder.load(Width::B4, None, 0);
    for index in 0..how.tests {
        let (mut value, mut cmp) = (value, Cmp::Eq);
        if how.mixed && index.is_multiple_of(5) {
            value = builder.load(Width::B4, None, index % 20);
            cmp = if index.is_multiple_of(2) {
                Cmp::Set
            } else {
                Cmp::Eq
            };
        }
        let next = builder.block();
        let constant = index * 3 + 1;
        if how.any {
            builder.branch(cmp, value, constant, yes, next);
        } else {
            builder.branch(cmp.negated(), value, constant, next, no);
        }
        builder.switch_to(next);
    }
    let end = if how.any { no } else { yes };
    builder.jump(end, Vec::new());
    builder.switch_to(yes);
    builder.ret(1);
    builder.switch_to(no);
    builder.ret(0);
    builder.finish()
}

fn word_frames(words: &[u32]) -> Vec<Frame> {
    let frame = |word: &u32| Frame {
        bytes: [&word.to_be_bytes()[..], &[0; 56]].concat(),
        wire_len: 60,
    };
    words.iter().map(frame).collect()
}

/// Longer than the verifier's stack of branches (8,192), and than a jump's
/// 16-bit offset.
#[test]
fn long_chains_are_accepted() {
    if !permitted() {
        return;
    }
    let frames = word_frames(&[0, 1, 4, 3 * 1_999 + 1, 3 * 19_999 + 1, u32::MAX]);
    for tests in [2_000, 20_000, 60_000] {
        for (any, mixed) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_equal(&chain(Chain { tests, any, mixed }), META, &frames);
        }
    }
}

#[test]
fn a_list_of_two_thousand_hosts_is_accepted() {
    if !permitted() {
        return;
    }
    let hosts: Vec<String> = (0..2_000)
        .map(|n| format!("host 10.{}.{}.{}", n % 7, n / 256, n % 256))
        .collect();
    let context = Context::new(LinkType::EN10MB);
    let mut filter = compile(&hosts.join(" or "), &context).expect("it compiles");
    let frames = captured(LinkType::EN10MB, 5);
    // With a helper call for each of its 18,000 loads, verification takes 20 s.
    for target in [META, Target::Xdp(XdpLen::Whole)] {
        assert_equal(&filter, target, &frames);
    }
    optimise(&mut filter);
    for target in TARGETS {
        assert_equal(&filter, target, &frames);
    }
}

#[test]
fn frames_of_several_pieces_are_read_throughout() {
    if !permitted() {
        return;
    }
    let bytes: Vec<u8> = (0..9_000_u32).map(|n| (n % 251) as u8).collect();
    let frame = Frame {
        wire_len: 9_000,
        bytes,
    };
    for offset in [0, 3_000, 4_093, 4_095, 4_096, 8_996, 8_997] {
        let filter: Filter = format!(
            "filter {{\nb0:\nv0 = load.4 [{offset}]\nv1 = load.1 [1]\nv2 = load.4 [v1 + {}]\n\
             v3 = xor v0, v2\nv4 = len\nv5 = add v4, v3\nret v5\n}}",
            offset / 2
        )
        .parse()
        .unwrap();
        assert_equal(&filter, Target::XdpFrags, std::slice::from_ref(&frame));
    }
}

/// Frames fragmented at every offset: bytes outside the first fragment are read
/// by helper calls.
#[test]
fn where_a_frame_is_cut_makes_no_difference() {
    if !permitted() {
        return;
    }
    for target in [Target::XdpFrags, Target::Tc] {
        let probe = load(&seeded(0), &Options::new(target));
        let mut cut = TestRun::new(&[0; 60]);
        cut.linear = Some(20);
        match probe.test_run(&cut, &mut []) {
            Ok(_) => assert_cuts_make_no_difference(target),
            // An error of this call is not a missing need, so the test does not
            // skip.
            Err(error) => {
                eprintln!("{target:?}: this kernel cuts no frames in a test run: {error}")
            }
        }
    }
}

fn assert_cuts_make_no_difference(target: Target) {
    let mut reached_by_calls = 0;
    for seed in 0..150 {
        let filter = seeded(seed);
        let mut oracle = Interp::new(&filter);
        let program = load(&filter, &Options::new(target));
        for mut frame in frames(seed, 12) {
            frame.wire_len = frame.bytes.len() as u32;
            if !fits(target, &frame.bytes) {
                continue;
            }
            let expected = oracle.run(&frame.bytes, frame.wire_len);
            for linear in (FRAME_BYTES_MIN..frame.bytes.len()).step_by(7) {
                let found = run(&program, target, &frame, Some(linear));
                assert_eq!(found, expected, "{target:?} {linear} {frame:?}\n{filter}");
                let of_piece = oracle.run(&frame.bytes[..linear], frame.wire_len);
                reached_by_calls += usize::from(of_piece != expected);
            }
        }
    }
    println!("{target:?}: {reached_by_calls} verdicts hang on bytes behind the cut");
    assert!(reached_by_calls > 50, "{reached_by_calls}");
}

#[test]
fn verdicts_become_the_codes_asked_for() {
    if !permitted() {
        return;
    }
    let filter: Filter = "filter {\nb0:\nv0 = load.1 [0]\nret v0\n}".parse().unwrap();
    for target in TARGETS {
        let mut options = Options::new(target);
        options.returns = Returns::Codes {
            accept: 2,
            reject: 1,
        };
        let program = load(&filter, &options);
        for (byte, code) in [(0, 1), (1, 2), (255, 2)] {
            let mut bytes = vec![0; 60];
            bytes[0] = byte;
            let frame = Frame {
                bytes,
                wire_len: 60,
            };
            assert_eq!(
                run(&program, target, &frame, None),
                code,
                "{target:?} {byte}"
            );
        }
    }
}

/// A frame whose metadata is too short for the length is rejected.
#[test]
fn without_its_metadata_a_frame_is_rejected() {
    if !permitted() {
        return;
    }
    let filter: Filter = "filter {\nb0:\nv0 = len\nret v0\n}".parse().unwrap();
    let program = load(&filter, &Options::new(META));
    let ran = program.test_run(&TestRun::new(&[0; 60]), &mut []).unwrap();
    assert_eq!(ran.returned, 0);
}
