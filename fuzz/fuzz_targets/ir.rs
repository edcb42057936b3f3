//! The text form of programs: what reads and verifies prints, and reads again
//! to the same; every engine agrees on the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_filter::ir::Program;
use weir_fuzz::{engines_agree, input};

fuzz_target!(|data: &[u8]| {
    let (bytes, wire_len, text) = input::frame(data);
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let Ok(program) = text.parse::<Program>() else {
        return;
    };
    if program.verify().is_err() {
        return;
    }
    let printed = program.to_string();
    let again: Program = printed.parse().expect("what is printed reads");
    assert_eq!(again.to_string(), printed);
    engines_agree(&program, bytes, wire_len);
});
