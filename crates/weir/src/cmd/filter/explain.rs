//! `weir filter` without options: properties and cost of the compiled filter.

use super::forms;
use crate::filterset::compile::Compiled;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use serde::Serialize;
use std::fmt::Write;
use weir_demux::{Analysis, Filter};
use weir_filter::backend::native::{self, Arch};
use weir_filter::ir::{Cost, Program};

/// Sizes of a program's forms; `None` if there is no such form.
#[derive(Serialize)]
struct Sizes {
    ir: PathSizes,
    ir_plain: PathSizes,
    cbpf_insns: Option<usize>,
    ebpf_insns: Option<usize>,
    native_bytes: Option<usize>,
    /// Number of accept paths, each an entry of a plan's table; `None` for an
    /// opaque filter.
    paths: Option<usize>,
}

#[derive(Serialize)]
struct PathSizes {
    blocks: usize,
    insts: usize,
    loads: usize,
    path_insts_min: usize,
    path_insts_max: usize,
}

impl From<Cost> for PathSizes {
    fn from(cost: Cost) -> PathSizes {
        PathSizes {
            blocks: cost.blocks,
            insts: cost.insts,
            loads: cost.loads,
            path_insts_min: cost.path_min,
            path_insts_max: cost.path_max,
        }
    }
}

fn sizes(compiled: &Compiled, filter: &Filter) -> Sizes {
    let native = |program: &Program| {
        let code = native::assemble(program, Arch::host()?);
        code.ok().map(|code| code.len())
    };
    Sizes {
        ir: compiled.program.cost().into(),
        ir_plain: compiled.plain.cost().into(),
        cbpf_insns: forms::classic_insns(compiled).ok().map(|insns| insns.len()),
        ebpf_insns: forms::xdp(compiled).ok().map(|insns| insns.len()),
        native_bytes: native(&compiled.program),
        paths: match filter.analysis() {
            Analysis::Paths(paths) => Some(paths.len()),
            Analysis::Opaque => None,
        },
    }
}

/// The explanation as JSON.
pub(super) fn json(compiled: &Compiled) -> String {
    let filter = Filter::new(compiled.program.clone());
    serde_json::to_string(&sizes(compiled, &filter)).expect("numbers are JSON")
}

/// The explanation as text.
pub(super) fn text(compiled: &Compiled) -> String {
    let filter = Filter::new(compiled.program.clone());
    let sizes = sizes(compiled, &filter);
    let mut out = compiled.program.to_string();
    let row = |name: &str, sizes: &PathSizes| {
        vec![
            name.to_owned(),
            format::grouped(sizes.blocks as u64),
            format::grouped(sizes.insts as u64),
            format::grouped(sizes.loads as u64),
            format!("{} to {}", sizes.path_insts_min, sizes.path_insts_max),
        ]
    };
    let rows = [
        row("as written", &sizes.ir_plain),
        row("optimised", &sizes.ir),
    ];
    let heading = [
        Left(""),
        Right("blocks"),
        Right("instructions"),
        Right("loads"),
        Right("a frame costs"),
    ];
    let _ = writeln!(out, "\n{}", format::table(&heading, rows));
    let size = |size: Option<usize>, unit: &str| {
        size.map_or("no such form".into(), |size| {
            format::counted(size as u64, unit)
        })
    };
    let _ = writeln!(
        out,
        "\nclassic BPF  {}",
        size(sizes.cbpf_insns, "instruction")
    );
    let _ = writeln!(
        out,
        "eBPF (XDP)   {}",
        size(sizes.ebpf_insns, "instruction")
    );
    let _ = writeln!(out, "native code  {}", size(sizes.native_bytes, "byte"));
    let _ = match sizes.paths {
        Some(paths) => writeln!(
            out,
            "\nin a plan: {}, each one entry of a table",
            format::counted(paths as u64, "accept path")
        ),
        None => writeln!(out, "\nin a plan: too many or too complex paths for tables"),
    };
    const PATHS_SHOWN: usize = 12;
    let lines = filter.to_string();
    for line in lines.lines().take(PATHS_SHOWN) {
        let _ = writeln!(out, "  {line}");
    }
    if lines.lines().count() > PATHS_SHOWN {
        let _ = writeln!(out, "  …");
    }
    out
}
