//! A tape of packets, changes and time for two IPsec gateways.
#![no_main]

#[path = "../../crates/esp/tests/common/tape.rs"]
mod tape;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tape::run(data));
