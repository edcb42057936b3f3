//! Sending in bursts (`--tx-burst`), in reports.

use serde::Serialize;
use std::fmt;
use weir_tap::{LinkId, NoBurst, Tap};

/// The option's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum TxBurstMode {
    /// Where possible; no message where not.
    Auto,
    /// Never.
    Off,
    /// Where possible, with a message where not.
    On,
}

impl TxBurstMode {
    /// Whether bursts are tried.
    pub(crate) fn is_tried(self) -> bool {
        self != TxBurstMode::Off
    }
}

/// A link's use of bursts.
#[derive(Serialize, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct TxBurstReport {
    /// Whether its frames are now sent in bursts, if several are queued.
    used: bool,
    /// Why not, if bursts were tried.
    why_not: Option<String>,
    /// Whether the user requested bursts.
    #[serde(skip)]
    is_requested: bool,
}

impl TxBurstReport {
    pub(crate) fn of(tap: &Tap, link: LinkId, bulk: TxBurstMode) -> TxBurstReport {
        let why_not = match tap.link_tx_burst(link) {
            Ok(()) | Err(NoBurst::NotRequested) => None,
            Err(why) => Some(why.to_string()),
        };
        TxBurstReport {
            used: tap.link_tx_burst(link).is_ok(),
            why_not,
            is_requested: bulk == TxBurstMode::On,
        }
    }

    /// Whether bursts were requested but are not possible.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_requested && self.why_not.is_some()
    }
}

/// A clause for the message on the link's mode; empty if bursts were not
/// requested.
impl fmt::Display for TxBurstReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why_not {
            Some(why) if self.is_requested => write!(f, ", not in bulk: {why}"),
            _ if self.used => f.write_str(", in bulk"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TxBurstReport;

    #[test]
    fn says_whether_and_why_not_only_where_asked() {
        let report = |used, why_not: Option<&str>, is_asked| TxBurstReport {
            used,
            why_not: why_not.map(str::to_owned),
            is_requested: is_asked,
        };
        assert_eq!(report(false, None, false).to_string(), "");
        assert_eq!(report(true, None, false).to_string(), ", in bulk");
        let why = Some("it has 2 queues");
        let refused = report(false, why, true);
        assert_eq!(refused.to_string(), ", not in bulk: it has 2 queues");
        let quiet = report(false, why, false);
        assert_eq!(
            (quiet.to_string(), quiet.is_refused()),
            (String::new(), false)
        );
    }
}
