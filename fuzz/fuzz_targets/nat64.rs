//! A tape of frames, answers and time for a translator between IPv6 and IPv4.
#![no_main]

#[path = "../../crates/chain/tests/common/nat64_tape.rs"]
mod tape;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tape::run(data));
