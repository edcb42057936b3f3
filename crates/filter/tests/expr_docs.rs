//! The examples in the documentation compile.

use weir_filter::lang::expr::{Context, compile};
use weir_wire::LinkType;

#[test]
fn documented_expressions_compile() {
    let text = include_str!("../../../docs/reference/expressions.md");
    let blocks = text.split("```expr\n").skip(1);
    let examples = blocks.filter_map(|block| block.split("```").next());
    let mut compiled = 0;
    for example in examples.flat_map(str::lines) {
        let result = compile(example, &Context::new(LinkType::EN10MB));
        assert!(result.is_ok(), "`{example}`: {}", result.unwrap_err());
        compiled += 1;
    }
    assert!(compiled >= 4);
}
