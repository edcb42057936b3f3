//! The value of an option: on or off.

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum OnOff {
    Off,
    On,
}

impl OnOff {
    /// Whether it is on.
    pub(crate) fn is_on(self) -> bool {
        self == OnOff::On
    }
}
