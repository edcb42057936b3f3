//! A file of ports in TOML: read or refused, and each of its filters compiles
//! or is refused.
#![no_main]

#[path = "../../crates/weir/src/bind.rs"]
#[allow(dead_code, reason = "the command line's parts are not used here")]
mod bind;
#[path = "../../crates/weir/src/config.rs"]
#[allow(dead_code, reason = "as above")]
mod config;
#[path = "../../crates/weir/src/failure.rs"]
#[allow(dead_code, reason = "as above")]
mod failure;
#[path = "../../crates/weir/src/limited.rs"]
#[allow(dead_code, reason = "as above")]
mod limited;

use libfuzzer_sys::fuzz_target;
use weir_filter::lang::expr::{Context, compile};
use weir_fuzz::input::FewNames;
use weir_wire::LinkType;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match bind::from_toml(text) {
        Ok(ports) => {
            for port in ports.iter().take(8) {
                let context = Context::new(LinkType::EN10MB).with_names(&FewNames);
                let _ = compile(&port.filter, &context);
            }
        }
        Err(wrong) => assert!(!wrong.why.is_empty()),
    }
});
