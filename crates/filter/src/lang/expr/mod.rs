//! pcap-filter(7) expressions, as `tcpdump` accepts them.
//!
//! ```text
//!  text ─► lexer ─► parse ─► ast ─► generate ─► predicate ─► lower ─► ir::Program
//! ```
//!
//! `generate` has the rules of link types and protocols, a file for each family of
//! primitives. [`Names`] resolves hosts, networks, services and protocols.

mod ast;
mod error;
mod generate;
mod lexer;
mod lower;
mod names;
mod parse;
pub(super) mod suggest;
mod token;

pub use error::Error;
pub use names::{NameKind, Names, NoNames, Transport};

use std::net::Ipv4Addr;

use weir_wire::LinkType;

use crate::ir::{self, Program};

/// Upper bounds on one expression; beyond them, compilation fails at once.
pub mod limits {
    /// Maximum number of bytes of text.
    pub const TEXT_MAX: usize = 1 << 20;
}

/// The environment of an expression, on which its meaning depends.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The link type of the frames.
    pub linktype: LinkType,
    /// The verdict of an accepting program, a snap length in bytes. By default
    /// [`ir::SNAPLEN_ALL`]; must not be zero.
    pub snaplen: u32,
    /// The IPv4 netmask of the captured network, which `ip broadcast` needs; `None`
    /// (the default) if unknown, as for a capture file.
    pub netmask: Option<Ipv4Addr>,
    /// The resolver of names.
    pub names: &'a dyn Names,
}

impl Context<'static> {
    /// The defaults for a link type, with a resolver that knows no names.
    pub fn new(linktype: LinkType) -> Context<'static> {
        Context {
            linktype,
            snaplen: ir::SNAPLEN_ALL,
            netmask: None,
            names: &NoNames,
        }
    }
}

impl<'a> Context<'a> {
    /// The same context with another resolver.
    #[must_use]
    pub fn with_names<'b>(self, names: &'b dyn Names) -> Context<'b> {
        Context {
            linktype: self.linktype,
            snaplen: self.snaplen,
            netmask: self.netmask,
            names,
        }
    }
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("linktype", &self.linktype)
            .field("snaplen", &self.snaplen)
            .field("netmask", &self.netmask)
            .finish_non_exhaustive()
    }
}

/// Compiles an expression to a verified, unoptimised program. The empty expression
/// accepts every frame.
///
/// ```
/// use weir_filter::lang::expr::{Context, compile};
/// use weir_wire::LinkType;
///
/// let all = compile("", &Context::new(LinkType::EN10MB)).unwrap();
/// assert_eq!(weir_filter::interp::run(&all, &[], 0), 262_144);
/// ```
///
/// # Errors
/// If pcap-filter(7) refuses the text for this link type, or the text exceeds
/// [`limits`].
pub fn compile(text: &str, context: &Context<'_>) -> Result<Program, Error> {
    if text.len() > limits::TEXT_MAX {
        let message = format!("the expression has {} bytes", text.len());
        let error = Error::new(0..0, message);
        return Err(error.expected(format!("at most {}", limits::TEXT_MAX)));
    }
    let blank = |byte: u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    if text.bytes().all(blank) {
        return Ok(Program::constant(context.snaplen));
    }
    let ast = parse::parse(text)?;
    let (code, root) = generate::generate(text, &ast, context)?;
    lower::lower(&code, root, context.snaplen).ok_or_else(|| {
        let error = Error::new(0..text.len(), "no packet can match this expression");
        error.expected("an expression without a contradiction")
    })
}
