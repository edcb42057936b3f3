//! What the analysis makes of filters.

mod common;

use weir_demux::{Analysis, Binding, Filter, Plan, Target};
use weir_filter::ir::Program;
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_wire::LinkType;

fn of_text(text: &str) -> Filter {
    let mut program = compile(text, &Context::new(LinkType::EN10MB)).expect(text);
    optimise(&mut program);
    Filter::new(program)
}

fn of_ir(text: &str) -> Filter {
    let program: Program = text.parse().expect("the test's program is well formed");
    program.verify().expect("the test's program is well made");
    Filter::new(program)
}

/// The lines of the analysis, sorted: paths have no order.
fn lines(filter: &Filter) -> Vec<String> {
    let mut lines: Vec<String> = filter.to_string().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn a_transport_port_has_a_path_for_each_side_and_network_protocol() {
    assert_eq!(
        lines(&of_text("tcp port 80")),
        [
            "load.2 [12] == 0x800; load.1 [23] == 6; load.2 [20] & 0x1fff == 0; \
             load.2 [((load.1 [14] & 0xf) << 2) + 14] == 0x50; accept 262144",
            "load.2 [12] == 0x800; load.1 [23] == 6; load.2 [20] & 0x1fff == 0; \
             load.2 [((load.1 [14] & 0xf) << 2) + 16] == 0x50; accept 262144",
            "load.2 [12] == 0x86dd; load.1 [20] == 6; load.2 [54] == 0x50; accept 262144",
            "load.2 [12] == 0x86dd; load.1 [20] == 6; load.2 [56] == 0x50; accept 262144",
        ]
    );
}

#[test]
fn a_connection_is_one_key() {
    let filter = of_text(
        "tcp and src host 10.0.0.1 and dst host 10.0.0.2 and src port 1234 and dst port 80",
    );
    let Analysis::Paths(paths) = filter.analysis() else {
        panic!("{filter}");
    };
    assert_eq!(paths.len(), 1, "{filter}");
    assert_eq!(paths[0].key.len(), 7, "{filter}");
    assert_eq!(paths[0].tests, [], "{filter}");
}

#[test]
fn connections_share_a_shape_and_prefixes_of_a_length_do() {
    let mut plan = Plan::new(1);
    let bind = |plan: &mut Plan, text: &str| {
        let binding = Binding {
            filter: of_text(text),
            priority: 1,
            copy: false,
            target: Target::Kernel,
            tag: 0,
        };
        plan.bind(binding).expect("room");
    };
    for n in 1..20 {
        bind(
            &mut plan,
            &format!("ip and udp and src host 10.0.0.{n} and dst port {n}"),
        );
    }
    assert_eq!(plan.subtables().count(), 1);
    for n in 1..20 {
        bind(
            &mut plan,
            &format!("ip and tcp and src host 10.0.1.{n} and dst port {n}"),
        );
    }
    assert_eq!(
        plan.subtables().count(),
        1,
        "the protocol is a value as any other"
    );
    for n in 1..20 {
        bind(&mut plan, &format!("ip and src net 10.{n}.0.0/16"));
    }
    assert_eq!(plan.subtables().count(), 2);
}

#[test]
fn a_test_that_an_equality_implies_is_dropped() {
    let filter = of_ir(
        "filter {
b0:
  v0 = load.2 [12]
  br eq v0, 0x86dd, b3, b1
b1:
  br eq v0, 0x800, b2, b3
b2:
  ret 64
b3:
  ret 0
}",
    );
    assert_eq!(lines(&filter), ["load.2 [12] == 0x800; accept 64"]);
}

#[test]
fn a_load_that_decides_nothing_must_be_in_the_frame() {
    let filter = of_ir(
        "filter {
b0:
  v0 = load.4 [96]
  v1 = load.2 [12]
  v2 = load.1 [v1 + 3]
  br eq v1, 2, b1, b2
b1:
  ret 64
b2:
  ret 0
}",
    );
    assert_eq!(
        lines(&filter),
        ["load.2 [12] == 2; caplen >= load.2 [12] + 4; caplen >= 100; accept 64"]
    );
}

#[test]
fn either_of_two_is_two_paths_without_the_opposite_of_the_first() {
    let filter = of_ir(
        "filter {
b0:
  v0 = load.1 [0]
  br eq v0, 1, b2, b1
b1:
  v1 = load.1 [1]
  br eq v1, 2, b2, b3
b2:
  v2 = load.1 [2]
  br gt v2, 9, b4, b3
b3:
  ret 0
b4:
  ret 64
}",
    );
    assert_eq!(
        lines(&filter),
        [
            "load.1 [0] == 1; load.1 [2] in 10..=255; accept 64",
            "load.1 [1] == 2; load.1 [2] in 10..=255; accept 64",
        ],
        "the load at 0 lies before the others: they show that it is in the frame"
    );
}

