//! A file of ports in TOML: read or refused, and each of its filters compiles
//! or is refused.
#![no_main]

#[path = "../../crates/weir/src/config.rs"]
#[allow(dead_code, reason = "the command line's parts are not used here")]
mod config;
#[path = "../../crates/weir/src/error.rs"]
#[allow(dead_code, reason = "as above")]
mod error;
#[path = "../../crates/weir/src/filterset/port_spec.rs"]
#[allow(dead_code, reason = "as above")]
mod port_spec;
#[path = "../../crates/weir/src/input/read_limited.rs"]
#[allow(dead_code, reason = "as above")]
mod read_limited;

/// The command's own paths of the modules above.
mod input {
    pub(crate) use super::read_limited;
}

use libfuzzer_sys::fuzz_target;
use weir_filter::lang::expr::{Context, compile};
use weir_fuzz::input::FewNames;
use weir_wire::LinkType;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match port_spec::from_toml(text) {
        Ok(ports) => {
            for port in ports.iter().take(8) {
                let context = Context::new(LinkType::EN10MB).with_names(&FewNames);
                let _ = compile(&port.filter, &context);
            }
        }
        Err(wrong) => assert!(!wrong.why.is_empty()),
    }
});
