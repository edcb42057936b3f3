//! A router's configuration: read and made, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_apps::router::engine::Router;
use weir_apps::router::engine::config::{Config, InterfaceInfo};
use weir_wire::ethernet::Address;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(config) = Config::parse(text, &[]) else {
        return;
    };
    let info = InterfaceInfo {
        hardware: Address([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        addresses: Vec::new(),
    };
    let Ok((settings, _)) = config.settings(&vec![info; config.links.len()]) else {
        return;
    };
    if let Err(error) = Router::new(&settings, 1) {
        panic!("what is taken fits: {error}");
    }
});
