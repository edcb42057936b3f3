//! A datagram of the kernel's databases of IPsec, by netlink.
#![no_main]

#[path = "../../crates/esp/tests/common/xfrm_tape.rs"]
mod tape;

use libfuzzer_sys::fuzz_target;
use weir_link::net::xfrm_messages;

fuzz_target!(|data: &[u8]| {
    let messages = xfrm_messages(data);
    tape::run(messages.iter().map(|it| (it.kind, &it.content[..])));
});
