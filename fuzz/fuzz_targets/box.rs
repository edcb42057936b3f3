//! A text as the configuration of a box, of a shaper, and of a gateway.
#![no_main]

#[path = "../../crates/apps/tests/common/configs.rs"]
mod configs;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        configs::run(text);
    }
});
