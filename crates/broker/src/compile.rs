//! From a filter's text to a program that may be bound: the broker compiles
//! every filter itself and trusts nobody's bytecode.

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

/// Upper bounds on a filter that comes from somebody else.
pub mod limits {
    /// Bytes of text.
    pub const TEXT_LEN_MAX: usize = 32 << 10;
    /// Instructions of the program before it is optimised; so compiling is
    /// over in some milliseconds.
    pub const PROGRAM_LEN_MAX: usize = 1 << 14;
    /// Instructions of a program that is looked at before it is optimised:
    /// with more, that would be in vain too often.
    pub const PLAIN_LEN_MAX: usize = 1 << 7;
    /// Loads at computed offsets on one path of a filter that runs whole: each
    /// takes the verifier milliseconds. A `protochain` has 30.
    pub const COMPUTED_LOADS_MAX: u32 = 64;
    /// Steps of the kernel's verifier, as [`verifier_steps`] estimates them,
    /// for all filters of one user that run whole: a tenth of a second or two.
    ///
    /// [`verifier_steps`]: weir_demux::kernel::verifier_steps
    pub const STEPS_MAX: u64 = 1 << 18;
    /// The same, of all users' filters on one interface together.
    pub const USERS_STEPS_MAX: u64 = 2 * STEPS_MAX;
    /// The same, of all users of one grant: three quarters, so that no user has
    /// all of a grant, and no grant all there is.
    pub const GRANT_STEPS_MAX: u64 = USERS_STEPS_MAX / 4 * 3;
    /// The same with the superuser's: who opens a port waits no longer for
    /// these either.
    pub const STEPS_INTERFACE_MAX: u64 = 3 * STEPS_MAX;
    /// Subtables of all users' filters on one interface together: three quarters
    /// of what it has room for. The rest is the superuser's and the host's.
    pub const USERS_SUBTABLES_MAX: usize = 384;
    /// Subtables of the filters of all users of one grant on one interface.
    pub const GRANT_SUBTABLES_MAX: usize = USERS_SUBTABLES_MAX / 4 * 3;
    /// Subtables of all filters of one user together: an eighth of what an interface
    /// has room for (`weir_demux::kernel::limits::SUBTABLES_MAX`), and some
    /// milliseconds to make one more.
    pub const SUBTABLES_MAX: usize = 64;
    /// Host names with their addresses.
    pub const HOSTS_MAX: usize = 64;
    /// Addresses of one host name.
    pub const ADDRESSES_MAX: usize = 64;
}

/// A filter as its writer states it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The text.
    pub text: String,
    /// Its language.
    #[serde(default, with = "language_name")]
    pub language: Language,
    /// The addresses of the host names in the text. Who writes the filter
    /// looks them up, so that the broker need not wait for a name server; it
    /// is their filter, so they gain nothing by a wrong answer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
}

impl Source {
    /// An expression without host names.
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

/// Why a filter was not compiled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CompileError {
    /// What is wrong.
    pub message: String,
    /// The bytes of the text that are wrong, where that can be said.
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

/// What compiling depends on besides the text.
#[derive(Debug)]
pub struct Compiler<'a> {
    linktype: LinkType,
    netmask: Option<Ipv4Addr>,
    snaplen: u32,
    guard: Option<&'a Program>,
}

impl<'a> Compiler<'a> {
    /// For frames that begin as `linktype` says.
    pub fn for_linktype(linktype: LinkType) -> Compiler<'a> {
        Compiler {
            linktype,
            // As tcpdump without an interface's mask: the limited broadcast
            // address is one under every mask.
            netmask: Some(Ipv4Addr::UNSPECIFIED),
            snaplen: ir::SNAPLEN_ALL,
            guard: None,
        }
    }

    /// With the IPv4 mask of the interface, for `ip broadcast`.
    #[must_use]
    pub fn netmask(mut self, netmask: Ipv4Addr) -> Compiler<'a> {
        self.netmask = Some(netmask);
        self
    }

    /// With a bound on how much of a frame is delivered, in bytes; zero is
    /// taken as 1.
    #[must_use]
    pub fn snaplen(mut self, snaplen: u32) -> Compiler<'a> {
        self.snaplen = snaplen.clamp(1, ir::SNAPLEN_ALL);
        self
    }

    /// With a program that must accept too.
    #[must_use]
    pub fn guarded_by(mut self, guard: Option<&'a Program>) -> Compiler<'a> {
        self.guard = guard;
        self
    }

    /// Compiles, adds the guard, verifies, optimises, and verifies again.
    ///
    /// # Errors
    /// If the text is too long or wrong, or its program too long.
    pub fn compile(&self, source: &Source) -> Result<Program, CompileError> {
        optimised(self.plain(source)?)
    }

    /// Compiles to what may be bound. What comes to keys without being
    /// optimised is not: that is most of what compiling takes, and for such
    /// filters changes nothing.
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

/// The machine's names, read once and for all from files.
fn system_names() -> &'static SystemNames {
    static NAMES: std::sync::OnceLock<SystemNames> = std::sync::OnceLock::new();
    NAMES.get_or_init(SystemNames::new)
}

/// The system's names, but for hosts, which something else finds.
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

/// Looks up the host names of an expression with the system's resolver; may
/// wait for it. The text itself is judged by who compiles it.
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
