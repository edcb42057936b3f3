//! A tape of frames, calls and time for a whole stack: nothing panics, nothing
//! stays for ever.
#![no_main]

#[path = "../../crates/stack/tests/common/tape.rs"]
mod tape;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tape::run(data));
