//! An expression, for a link type, and a frame: it compiles or is refused with
//! a place in the text, and every engine agrees on the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_filter::lang::expr::{Context, compile};
use weir_fuzz::{engines_agree, input};
use weir_wire::LinkType;

fuzz_target!(|data: &[u8]| {
    let [which, rest @ ..] = data else { return };
    let (linktype, _) = LinkType::NAMED[usize::from(*which) % LinkType::NAMED.len()];
    let (bytes, wire_len, text) = input::frame(rest);
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    match compile(text, &Context::new(linktype).with_names(&input::FewNames)) {
        Ok(program) => engines_agree(&program, bytes, wire_len),
        Err(error) => {
            // A span that cannot be shown is a fault too.
            assert!(text.get(error.span.clone()).is_some(), "{error:?}");
            assert!(!error.to_string().is_empty());
        }
    }
});
