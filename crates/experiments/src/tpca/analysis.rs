//! Equations 1 to 11 of the paper.
//!
//! With *a* transactions a user and second, *N* users, *H* chains and a
//! response time *R*. The sums over binomials (3, 5, 6) are means of binomial
//! distributions, and their integrals have closed forms.

use super::{Algorithm, Cost, RATE_PER_S, Settings};

/// Equation 1: PCBs that BSD's list examines.
pub fn bsd(users: f64) -> f64 {
    1.0 + (users * users - 1.0) / (2.0 * users)
}

/// §3.1 and equation 9: the probability that no other user of a list sends
/// between an entry and the acknowledgment, so that the cache still holds the
/// PCB; `users` share the list.
pub fn undisturbed(users: f64, response_s: f64) -> f64 {
    (-2.0 * RATE_PER_S * response_s * (users - 1.0)).exp()
}

/// Equation 2: the probability that a user enters a transaction within a
/// time, in seconds.
pub fn entered(time_s: f64) -> f64 {
    1.0 - (-RATE_PER_S * time_s).exp()
}

/// Equation 4: the density of think times, a second.
pub fn density(time_s: f64) -> f64 {
    RATE_PER_S * (-RATE_PER_S * time_s).exp()
}

/// Equation 3, figure 4: how many of the others enter a transaction within a
/// time, in seconds.
pub fn preceding(users: f64, time_s: f64) -> f64 {
    (users - 1.0) * entered(time_s)
}

/// Equation 5: PCBs before one's own, in the list that moves to the front,
/// when one enters a transaction. Integrated term by term:
///
/// ```text
/// ∫₀ᴿ a·e^-aT·(1 - e^-2aT) dT  + ∫ᴿ^∞ a·e^-aT·(1 - e^-a(T+R)) dT  =  2/3 - e^-3aR / 6
/// ```
pub fn mtf_entry(users: f64, response_s: f64) -> f64 {
    let decay = (-3.0 * RATE_PER_S * response_s).exp();
    (users - 1.0) * (2.0 / 3.0 - decay / 6.0)
}

/// §3.2: PCBs before one's own when one acknowledges the response, N(2R).
pub fn mtf_acknowledgment(users: f64, response_s: f64) -> f64 {
    preceding(users, 2.0 * response_s)
}

/// Equation 6: the mean of both.
pub fn mtf(users: f64, response_s: f64) -> f64 {
    (mtf_entry(users, response_s) + mtf_acknowledgment(users, response_s)) / 2.0
}

/// Equations 7 and 8: what hash chains examine, if trains are neglected.
pub fn sequent_entry(users: f64, chains: f64) -> f64 {
    bsd(users / chains)
}

/// Equation 10: what they examine for the acknowledgment.
pub fn sequent_acknowledgment(users: f64, chains: f64, response_s: f64) -> f64 {
    let each = users / chains;
    let undisturbed = undisturbed(each, response_s);
    undisturbed + (1.0 - undisturbed) * (each + 1.0) / 2.0
}

/// The mean of equations 8 and 10, which equation 11 is to be: 53.0 for
/// 2,000 users, 19 chains and 0.2 s.
pub fn sequent(users: f64, chains: f64, response_s: f64) -> f64 {
    (sequent_entry(users, chains) + sequent_acknowledgment(users, chains, response_s)) / 2.0
}

/// Equation 11 as it is printed, with N²/H where (N/H)² must be: 1,000 in
/// place of 53.0.
pub fn sequent_as_printed(users: f64, chains: f64, response_s: f64) -> f64 {
    let each = users / chains;
    let undisturbed = undisturbed(each, response_s);
    let rest = (2.0 * users * users / chains + 3.0 * each - 1.0) / (2.0 * each);
    (undisturbed * (1.0 - each) / 2.0 + rest) / 2.0
}

/// Equation 11 with (N/H)² for N²/H.
pub fn sequent_corrected(users: f64, chains: f64, response_s: f64) -> f64 {
    let each = users / chains;
    let undisturbed = undisturbed(each, response_s);
    let rest = (2.0 * each * each + 3.0 * each - 1.0) / (2.0 * each);
    (undisturbed * (1.0 - each) / 2.0 + rest) / 2.0
}

/// The equations' values of an algorithm. Ours is not in the paper: one PCB is examined, neglecting
/// tags that agree by chance.
pub fn cost(algorithm: Algorithm, settings: &Settings) -> Cost {
    let (users, chains) = (f64::from(settings.users), f64::from(settings.chains.get()));
    let response_s = settings.response_s;
    let (entry, acknowledgment) = match algorithm {
        Algorithm::Bsd => (bsd(users), {
            let undisturbed = undisturbed(users, response_s);
            undisturbed + (1.0 - undisturbed) * bsd(users)
        }),
        Algorithm::Mtf => (
            mtf_entry(users, response_s),
            mtf_acknowledgment(users, response_s),
        ),
        Algorithm::Sequent => (
            sequent_entry(users, chains),
            sequent_acknowledgment(users, chains, response_s),
        ),
        Algorithm::Weir => (1.0, 1.0),
    };
    Cost {
        entry,
        acknowledgment,
    }
}
