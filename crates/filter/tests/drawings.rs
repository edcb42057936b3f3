//! The graph and the cost that `weir filter` prints for a program.

use weir_filter::backend::dot::to_dot;
use weir_filter::ir::{Cost, Program};

const TWO_TESTS: &str = "filter {
b0:
  v0 = load.2 [12]
  br eq v0, 0x800, b1, b2
b1:
  v1 = load.1 [23]
  br eq v1, 6, b3(v0), b2
b2:
  ret 0
b3(v2):
  ret v2
}";

#[test]
fn a_drawing_has_every_block_and_edge() {
    let program: Program = TWO_TESTS.parse().unwrap();
    let dot = to_dot(&program);
    assert_eq!(dot.matches(" -> ").count(), 4, "{dot}");
    assert!(dot.contains("b0 -> b1 [label=\"\"];"), "{dot}");
    assert!(
        dot.contains("b0 -> b2 [label=\"\", style=dashed];"),
        "{dot}"
    );
    assert!(dot.contains("b1 -> b3 [label=\"v2 = v0\"];"), "{dot}");
    assert!(dot.starts_with("digraph") && dot.ends_with("}\n"), "{dot}");
}

#[test]
fn cost_counts_paths() {
    let program: Program = TWO_TESTS.parse().unwrap();
    let expected = Cost {
        blocks: 4,
        insts: 6,
        loads: 2,
        path_min: 3,
        path_max: 5,
    };
    assert_eq!(program.cost(), expected);
    assert_eq!(Program::constant(0).cost().path_max, 1);
}
