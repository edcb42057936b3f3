//! Bytes as a packet of every protocol: every field and option is read, or the
//! view refused.
#![no_main]

#[path = "../../crates/wire/tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| common::read_all(data));
