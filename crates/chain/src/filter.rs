//! A stage's filter: `match = "…"`, an expression of pcap-filter(7).

use std::net::Ipv4Addr;
use weir_filter::ir::Program;
use weir_filter::lang::expr::{self, Context, Names};
use weir_filter::opt;
use weir_wire::LinkType;

/// Compiles an expression for Ethernet frames.
///
/// # Errors
/// If the language refuses the text.
pub fn program(text: &str, names: &dyn Names) -> Result<Program, expr::Error> {
    // Of the network nothing is known: the limited broadcast address is the
    // broadcast address.
    let context = Context {
        netmask: Some(Ipv4Addr::UNSPECIFIED),
        ..Context::new(LinkType::EN10MB).with_names(names)
    };
    let mut program = expr::compile(text, &context)?;
    opt::optimise(&mut program);
    Ok(program)
}
