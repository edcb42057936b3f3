//! The graph of a program in the language of Graphviz: a box for each block, a
//! solid arrow for `then`, a dashed arrow for `otherwise`.

use crate::ir::{Block, Edge, Operand, Program, Term};
use std::fmt::Write;

/// Returns the program as a `digraph`, for `dot -Tsvg`.
pub fn to_dot(program: &Program) -> String {
    let mut out = String::from(
        "digraph filter {\n  node [shape=box, fontname=monospace];\n  edge [fontname=monospace];\n",
    );
    for (index, block) in program.blocks.iter().enumerate() {
        let name = Block(index as u32);
        let mut label = format!("{name}:\\l");
        for &value in &block.insts {
            let _ = write!(label, "{value} = {}\\l", program.op(value));
        }
        match &block.term {
            Term::Branch { cmp, a, b, .. } => {
                let _ = write!(label, "{cmp} {a}, {b}?\\l");
            }
            Term::Return(verdict) => {
                let _ = write!(label, "{}\\l", verdict_text(*verdict));
            }
            Term::Jump(_) => {}
        }
        let style = match &block.term {
            Term::Return(Operand::Imm(0)) => ", style=filled, fillcolor=\"#f4cccc\"",
            Term::Return(_) => ", style=filled, fillcolor=\"#d9ead3\"",
            _ => "",
        };
        let _ = writeln!(out, "  {name} [label=\"{label}\"{style}];");
        for (edge, style) in block.term.edges().zip(["", "style=dashed"]) {
            let _ = writeln!(
                out,
                "  {name} -> {} [label=\"{}\"{}{style}];",
                edge.block,
                arguments(program, edge),
                if style.is_empty() { "" } else { ", " }
            );
        }
    }
    out.push_str("}\n");
    out
}

fn verdict_text(verdict: Operand) -> String {
    match verdict {
        Operand::Imm(0) => "reject".into(),
        Operand::Imm(snaplen) => format!("accept {snaplen}"),
        Operand::Val(value) => format!("ret {value}"),
    }
}

fn arguments(program: &Program, edge: &Edge) -> String {
    let params = &program.block(edge.block).params;
    let pairs = params.iter().zip(&edge.args);
    let texts: Vec<String> = pairs
        .map(|(param, arg)| format!("{param} = {arg}"))
        .collect();
    texts.join(", ")
}
