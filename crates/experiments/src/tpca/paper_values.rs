//! The values that our copy of the paper states. Its figures 4 and 9 are
//! plots that the copy does not have.

use super::{Algorithm, Settings};

/// A value of the paper's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stated {
    /// The value, as it is printed.
    pub text: &'static str,
    /// Its number.
    pub value: f64,
    /// Where it is.
    pub section: &'static str,
}

pub(super) fn is(settings: &Settings, users: u32, response_s: f64) -> bool {
    settings.users == users && (settings.response_s - response_s).abs() < 1e-9
}

/// PCBs examined on average as the paper has it for these settings; `None`
/// if our copy has no such value. Move-to-front's are PCBs *before* one's
/// own; the others include it.
pub fn stated(algorithm: Algorithm, settings: &Settings) -> Option<Stated> {
    let value = |text, value, section| {
        Some(Stated {
            text,
            value,
            section,
        })
    };
    match algorithm {
        Algorithm::Bsd if settings.users == 2000 => value("1,001", 1001.0, "§3.1"),
        Algorithm::Mtf if is(settings, 2000, 0.2) => value("549", 549.0, "§3.2"),
        Algorithm::Mtf if is(settings, 2000, 0.5) => value("618", 618.0, "§3.2"),
        Algorithm::Mtf if is(settings, 2000, 1.0) => value("724", 724.0, "§3.2"),
        Algorithm::Mtf if is(settings, 2000, 2.0) => value("904", 904.0, "§3.2"),
        Algorithm::Sequent if is(settings, 2000, 0.2) => match settings.chains.get() {
            19 => value("53.0", 53.0, "§3.3"),
            100 => value("less than 9", 9.0, "§3.4"),
            _ => None,
        },
        _ => None,
    }
}