#[test]
fn paths_that_join_with_other_arguments_stay_apart() {
    let filter = of_ir(
        "filter {
b0:
  v0 = load.1 [0]
  br eq v0, 1, b2(7), b1
b1:
  v1 = load.1 [1]
  br eq v1, 2, b2(8), b3
b2(v2):
  ret v2
b3:
  ret 0
}",
    );
    let lines = lines(&filter);
    assert!(
        lines.contains(&"load.1 [0] == 1; accept 7".to_owned()),
        "{lines:?}"
    );
    assert!(
        lines.contains(&"load.1 [1] == 2; load.1 [0] & 0xff != 1; accept 8".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn truth_values_made_of_truth_values() {
    // As the 1987 language makes them: fig. 3-8 of the paper, a range and an
    // equality joined by AND.
    let filter = of_ir(
        "filter {
b0:
  v0 = load.2 [2]
  v1 = test eq v0, 2
  v2 = load.2 [6]
  v3 = and v2, 0xff
  v4 = test gt v3, 0
  v5 = test le v3, 100
  v6 = and v4, v5
  v7 = and v6, v1
  br ne v7, 0, b1, b2
b1:
  ret 64
b2:
  ret 0
}",
    );
    assert_eq!(
        lines(&filter),
        ["load.2 [2] == 2; (load.2 [6] & 0xff) in 0..=100; load.2 [6] & 0xff != 0; accept 64"]
    );
}

#[test]
fn a_filter_with_too_many_paths_runs_whole() {
    let mut text = String::from("filter {\n");
    // Twelve independent two-way choices that both accept and differ in the
    // verdict: 4,096 paths.
    text.push_str("b0:\n  jmp b1(1)\n");
    let mut value = 0;
    for step in 0..12 {
        let (here, left, right, next) = (3 * step + 1, 3 * step + 2, 3 * step + 3, 3 * step + 4);
        let (sum, load, more) = (value, value + 1, value + 2);
        value += 3;
        text.push_str(&format!(
            "b{here}(v{sum}):\n  v{load} = load.1 [{step}]\n  v{more} = shl v{sum}, 1\n  \
             br eq v{load}, 5, b{left}, b{right}\nb{left}:\n  jmp b{next}(v{more})\n\
             b{right}:\n  jmp b{next}(v{sum})\n"
        ));
    }
    text.push_str(&format!("b37(v{value}):\n  ret v{value}\n}}"));
    let filter = of_ir(&text);
    assert_eq!(*filter.analysis(), Analysis::Opaque);
    let mut plan = Plan::new(1);
    let id = plan
        .bind(Binding {
            filter,
            priority: 1,
            copy: false,
            target: Target::Port(0),
            tag: 0,
        })
        .expect("room");
    assert_eq!(plan.opaque().count(), 1);
    let mut verdict = weir_demux::Verdict::new();
    plan.run(&[5; 12], 12, &mut verdict);
    assert_eq!(verdict.taker().expect("accepted").snap_len, 1 << 12);
    plan.run(&[5; 11], 12, &mut verdict);
    assert!(verdict.taker().is_none(), "the last load is outside");
    plan.unbind(id).expect("bound");
    assert_eq!(plan.opaque().count(), 0);
}

#[test]
fn a_filter_that_rejects_all_has_no_path() {
    let filter = Filter::new(Program::constant(0));
    assert_eq!(*filter.analysis(), Analysis::Paths(Vec::new()));
    let both = common::and(common::Pred::Ether(0x800), common::Pred::Ether(0x806));
    let contradiction = common::filter(&both);
    assert_eq!(*contradiction.analysis(), Analysis::Paths(Vec::new()));
}

/// The same loads over and over, at the end of `choices` two-way choices that
/// give other verdicts: few blocks, but much to look at for each path.
fn long_tail(choices: usize, loads: usize) -> Filter {
    let mut text = String::from("filter {\nb0:\n  jmp b1(1)\n");
    let mut value = 0;
    for step in 0..choices {
        let (here, left, right, next) = (3 * step + 1, 3 * step + 2, 3 * step + 3, 3 * step + 4);
        let (sum, load, more) = (value, value + 1, value + 2);
        value += 3;
        text.push_str(&format!(
            "b{here}(v{sum}):\n  v{load} = load.1 [{step}]\n  v{more} = shl v{sum}, 1\n  \
             br eq v{load}, 5, b{left}, b{right}\nb{left}:\n  jmp b{next}(v{more})\n\
             b{right}:\n  jmp b{next}(v{sum})\n"
        ));
    }
    text.push_str(&format!("b{}(v{value}):\n", 3 * choices + 1));
    for load in 1..=loads {
        text.push_str(&format!("  v{} = load.1 [{}]\n", value + load, load % 40));
    }
    text.push_str(&format!("  ret v{value}\n}}"));
    of_ir(&text)
}

#[test]
fn what_the_search_looks_at_is_bounded() {
    // One path through many instructions is little work; hundreds are not,
    // though they are few enough as paths.
    assert!(matches!(long_tail(0, 8_000).analysis(), Analysis::Paths(paths) if paths.len() == 1));
    assert!(matches!(long_tail(8, 10).analysis(), Analysis::Paths(paths) if paths.len() == 256));
    assert_eq!(*long_tail(8, 8_000).analysis(), Analysis::Opaque);
}
