//! A tape of VMTP packets, calls and time for a client and a server.
#![no_main]

#[path = "../../crates/vmtp/tests/common/tape.rs"]
mod tape;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tape::run(data));
