//! Classic BPF as text or bytes: read, verified, lifted; the instructions' own
//! interpreter agrees with every engine, and what is written reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_filter::lang::cbpf::{self, Form, Order};
use weir_fuzz::{engines_agree, input};

fuzz_target!(|data: &[u8]| {
    let (bytes, wire_len, contents) = input::frame(data);
    let Ok(insns) = cbpf::read(contents) else {
        return;
    };
    for form in [Form::Listing, Form::C, Form::Decimal] {
        let text = cbpf::text(&insns, form);
        match (form, cbpf::parse(&text)) {
            // A listing cannot say everything that unverified words can hold.
            (Form::Listing, _) => {}
            (_, read) => assert_eq!(read.as_ref(), Ok(&insns), "{text}"),
        }
    }
    for order in [Order::Little, Order::Big] {
        let written = cbpf::to_bytes(&insns, order);
        assert_eq!(cbpf::from_bytes_in(&written, order).as_ref(), Ok(&insns));
    }
    let verified = cbpf::verify(&insns);
    let Ok(program) = cbpf::lift(&insns) else {
        return;
    };
    verified.expect("what is lifted is verified");
    let expected = cbpf::run(&insns, bytes, wire_len);
    let found = weir_filter::interp::run(&program, bytes, wire_len);
    assert_eq!(found, expected, "{program}");
    engines_agree(&program, bytes, wire_len);
});
