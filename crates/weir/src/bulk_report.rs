//! What links send many frames at once, as reports have it.

use serde::Serialize;
use std::fmt;
use weir_tap::{LinkId, NoBulk, Tap};

/// Whether a link does.
#[derive(Serialize, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct BulkReport {
    /// Whether its frames go out so now, where enough of them wait.
    used: bool,
    /// Why not, where it was asked for.
    why_not: Option<String>,
}

impl BulkReport {
    pub(crate) fn of(tap: &Tap, link: LinkId) -> BulkReport {
        let why_not = match tap.link_bulk(link) {
            Ok(()) | Err(NoBulk::NotAsked) => None,
            Err(why) => Some(why.to_string()),
        };
        BulkReport {
            used: tap.link_bulk(link).is_ok(),
            why_not,
        }
    }

    /// Whether it was asked for in vain.
    pub(crate) fn is_refused(&self) -> bool {
        self.why_not.is_some()
    }
}

/// What follows after how its frames come and go; nothing where it was not
/// asked for.
impl fmt::Display for BulkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why_not {
            Some(why) => write!(f, ", not in bulk: {why}"),
            None if self.used => f.write_str(", in bulk"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::BulkReport;

    #[test]
    fn says_whether_and_why_not_only_where_asked() {
        let report = |used, why_not: Option<&str>| BulkReport {
            used,
            why_not: why_not.map(str::to_owned),
        };
        assert_eq!(report(false, None).to_string(), "");
        assert_eq!(report(true, None).to_string(), ", in bulk");
        let refused = report(false, Some("it has 2 queues"));
        assert_eq!(refused.to_string(), ", not in bulk: it has 2 queues");
    }
}
