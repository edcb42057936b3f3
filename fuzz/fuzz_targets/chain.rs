//! A tape of frames, answers, changes and time for a chain of stages.
#![no_main]

#[path = "../../crates/chain/tests/common/tape.rs"]
mod tape;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tape::run(data));
