//! A sleep of some microseconds.

use rustix::thread::{NanosleepRelativeResult, nanosleep};
use rustix::time::Timespec;
use std::time::Duration;

/// How late the kernel may wake us from a nap, in nanoseconds. By default it
/// may be 50 µs, twice the nap itself.
const TIMER_SLACK_NS: u64 = 1_000;

/// Sleeps that long, a signal cuts it short. The thread's timer slack is as
/// before when it is over.
pub(crate) fn sleep_precisely(length: Duration) {
    let slack = rustix::thread::current_timer_slack().ok();
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(TIMER_SLACK_NS));
    let request = Timespec {
        tv_sec: length.as_secs() as i64,
        tv_nsec: length.subsec_nanos().into(),
    };
    let (NanosleepRelativeResult::Ok
    | NanosleepRelativeResult::Interrupted(_)
    | NanosleepRelativeResult::Err(_)) = nanosleep(&request);
    if let Some(slack) = slack {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(slack));
    }
}
