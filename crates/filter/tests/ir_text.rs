//! The text form round-trips; invalid text is refused with its line.

use weir_filter::interp;
use weir_filter::ir::Program;

const TCP_PORT_80: &str = "filter {
b0:
  v0 = load.2 [12]
  br eq v0, 0x800, b1, b2
b1:
  v1 = load.1 [14]
  v2 = and v1, 0xf
  v3 = shl v2, 2
  jmp b3(v3)
b2:
  jmp b3(9)
b3(v4):
  v5 = load.2 [v4 + 16]
  v6 = test eq v5, 0x50
  ret v6
}
";

#[test]
fn printed_text_reads_back_equal() {
    let program: Program = TCP_PORT_80.parse().unwrap();
    assert_eq!(program.to_string(), TCP_PORT_80);
}

#[test]
fn parameters_carry_values_across_edges() {
    let program: Program = TCP_PORT_80.parse().unwrap();
    let mut frame = [0_u8; 64];
    (frame[12], frame[14], frame[37]) = (8, 0x45, 80);
    assert_eq!(interp::run(&program, &frame, 64), 1);
    assert_eq!(interp::run(&program, &frame[..37], 64), 0);
    (frame[12], frame[26]) = (0, 80);
    assert_eq!(interp::run(&program, &frame, 64), 1);
    assert_eq!(interp::run(&program, &frame[..26], 64), 0);
}

#[test]
fn bad_text_is_refused_with_its_line() {
    for (text, line, fault) in [
        ("", 0, "closing"),
        ("filter {\nb0:\n  ret v9\n}", 4, "not defined on every path"),
        ("filter {\nb0:\n  jmp b0\n}", 4, "not a later block"),
        ("filter {\nb1:\n", 2, "expected `b0`"),
        (
            "filter {\nb0:\n  v0 = lod.2 [12]\n",
            3,
            "expected an operation",
        ),
        (
            "filter {\nb0:\n  v0 = len\n  v0 = len\n",
            4,
            "defined twice",
        ),
        (
            "filter {\nb0:\n  jmp b1(1)\nb1:\n  ret 0\n}",
            6,
            "passes 1 arguments",
        ),
        ("filter {\nb0:\n  v4000000 = len\n", 3, "at most"),
    ] {
        let error = text.parse::<Program>().unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.message.contains(fault), "{text}: {error}");
    }
}

#[test]
fn a_use_must_be_dominated_by_its_definition() {
    let error = "filter {
b0:
  v0 = len
  br gt v0, 5, b1, b2
b1:
  v1 = len
  jmp b2
b2:
  ret v1
}"
    .parse::<Program>()
    .unwrap_err();
    assert!(error.message.contains("b2 uses v1"), "{error}");
}

/// Dominance by definition: no path from the entry to `block` avoids `home`.
fn dominates_by_removal(program: &Program, home: usize, block: usize) -> bool {
    let mut reached = vec![false; program.blocks.len()];
    reached[0] = home != 0;
    for index in 0..block {
        for edge in program.blocks[index].term.edges() {
            reached[edge.block.index()] |= reached[index] && edge.block.index() != home;
        }
    }
    home == block || !reached[block]
}

#[test]
fn immediate_dominators_are_the_nearest_by_definition() {
    for seed in 0..300 {
        let program = weir_lab::program::seeded(seed);
        let found = program.immediate_dominators();
        let mut reached = vec![false; program.blocks.len()];
        reached[0] = true;
        for index in 1..program.blocks.len() {
            for before in 0..index {
                let edges = program.blocks[before].term.edges();
                let leads = edges.into_iter().any(|edge| edge.block.index() == index);
                reached[index] |= reached[before] && leads;
            }
            let nearest = (0..index)
                .rev()
                .find(|&home| reached[index] && dominates_by_removal(&program, home, index));
            let want = nearest.unwrap_or(index);
            assert_eq!(
                found[index].index(),
                want,
                "b{index} of seed {seed}\n{program}"
            );
        }
    }
}
