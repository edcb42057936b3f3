//! Compiles a filter's text to a program that may be bound: the broker compiles
//! every filter itself and accepts no bytecode.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use weir_demux::Filter;
use weir_filter::ir::{self, Program};
use weir_filter::lang::expr::{NameKind, Names, Transport};
use weir_filter::lang::{Language, cbpf, cspf, expr};
use weir_filter::opt;
use weir_link::names::SystemNames;
use weir_wire::LinkType;

/// Upper bounds on a filter from an untrusted user.
pub mod limits {
    /// Length of the text, in bytes.
    pub const TEXT_LEN_MAX: usize = 32 << 10;
    /// Number of instructions of the program before optimisation; it bounds
    /// compiling to some milliseconds.
    pub const PROGRAM_LEN_MAX: usize = 1 << 14;
    /// Number of instructions up to which a program is analysed before
    /// optimisation; in longer programs the analysis would fail too often.
    pub const PLAIN_LEN_MAX: usize = 1 << 7;
    /// Loads at computed offsets on one path of a filter that runs whole: each
    /// takes the verifier milliseconds. A `protochain` has 30.
    pub const COMPUTED_LOADS_MAX: u32 = 64;
    /// Loads at computed offsets on all paths of a filter that runs whole: they
    /// take the verifier some 25 ms at each hook of tc. Two `protochain` have 88.
    pub const ALL_COMPUTED_LOADS_MAX: u32 = 96;
    /// Steps of the kernel's verifier, as [`verifier_cost`] estimates them,
    /// for all filters of one user that run whole: a tenth of a second or two.
    ///
    /// [`verifier_cost`]: weir_demux::kernel::verifier_cost
    pub const STEPS_MAX: u64 = 1 << 18;
    /// The same bound for all users' filters on one interface together.
    pub const USERS_STEPS_MAX: u64 = 2 * STEPS_MAX;
    /// The same bound for all users of one grant: three quarters of all users',
    /// so that no user can use up a grant, and no grant the interface.
    pub const GRANT_STEPS_MAX: u64 = USERS_STEPS_MAX / 4 * 3;
    /// The same bound including the superuser's filters, which also delay the
    /// opening of a port.
    pub const STEPS_INTERFACE_MAX: u64 = 3 * STEPS_MAX;
    /// Number of subtables of all users' filters on one interface: three
    /// quarters of its capacity. The rest is for the superuser and the host.
    pub const USERS_SUBTABLES_MAX: usize = 384;
    /// Number of subtables of the filters of all users of one grant on one
    /// interface.
    pub const GRANT_SUBTABLES_MAX: usize = USERS_SUBTABLES_MAX / 4 * 3;
    /// Number of subtables of all filters of one user: an eighth of an
    /// interface's capacity (`weir_demux::kernel::limits::SUBTABLES_MAX`); one
    /// more takes some milliseconds to make.
    pub const SUBTABLES_MAX: usize = 64;
    /// Number of host names with their addresses.
    pub const HOSTS_MAX: usize = 64;
    /// Number of addresses of one host name.
    pub const ADDRESSES_MAX: usize = 64;
}

/// A filter as its author states it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The text.
    pub text: String,
    /// The language of the text.
    #[serde(default, with = "language_name")]
    pub language: Language,
    /// The addresses of the host names in the text. The author of the filter
    /// resolves them, so that the broker need not wait for a name server; the
    /// author gains nothing by a wrong answer, since the filter is the
    /// author's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
}

impl Source {
    /// A pcap-filter(7) expression without host names.
    pub fn expr(text: &str) -> Source {
        Source {
            text: text.to_owned(),
            ..Source::default()
        }
    }
}

mod language_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use weir_filter::lang::Language;

    pub(super) fn serialize<S: Serializer>(language: &Language, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(language.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Language, D::Error> {
        let name = String::deserialize(d)?;
        name.parse().map_err(D::Error::custom)
    }
}

/// The reason why a filter was not compiled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CompileError {
    /// The message.
    pub message: String,
    /// The byte range of the error in the text; `None` if unknown.
    pub span: Option<Range<usize>>,
}

impl CompileError {
    fn new(message: impl ToString) -> CompileError {
        CompileError {
            message: message.to_string(),
            span: None,
        }
    }
}

/// The parameters of compiling besides the text.
#[derive(Debug)]
pub struct Compiler<'a> {
    linktype: LinkType,
    netmask: Option<Ipv4Addr>,
    snaplen: u32,
    guard: Option<&'a Program>,
}

