//! pcap-filter(7) expressions: what `tcpdump` accepts.

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

/// Upper bounds on one expression. Beyond them it is refused at once.
pub mod limits {
    /// Bytes of text.
    pub const TEXT_MAX: usize = 1 << 20;
}

/// What an expression's meaning depends on besides its text.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// How frames begin.
    pub linktype: LinkType,
    /// The verdict of an accepting program: how many bytes of the frame are
    /// wanted. [`ir::SNAPLEN_ALL`] by default; must not be zero.
    pub snaplen: u32,
    /// The IPv4 mask of the network the frames are from, which `ip broadcast`
    /// needs; `None` (the default) if unknown, as for a capture file.
    pub netmask: Option<Ipv4Addr>,
    /// Who knows names.
    pub names: &'a dyn Names,
}

impl Context<'static> {
    /// The defaults for a link type, knowing no names.
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
    /// The same, but with names from `names`.
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

/// Compiles an expression to a plain, verified, unoptimised program. The empty
/// expression accepts every frame.
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
/// Text that pcap-filter(7) refuses for this link type, or that goes beyond
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
