//! A tape of Pups, calls and time for a host.
#![no_main]

#[path = "../../crates/pup/tests/common/tape.rs"]
mod tape;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tape::run(data));
