//! Why there is no gate.

use super::persistence::programs_at;
use super::pin_dir::{self, OwnerProcess, PinDirError};
use super::shared_page::LINKS_MAX;
use crate::bpf::{AttachError, LoadError, MapError, PinError};
use crate::net::{Interface, InterfaceError};
use std::io;

/// Why there is no gate.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// Too many links, or twice the same.
    #[error("a tap has 1 to {LINKS_MAX} different links, not {what}")]
    Links {
        /// What was asked for.
        what: String,
    },
    /// Someone else's program is there.
    #[error(
        "another XDP program is attached to `{interface}`{}",
        remedy(interface, by)
    )]
    Taken {
        /// The interface's name.
        interface: String,
        /// Who has it, where that can be found.
        by: Option<OwnerProcess>,
    },
    /// What was left is of another version.
    #[error(
        "another version of weir has left programs at these links: `weir bridge … --clean` or \
         `weir route … --clean` first"
    )]
    OtherVersion,
    /// Another process has the tap.
    #[error("{} tapped by {}: end it first", are(interfaces), owner_text(by))]
    InUse {
        /// The names of the interfaces.
        interfaces: Vec<String>,
        /// Who it is, where the system tells.
        by: Option<OwnerProcess>,
    },
    /// The interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Its programs were not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The filter of the host's frames does not fit into them.
    #[error("what the host is left of its frames is too much for a filter: {0}")]
    Host(#[from] weir_filter::backend::ebpf::EmitError),
    /// What is shared was not made.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Its programs were not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// It was not pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Anything else.
    #[error("cannot {what} ({source})")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl GateError {
    /// Another has these interfaces.
    pub(super) fn in_use(interfaces: &[&Interface], by: Option<OwnerProcess>) -> GateError {
        let interfaces = interfaces.iter().map(|one| one.name.clone()).collect();
        GateError::InUse { interfaces, by }
    }

    /// Another has one of these interfaces: the one that has its place, or
    /// somebody's program.
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

    /// There is no place for what these interfaces share.
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
            ": end its owner, or `ip link set dev {interface} xdp off`; if a bridge or a router of \
             weir's has left it, `weir bridge … --clean` or `weir route … --clean` with the \
             interfaces that it had"
        ),
    }
}

fn owner_text(holder: &Option<OwnerProcess>) -> String {
    let holder = holder.as_ref().map(OwnerProcess::to_string);
    holder.unwrap_or_else(|| "another process".into())
}
