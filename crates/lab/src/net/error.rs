//! Why something could not be built.

use std::io;

/// Why an operation of the lab failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Privilege is missing.
    #[error("{what} is not permitted: a lab needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")]
    NotPermitted {
        /// What was asked for.
        what: String,
    },
    /// The kernel was built without it.
    #[error("{what}: this kernel has no {kind} devices; load or build the module that makes them")]
    NoDeviceType {
        /// What was asked for.
        what: String,
        /// The kind of device.
        kind: &'static str,
    },
    /// A device did not come up.
    #[error("`{name}` has no carrier after {millis} ms: is its other end up?")]
    NoCarrier {
        /// The device.
        name: String,
        /// How long was waited.
        millis: u128,
    },
    /// Anything else.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Says what was asked for when the system says no.
pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => Error::NotPermitted { what },
        _ => Error::System { what, source },
    }
}
