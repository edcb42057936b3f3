//! strongSwan's log, and packets of VICI, its control protocol.
#![no_main]

#[path = "../../crates/esp/tests/common/vici_tape.rs"]
mod tape;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tape::run(data));