impl<'a> Compiler<'a> {
    /// Compiles for frames of a link type.
    pub fn for_linktype(linktype: LinkType) -> Compiler<'a> {
        Compiler {
            linktype,
            // As tcpdump without an interface's mask: the limited broadcast
            // address is a broadcast under every mask.
            netmask: Some(Ipv4Addr::UNSPECIFIED),
            snaplen: ir::SNAPLEN_ALL,
            guard: None,
        }
    }

    /// Sets the IPv4 mask of the interface, for `ip broadcast`.
    #[must_use]
    pub fn netmask(mut self, netmask: Ipv4Addr) -> Compiler<'a> {
        self.netmask = Some(netmask);
        self
    }

    /// Sets the largest number of bytes delivered of a frame; zero counts as 1.
    #[must_use]
    pub fn snaplen(mut self, snaplen: u32) -> Compiler<'a> {
        self.snaplen = snaplen.clamp(1, ir::SNAPLEN_ALL);
        self
    }

    /// Adds a guard: a program that must accept the frame, too.
    #[must_use]
    pub fn guarded_by(mut self, guard: Option<&'a Program>) -> Compiler<'a> {
        self.guard = guard;
        self
    }

    /// Compiles, adds the guard, verifies, optimises, and verifies again.
    ///
    /// # Errors
    /// If the text is too long or invalid, or its program too long.
    pub fn compile(&self, source: &Source) -> Result<Program, CompileError> {
        optimised(self.plain(source)?)
    }

    /// Compiles to a bindable filter. A filter whose analysis yields only keys
    /// without optimisation is not optimised: that is most of the cost of
    /// compiling, and would not change the keys.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile).
    pub fn filter(&self, source: &Source) -> Result<Filter, CompileError> {
        let program = self.plain(source)?;
        if program.len() > limits::PLAIN_LEN_MAX {
            return Ok(Filter::new(optimised(program)?));
        }
        let plain = Filter::new(program);
        if plain.is_keys() {
            return Ok(plain);
        }
        Ok(Filter::new(optimised(plain.program().clone())?))
    }

    /// Compiles, adds the guard, and verifies.
    fn plain(&self, source: &Source) -> Result<Program, CompileError> {
        let mut program = self.front_end(source)?;
        if program.len() > limits::PROGRAM_LEN_MAX {
            return Err(CompileError::new(format!(
                "the filter is a program of {} instructions; at most {} are allowed",
                program.len(),
                limits::PROGRAM_LEN_MAX
            )));
        }
        program = program.snapped_to(self.snaplen);
        if let Some(guard) = self.guard {
            program = program.guarded_by(guard);
        }
        program.verify().map_err(CompileError::new)?;
        Ok(program)
    }

    fn front_end(&self, source: &Source) -> Result<Program, CompileError> {
        let text = &source.text;
        if text.len() > limits::TEXT_LEN_MAX {
            return Err(CompileError::new(format!(
                "the filter has {} bytes; at most {} are allowed",
                text.len(),
                limits::TEXT_LEN_MAX
            )));
        }
        match source.language {
            Language::Expr => self.expression(source),
            Language::Cbpf => {
                let insns = cbpf::read(text.as_bytes()).map_err(CompileError::new)?;
                cbpf::lift(&insns).map_err(CompileError::new)
            }
            Language::Cspf => {
                let compiled = cspf::compile(text, cspf::Dialect::default(), self.linktype);
                Ok(compiled.map_err(CompileError::new)?.0)
            }
        }
    }

    fn expression(&self, source: &Source) -> Result<Program, CompileError> {
        let given = |name: &str| source.hosts.get(name).cloned().unwrap_or_default();
        let context = expr::Context {
            linktype: self.linktype,
            snaplen: self.snaplen,
            netmask: self.netmask,
            names: &WithHosts(given),
        };
        expr::compile(&source.text, &context).map_err(|error| CompileError {
            message: error.to_string(),
            span: Some(error.span),
        })
    }
}

fn optimised(mut program: Program) -> Result<Program, CompileError> {
    opt::optimise(&mut program);
    program.verify().map_err(CompileError::new)?;
    Ok(program)
}

/// The machine's names of protocols, services and networks, read once from
/// files.
fn system_names() -> &'static SystemNames {
    static NAMES: std::sync::OnceLock<SystemNames> = std::sync::OnceLock::new();
    NAMES.get_or_init(SystemNames::new)
}

/// The system's names, except for host names, which `H` resolves.
struct WithHosts<H>(H);

impl<H: Fn(&str) -> Vec<IpAddr>> Names for WithHosts<H> {
    fn hosts(&self, name: &str) -> Vec<IpAddr> {
        self.0(name)
    }

    fn network(&self, name: &str) -> Option<u32> {
        system_names().network(name)
    }

    fn service(&self, name: &str, transport: Transport) -> Option<u16> {
        system_names().service(name, transport)
    }

    fn protocol(&self, name: &str) -> Option<u8> {
        system_names().protocol(name)
    }

    fn ether_host(&self, name: &str) -> Option<[u8; 6]> {
        system_names().ether_host(name)
    }

    fn candidates(&self, kind: NameKind) -> Vec<String> {
        system_names().candidates(kind)
    }
}

/// Resolves the host names of an expression with the system's resolver, which
/// may block. Does not report errors in the text; the compiler does.
pub fn with_hosts(mut source: Source, linktype: LinkType) -> Source {
    if source.language == Language::Expr {
        let asked = Mutex::new(BTreeMap::new());
        let names = WithHosts(|name: &str| {
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            let look_up = || system_names().hosts(name);
            asked.entry(name.to_owned()).or_insert_with(look_up).clone()
        });
        let context = expr::Context::new(linktype).with_names(&names);
        let _ = expr::compile(&source.text, &context);
        let found = asked.into_inner().unwrap_or_else(PoisonError::into_inner);
        let known = found.into_iter().filter(|(_, found)| !found.is_empty());
        source.hosts.extend(known);
    }
    source
}
