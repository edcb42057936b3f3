//! Errors of gates.

use super::persistence::programs_at;
use super::pin_dir::{self, OwnerProcess, PinDirError};
use super::shared_page::LINKS_MAX;
use crate::bpf::{AttachError, LoadError, MapError, PinError};
use crate::net::{Interface, InterfaceError};
use crate::xdp::meter::MeterError;
use std::io;

/// Why a gate was not created.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// Too many links, or a link listed twice.
    #[error("a tap has 1 to {LINKS_MAX} different links, not {what}")]
    Links {
        /// The links.
        what: String,
    },
    /// Another process's program is attached.
    #[error(
        "another XDP program is attached to `{interface}`{}",
        remedy(interface, by)
    )]
    Taken {
        /// The interface's name.
        interface: String,
        /// The process that owns it, if it can be found.
        by: Option<OwnerProcess>,
    },
    /// Stale programs are of another version.
    #[error(
        "another version of weir has left programs at these links: `weir bridge … --clean` or \
         `weir route … --clean` first"
    )]
    OtherVersion,
    /// Another process owns the tap.
    #[error("{} tapped by {}: end it first", are(interfaces), owner_text(by))]
    InUse {
        /// The names of the interfaces.
        interfaces: Vec<String>,
        /// That process, if the system shows it.
        by: Option<OwnerProcess>,
    },
    /// An interface that was moved to another network namespace keeps the promiscuous flag that weir has set.
    #[error(
        "an interface of an earlier weir, number {ifindex} in another network namespace, stays promiscuous: \
         {}: `ip link set dev NAME promisc off` there",
        not_found(source)
    )]
    StillPromiscuous {
        /// Its number there.
        ifindex: u32,
        /// Why a namespace could not be entered.
        source: Option<io::Error>,
    },
    /// Another process of the same tap counts frames in the programs.
    #[error(
        "another process that shares this tap meters its links: only that process can change their programs"
    )]
    MeteredByAnother,
    /// Whether a program counts frames is not known.
    #[error(transparent)]
    Meter(#[from] Box<MeterError>),
    /// The interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The programs could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The host filter does not fit into the programs.
    #[error("the filter of the host's frames is too large: {0}")]
    Host(#[from] weir_filter::backend::ebpf::EmitError),
    /// A map could not be created.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The programs could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A pin could not be created.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Any other error.
    #[error("cannot {what} ({source})")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl GateError {
    /// Another process owns these interfaces.
    pub(super) fn in_use(interfaces: &[&Interface], by: Option<OwnerProcess>) -> GateError {
        let interfaces = interfaces.iter().map(|one| one.name.clone()).collect();
        GateError::InUse { interfaces, by }
    }

    /// Another process owns one of these interfaces: the process with its pin
    /// directory, or the one with an attached program.
    pub(super) fn taken(
        interfaces: &[&Interface],
        name: String,
        by: Option<OwnerProcess>,
    ) -> GateError {
        let one = interfaces.iter().filter(|one| one.name == name);
        let one: Vec<&Interface> = one.copied().collect();
        match pin_dir::owner_holding(&programs_at(&one)) {
            Some(holder) => GateError::in_use(&one, Some(holder)),
            None => GateError::Taken {
                interface: name,
                by,
            },
        }
    }

    /// The interfaces' pin directory could not be taken.
    pub(super) fn no_pin_dir(interfaces: &[&Interface], error: PinDirError) -> GateError {
        match error {
            PinDirError::Held(by) => GateError::in_use(interfaces, by),
            PinDirError::Pin(error) => error.into(),
        }
    }
}

fn are(interfaces: &[String]) -> String {
    match interfaces {
        [one] => format!("`{one}` is"),
        all => format!("`{}` are", all.join("`, `")),
    }
}

fn remedy(interface: &str, by: &Option<OwnerProcess>) -> String {
    match by {
        Some(holder) => format!(", by {holder}: end it first"),
        None => format!(
            ": end its owner, or `ip link set dev {interface} xdp off`; if a command of weir's has \
             left it, that command with `--clean`, such as `weir bridge … --clean`, `weir route … \
             --clean` or `weir balance … --clean`"
        ),
    }
}

fn not_found(refused: &Option<io::Error>) -> String {
    let which = refused
        .as_ref()
        .map(|error| format!(", of those that can be entered ({error}),"));
    let which = which.unwrap_or_default();
    format!("no namespace with a process or a name of `ip netns`{which} has it")
}

fn owner_text(holder: &Option<OwnerProcess>) -> String {
    let holder = holder.as_ref().map(OwnerProcess::to_string);
    holder.unwrap_or_else(|| "another process".into())
}

impl From<MeterError> for GateError {
    fn from(error: MeterError) -> GateError {
        GateError::Meter(Box::new(error))
    }
}
