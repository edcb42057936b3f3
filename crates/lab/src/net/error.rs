//! Errors of test networks.

use std::io;

/// Why an operation on the test network failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller lacks privilege.
    #[error("{what} is not permitted: a lab needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")]
    NotPermitted {
        /// The operation.
        what: String,
    },
    /// The kernel lacks the kind of device.
    #[error("{what}: this kernel has no {kind} devices; load or build the module that makes them")]
    NoDeviceType {
        /// The operation.
        what: String,
        /// The kind of device.
        kind: &'static str,
    },
    /// A device did not come up.
    #[error("`{name}` has no carrier after {millis} ms: is its other end up?")]
    NoCarrier {
        /// The device.
        name: String,
        /// The time waited, in milliseconds.
        millis: u128,
    },
    /// Any other error.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Adds the operation to a system error.
pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => Error::NotPermitted { what },
        _ => Error::System { what, source },
    }
}
