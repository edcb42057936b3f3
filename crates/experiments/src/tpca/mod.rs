//! PCB look-ups under TPC/A: McKenney and Dove, "Efficient Demultiplexing of
//! Incoming TCP Packets" (Computing Systems, 1992), §2 to §3.
//!
//! Users of a transaction system type, wait for the response, and think. A
//! transaction brings the server two segments: the *entry*, and a response
//! time later the *acknowledgment* of the response. How many PCBs does a
//! table examine for each?
//!
//! - [`analysis`]: the paper's equations.
//! - [`Method::Model`]: a simulation of what the equations assume, to check
//!   them: users who never wait (open arrivals, §3), and hash chains of
//!   exactly equal length.
//! - [`Method::Users`]: users as §2 describes them, with the real tables and
//!   the real hash. It differs from the equations where their assumptions do.
//! - [`stated`]: the values that the paper states.

pub mod analysis;
mod equations;
mod paper_values;
mod simulate;
mod traffic;

pub use equations::{Equation, Unit, equations};
pub use paper_values::{Stated, stated};
pub use simulate::{Measured, Method, simulate};
pub use traffic::Workload;

use std::num::NonZeroU32;

/// Transactions a user enters each second (§3.2: "a").
pub const RATE_PER_S: f64 = 0.1;
/// Mean think time, in seconds (§2).
pub const THINK_MEAN_S: f64 = 10.0;
/// Users a run may have at most.
pub const USERS_MAX: u32 = 4_000_000;
/// Users with whom the lists are still simulated: their cost grows with the
/// square.
pub const USERS_LISTS_MAX: u32 = 20_000;
/// Response times that are allowed, in seconds: §2 has 2 at most for nine
/// transactions in ten.
pub const RESPONSE_S_MAX: f64 = 10.0;

/// A way to find PCBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// A list and a one-entry cache (§3.1).
    Bsd,
    /// Move to front (§3.2).
    Mtf,
    /// Hash chains with a cache each (§3.3).
    Sequent,
    /// Ours.
    Weir,
}

impl Algorithm {
    /// All, in the paper's order.
    pub const ALL: [Algorithm; 4] = [
        Algorithm::Bsd,
        Algorithm::Mtf,
        Algorithm::Sequent,
        Algorithm::Weir,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Bsd => "bsd",
            Algorithm::Mtf => "mtf",
            Algorithm::Sequent => "sequent",
            Algorithm::Weir => "weir",
        }
    }
}

/// The simulated model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// Connections, one a user; 2 to [`USERS_MAX`].
    pub users: u32,
    /// Chains of Sequent's table; at most as many as users.
    pub chains: NonZeroU32,
    /// From an entry to the acknowledgment of its response, in seconds; above
    /// zero, at most [`RESPONSE_S_MAX`].
    pub response_s: f64,
    /// Where all that is random begins.
    pub seed: u64,
}

/// Settings that cannot be simulated.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Debug)]
pub enum SettingsError {
    /// Too few or too many users.
    #[error("{0} users: it takes 2 to {USERS_MAX}")]
    Users(u32),
    /// More chains than users.
    #[error("{0} chains for {1} users: the paper's equations need a user a chain at least")]
    Chains(u32, u32),
    /// A response time out of range.
    #[error("a response time of {0} s: it takes more than 0 and at most {RESPONSE_S_MAX} s")]
    Response(f64),
}

impl Settings {
    /// Whether they can be simulated.
    ///
    /// # Errors
    /// If a value is out of its range.
    pub fn check(&self) -> Result<(), SettingsError> {
        if !(2..=USERS_MAX).contains(&self.users) {
            return Err(SettingsError::Users(self.users));
        }
        if self.chains.get() > self.users {
            return Err(SettingsError::Chains(self.chains.get(), self.users));
        }
        if !(self.response_s > 0.0 && self.response_s <= RESPONSE_S_MAX) {
            return Err(SettingsError::Response(self.response_s));
        }
        Ok(())
    }

    /// Whether an algorithm is simulated with this many users.
    pub fn simulates(&self, algorithm: Algorithm) -> bool {
        let list = match algorithm {
            Algorithm::Bsd | Algorithm::Mtf => self.users,
            Algorithm::Sequent => self.users / self.chains,
            Algorithm::Weir => 0,
        };
        // Each of this many look-ups walks half a list.
        u64::from(list) * u64::from(self.users) <= u64::from(USERS_LISTS_MAX).pow(2)
    }
}

/// PCBs examined by one look-up, on average.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// For the segment that enters a transaction.
    pub entry: f64,
    /// For the acknowledgment of the response.
    pub acknowledgment: f64,
}

impl Cost {
    /// Of both together: they are as many.
    pub fn mean(&self) -> f64 {
        (self.entry + self.acknowledgment) / 2.0
    }
}
