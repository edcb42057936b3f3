//! Miscellaneous services: time and names; gateway information.

use crate::datagram::{PAYLOAD_LEN_MAX, Port, Pup, kind};
use crate::gateway::Route;

/// Seconds from 1901, where Alto time begins, to 1970.
const ALTO_TO_UNIX: u64 = 2_177_452_800;
/// Longest name, in bytes.
pub const NAME_LEN_MAX: usize = 255;

/// The time of day, as the caller passes it in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// Seconds since 1970, UTC.
    pub unix: u64,
}

impl Clock {
    /// The date and time as the service writes them: `11-SEP-75 15:44:25`, here
    /// in UTC.
    pub fn text(&self) -> String {
        const MONTHS: [&str; 12] = [
            "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
        ];
        let (year, month, day) = civil(self.unix / 86_400);
        let second = self.unix % 86_400;
        format!(
            "{day:02}-{}-{:02} {:02}:{:02}:{:02}",
            MONTHS[month],
            year % 100,
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }

    /// The ten bytes of Alto time: seconds since 1901, in 32 bits; the time zone,
    /// Greenwich; and no summer time.
    pub fn alto(&self) -> [u8; 10] {
        let seconds = ((self.unix + ALTO_TO_UNIX) as u32).to_be_bytes();
        let mut bytes = [0; 10];
        bytes[..4].copy_from_slice(&seconds);
        // Both days of summer time: the end of the year.
        let never = 366_u16.to_be_bytes();
        bytes[6..8].copy_from_slice(&never);
        bytes[8..].copy_from_slice(&never);
        bytes
    }

    /// Reads Alto time; 1970 to 2036.
    pub fn of_alto(bytes: &[u8]) -> Option<Clock> {
        let seconds = u64::from(u32::from_be_bytes(*bytes.first_chunk()?));
        let unix = seconds.checked_sub(ALTO_TO_UNIX)?;
        Some(Clock { unix })
    }
}

/// Year, month from 0 and day from 1 of a day since 1970.
fn civil(days: u64) -> (u64, usize, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    // 400 years have 146,097 days.
    let (mut year, mut left) = (1970 + days / 146_097 * 400, days % 146_097);
    loop {
        let len = if is_leap(year) { 366 } else { 365 };
        if left < len {
            break;
        }
        left -= len;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    (year, month, left + 1)
}

/// The answer of the miscellaneous services; `None` if they have none.
pub(crate) fn answer(pup: &Pup, names: &[(String, Port)], clock: Option<&Clock>) -> Option<Pup> {
    match pup.head.pup_type {
        kind::STRING_TIME_REQUEST => {
            let text = clock?.text();
            Some(pup.reply(kind::STRING_TIME, text.as_bytes()))
        }
        kind::ALTO_TIME_REQUEST => Some(pup.reply(kind::ALTO_TIME, &clock?.alto())),
        kind::NAME_LOOKUP => {
            let asked = String::from_utf8_lossy(&pup.payload).to_lowercase();
            let mut ports = Vec::new();
            for (name, port) in names {
                if *name == asked && ports.len() + 6 <= PAYLOAD_LEN_MAX {
                    ports.extend([port.net, port.host]);
                    ports.extend(port.socket.to_be_bytes());
                }
            }
            Some(if ports.is_empty() {
                pup.reply(kind::LOOKUP_ERROR, b"no such name")
            } else {
                pup.reply(kind::NAME_IS, &ports)
            })
        }
        kind::ADDRESS_LOOKUP => {
            let [net, host] = *pup.payload.first_chunk()?;
            let is_asked = |(_, port): &&(String, Port)| port.net == net && port.host == host;
            Some(match names.iter().find(is_asked) {
                Some((name, _)) => {
                    let name = &name.as_bytes()[..name.len().min(NAME_LEN_MAX)];
                    pup.reply(kind::ADDRESS_IS, name)
                }
                None => pup.reply(kind::LOOKUP_ERROR, b"no such address"),
            })
        }
        _ => None,
    }
}

/// The payload of gateway information: the routes that fit into a Pup.
pub(crate) fn gateway_information(routes: &[Route]) -> Vec<u8> {
    let room = PAYLOAD_LEN_MAX / 4;
    routes.iter().take(room).flat_map(Route::bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix, text) in [
            (0, "01-JAN-70 00:00:00"),
            (180_373_465, "19-SEP-75 15:44:25"),
            (951_782_399, "28-FEB-00 23:59:59"),
            (951_782_400, "29-FEB-00 00:00:00"),
            (4_107_542_399, "28-FEB-00 23:59:59"),
            (4_107_542_400, "01-MAR-00 00:00:00"),
        ] {
            assert_eq!(Clock { unix }.text(), text);
        }
        let clock = Clock {
            unix: 1_700_000_000,
        };
        assert_eq!(Clock::of_alto(&clock.alto()), Some(clock));
    }
}
