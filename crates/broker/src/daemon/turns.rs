//! The order of the superuser's work and the users' work.
//!
//! The superuser comes first, for up to [`SLICE`] in a turn. One request of the
//! superuser may take the kernel's verifier most of a second. After such a
//! request the users come first in the next turn, for as long as the superuser
//! took. So a user waits for one long request of the superuser, not for all
//! that are queued, and the superuser has at least half of the time.

use std::time::Duration;

/// Time for the work of one side before the other side's is looked at.
pub(super) const SLICE: Duration = Duration::from_millis(10);

/// The kinds of work of a turn, each of which has its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Requests are read and carried out.
    Requests,
    /// Ports with ready rings are bound.
    Bindings,
}

/// The order of one stage of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order {
    /// Whether the users' work comes before the superuser's.
    pub(super) users_first: bool,
    /// Time after which no more work of users begins; one piece is always done.
    pub(super) users_limit: Duration,
}

/// The superuser's time since the last turn's stage, by stage.
#[derive(Default)]
pub(super) struct Turns([Duration; 2]);

impl Turns {
    /// Begins a stage of a turn.
    pub(super) fn begin(&mut self, stage: Stage) -> Order {
        let taken = std::mem::take(&mut self.0[stage as usize]);
        Order {
            users_first: taken > SLICE,
            users_limit: taken.max(SLICE),
        }
    }

    /// Records the superuser's work of either stage.
    pub(super) fn superuser_took(&mut self, time: Duration) {
        for taken in &mut self.0 {
            *taken += time;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_come_first_after_a_long_request_of_the_superuser() {
        let (short, long) = (SLICE / 2, SLICE * 5);
        let mut turns = Turns::default();
        let superuser_first = Order {
            users_first: false,
            users_limit: SLICE,
        };
        assert_eq!(turns.begin(Stage::Requests), superuser_first);
        turns.superuser_took(short);
        assert_eq!(turns.begin(Stage::Bindings), superuser_first);
        turns.superuser_took(long);
        let users_first = |users_limit| Order {
            users_first: true,
            users_limit,
        };
        // Both stages of the turn before count.
        assert_eq!(turns.begin(Stage::Requests), users_first(short + long));
        assert_eq!(turns.begin(Stage::Bindings), users_first(long));
        assert_eq!(turns.begin(Stage::Requests), superuser_first);
    }
}
