//! Filters of any user: the grant bounds what they accept.

use std::collections::{BTreeMap, BTreeSet};
use weir_broker::compile::{Compiler, Source, limits, with_hosts};
use weir_demux::Filter;
use weir_demux::kernel::{all_computed_loads, computed_loads};
use weir_filter::interp;
use weir_filter::ir::Program;
use weir_filter::lang::Language;
use weir_lab::corpus;
use weir_lab::rng::Rng;
use weir_wire::LinkType;

fn compile(text: &str) -> Program {
    let compiler = Compiler::for_linktype(LinkType::EN10MB);
    compiler.compile(&Source::expr(text)).unwrap()
}

/// A UDP datagram in Ethernet with these ports.
fn udp(src_port: u16, dst_port: u16) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12] = 0x08;
    frame[14] = 0x45;
    frame[23] = 17;
    frame[34..36].copy_from_slice(&src_port.to_be_bytes());
    frame[36..38].copy_from_slice(&dst_port.to_be_bytes());
    frame
}

#[test]
fn a_guard_holds_whatever_is_asked() {
    let guard = compile("udp portrange 5000-5999");
    let compiler = Compiler::for_linktype(LinkType::EN10MB).guarded_by(Some(&guard));
    let cbpf = |text: &str| Source {
        text: text.to_owned(),
        language: Language::Cbpf,
        hosts: BTreeMap::new(),
    };
    let asked = [
        Source::expr(""),
        Source::expr("not udp or udp"),
        Source::expr("port 53 or port 5500"),
        Source::expr("not portrange 5000-5999"),
        cbpf("1\n6 0 0 262144\n"),
        // ret a, with a loaded from the frame.
        cbpf("2\n40 0 0 34\n22 0 0 0\n"),
    ];
    let mut seen = 0;
    for source in &asked {
        let alone = Compiler::for_linktype(LinkType::EN10MB)
            .compile(source)
            .unwrap();
        let bound = compiler.compile(source).unwrap();
        let mut rng = Rng::new(0x6a3d);
        for _ in 0..500 {
            let port = |rng: &mut Rng| [53, 4999, 5000, 5500, 5999, 6000, 0][rng.below(7)];
            let mut frame = udp(port(&mut rng), port(&mut rng));
            frame[23] = [17, 6][rng.below(2)];
            frame.truncate(rng.below(64) + 1);
            let len = frame.len() as u32;
            let expected = match interp::run(&guard, &frame, len) {
                0 => 0,
                _ => interp::run(&alone, &frame, len),
            };
            assert_eq!(
                interp::run(&bound, &frame, len),
                expected,
                "{source:?} {frame:02x?}"
            );
            seen += u32::from(expected > 0);
        }
    }
    assert!(seen > 100, "only {seen} frames were accepted at all");
}

#[test]
fn snap_lengths_are_bounded() {
    let compiler = Compiler::for_linktype(LinkType::EN10MB).snaplen(100);
    for text in ["", "udp"] {
        let program = compiler.compile(&Source::expr(text)).unwrap();
        assert_eq!(interp::run(&program, &udp(1, 2), 64), 100);
    }
    let source = Source {
        text: "2\n40 0 0 34\n22 0 0 0\n".into(),
        language: Language::Cbpf,
        ..Source::default()
    };
    let program = compiler.compile(&source).unwrap();
    for (port, verdict) in [
        (0, 0),
        (1, 1),
        (99, 99),
        (100, 100),
        (101, 100),
        (60_000, 100),
    ] {
        assert_eq!(interp::run(&program, &udp(port, 2), 64), verdict);
    }
}

/// Accept paths and their conditions as text; the order says nothing.
fn paths(filter: &Filter) -> BTreeSet<BTreeSet<String>> {
    let text = filter.to_string();
    let conditions = |line: &str| line.split("; ").map(str::to_owned).collect();
    text.lines().map(conditions).collect()
}

#[test]
fn filters_that_are_keys_come_to_the_same_without_the_optimiser() {
    let guard = compile("udp portrange 5000-5999 or tcp");
    let alone = Compiler::for_linktype(LinkType::EN10MB);
    let guarded = Compiler::for_linktype(LinkType::EN10MB).guarded_by(Some(&guard));
    let (mut compiled, mut keys) = (0, 0);
    for entry in corpus::entries().into_iter().step_by(5) {
        for compiler in [&alone, &guarded] {
            let (source, text) = (Source::expr(&entry.text), &entry.text);
            let Ok(filter) = compiler.filter(&source) else {
                assert!(compiler.compile(&source).is_err(), "{text}");
                continue;
            };
            let optimised = Filter::new(compiler.compile(&source).unwrap());
            compiled += 1;
            if !filter.is_keys() {
                assert_eq!(filter.program(), optimised.program(), "{text}");
            } else if optimised.is_keys() {
                // They share their shapes.
                assert_eq!(paths(&filter), paths(&optimised), "{text}");
                keys += 1;
            }
        }
    }
    assert!(keys * 3 > compiled, "{keys} of {compiled} are keys");
}

#[test]
fn ordinary_filters_load_at_few_computed_offsets() {
    let compiler = Compiler::for_linktype(LinkType::EN10MB);
    let mut most = [0; 2];
    for entry in corpus::entries() {
        if let Ok(filter) = compiler.filter(&Source::expr(&entry.text)) {
            let loads = [computed_loads(&filter), all_computed_loads(&filter)];
            let max = [limits::COMPUTED_LOADS_MAX, limits::ALL_COMPUTED_LOADS_MAX];
            for ((loads, max), most) in loads.into_iter().zip(max).zip(&mut most) {
                assert!(loads <= max, "{loads}: {}", entry.text);
                *most = loads.max(*most);
            }
        }
    }
    assert!(most[0] > 0, "none is counted");
    assert!(most[1] >= most[0], "{most:?}: a path has no more than all");
}

#[test]
fn what_is_too_long_or_wrong_is_refused() {
    let compiler = Compiler::for_linktype(LinkType::EN10MB);
    let long = " ".repeat(limits::TEXT_LEN_MAX + 1);
    assert!(compiler.compile(&Source::expr(&long)).is_err());
    let wide = vec!["ip[ip[ip[ip[0]]]] = ip[ip[ip[ip[1]]]]"; 760].join(" or ");
    assert!(wide.len() <= limits::TEXT_LEN_MAX);
    let error = compiler.compile(&Source::expr(&wide)).unwrap_err();
    assert!(error.message.contains("instructions"), "{error}");
    let error = compiler.compile(&Source::expr("udp prot 5")).unwrap_err();
    assert_eq!(error.span, Some(4..8));
}

#[test]
fn host_names_come_with_the_filter() {
    let compiler = Compiler::for_linktype(LinkType::EN10MB);
    let source = Source::expr("host localhost");
    assert!(
        compiler.compile(&source).is_err(),
        "the broker asks no resolver"
    );
    let source = with_hosts(source, LinkType::EN10MB);
    assert!(!source.hosts["localhost"].is_empty());
    assert!(compiler.compile(&source).is_ok());
}
