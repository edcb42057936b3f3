//! A tape of frames, times, routes and links as a router's life.
#![no_main]

#[path = "../../crates/apps/tests/common/tape.rs"]
mod tape;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tape::play(data));
