//! Any verified program and several frames: every engine agrees.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_fuzz::engines_agree;
use weir_lab::program::{Tape, frame, program};

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape::new(data);
    let program = program(&mut tape);
    for _ in 0..3 {
        let frame = frame(&mut tape);
        engines_agree(&program, &frame.bytes, frame.wire_len);
    }
});
