//! What links send many frames at once, as reports have it.

use serde::Serialize;
use std::fmt;
use weir_tap::{LinkId, NoBurst, Tap};

/// When frames go out many at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum TxBurstMode {
    /// Where it is possible; nothing is said of where it is not.
    Auto,
    /// Never.
    Off,
    /// Where it is possible; where not, that is said.
    On,
}

impl TxBurstMode {
    /// Whether it is tried.
    pub(crate) fn is_tried(self) -> bool {
        self != TxBurstMode::Off
    }
}

/// Whether a link does.
#[derive(Serialize, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct TxBurstReport {
    /// Whether its frames go out so now, where enough of them wait.
    used: bool,
    /// Why not, where it was tried.
    why_not: Option<String>,
    /// It was asked for.
    #[serde(skip)]
    is_requested: bool,
}

impl TxBurstReport {
    pub(crate) fn of(tap: &Tap, link: LinkId, bulk: TxBurstMode) -> TxBurstReport {
        let why_not = match tap.link_tx_burst(link) {
            Ok(()) | Err(NoBurst::NotAsked) => None,
            Err(why) => Some(why.to_string()),
        };
        TxBurstReport {
            used: tap.link_tx_burst(link).is_ok(),
            why_not,
            is_requested: bulk == TxBurstMode::On,
        }
    }

    /// Whether it was asked for in vain.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_requested && self.why_not.is_some()
    }
}

/// What follows after how its frames come and go; nothing where it was not
/// asked for.
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
