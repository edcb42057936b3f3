//! Binds filters, given as text, to ports.

use weir_demux::{Binding, Filter, Target};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_wire::LinkType;

pub(crate) fn filter(text: &str) -> Filter {
    let mut program = compile(text, &Context::new(LinkType::EN10MB)).expect(text);
    optimise(&mut program);
    Filter::new(program)
}

pub(crate) fn binding(filter: Filter, priority: u16, copy: bool, port: u32, tag: u32) -> Binding {
    Binding {
        filter,
        priority,
        copy,
        target: Target::Port(port),
        tag,
    }
}
