//! The texts of the experiment's filters, compiled.

use super::MeasureError;
use weir_demux::Filter;
use weir_filter::ir::{self, Program};
use weir_filter::lang::{cspf, expr};
use weir_filter::opt;
use weir_wire::LinkType;

/// An expression, optimised.
pub(super) fn expression(text: &str) -> Result<Filter, MeasureError> {
    let context = expr::Context {
        linktype: LinkType::EN10MB,
        snaplen: ir::SNAPLEN_ALL,
        netmask: None,
        names: &expr::NoNames,
    };
    let program = expr::compile(text, &context);
    Ok(optimised(program.map_err(failed)?))
}

/// A filter of the stack language, optimised.
pub(super) fn stack_language(text: &str) -> Result<Filter, MeasureError> {
    let compiled = cspf::compile(text, cspf::Dialect::default(), LinkType::EN10MB);
    let (program, _) = compiled.map_err(failed)?;
    Ok(optimised(program))
}

/// A program as its text says.
pub(super) fn program(text: &str) -> Result<Filter, MeasureError> {
    let program: Program = text.parse().map_err(failed)?;
    Ok(Filter::new(program))
}

fn optimised(mut program: Program) -> Filter {
    opt::optimise(&mut program);
    Filter::new(program)
}

fn failed(error: impl std::fmt::Display) -> MeasureError {
    MeasureError::Filter(error.to_string())
}
