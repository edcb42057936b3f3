//! The programs in the manual are valid.

use weir_filter::lang::cbpf;
use weir_filter::lang::cspf::{Dialect, assemble, verify};

const CBPF: &str = include_str!("../../../docs/reference/cbpf.md");
const CSPF: &str = include_str!("../../../docs/reference/stack-language.md");
const PUP: &str = include_str!("../../../examples/pup.enet");

/// The code blocks of `text` in `language`: the rest of the fence's line, and the code.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<(&'t str, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let (name, rest) = info.split_once(' ').unwrap_or((info, ""));
        let code = lines.by_ref().take_while(|line| *line != "```");
        let code = code.collect::<Vec<_>>().join("\n");
        if name == language {
            blocks.push((rest, code));
        }
    }
    blocks
}

#[test]
fn the_classic_programs_are_one_in_three_forms() {
    let programs: Vec<_> = blocks(CBPF, "cbpf")
        .into_iter()
        .map(|(_, code)| cbpf::parse(&code).unwrap_or_else(|error| panic!("{code}\n{error}")))
        .collect();
    assert_eq!(programs.len(), 3);
    assert!(programs.iter().all(|program| *program == programs[0]));
    cbpf::lift(&programs[0]).unwrap();
}

#[test]
fn the_stack_programs_assemble_and_verify() {
    let programs = blocks(CSPF, "cspf");
    assert_eq!(programs.len(), 7);
    for (dialect, code) in programs {
        let dialect: Dialect = dialect.parse().unwrap();
        let filter = assemble(&code, dialect).unwrap_or_else(|error| panic!("{code}\n{error}"));
        verify(&filter).unwrap_or_else(|error| panic!("{code}\n{error}"));
    }
    let filter = assemble(PUP, Dialect::Paper).unwrap();
    assert_eq!(filter.words.len(), 12);
    verify(&filter).unwrap();
}
