//! The 1987 stack language, as text or words, in each dialect: assembled,
//! verified and lowered; its own interpreter agrees with every engine, and a
//! listing assembles to the same words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_filter::lang::cbpf::Order;
use weir_filter::lang::cspf::{self, Dialect, Filter};
use weir_fuzz::{engines_agree, input};
use weir_wire::LinkType;

fuzz_target!(|data: &[u8]| {
    let [which, link, rest @ ..] = data else {
        return;
    };
    let dialect = Dialect::ALL[usize::from(*which) % Dialect::ALL.len()];
    let (linktype, _) = LinkType::NAMED[usize::from(*link) % LinkType::NAMED.len()];
    let (bytes, wire_len, program) = input::frame(rest);
    let filter = if which & 0x80 == 0 {
        let Ok(text) = std::str::from_utf8(program) else {
            return;
        };
        let Ok(filter) = cspf::assemble(text, dialect) else {
            return;
        };
        filter
    } else {
        let Ok(filter) = Filter::from_bytes(program, Order::Big, dialect) else {
            return;
        };
        filter
    };
    check(&filter, linktype, bytes, wire_len);
});

fn check(filter: &Filter, linktype: LinkType, bytes: &[u8], wire_len: u32) {
    let verified = cspf::verify(filter);
    let listing = cspf::disassemble(filter);
    if verified.is_ok() {
        let again = cspf::assemble(&listing, filter.dialect);
        let again = again.unwrap_or_else(|error| panic!("{error}\n{listing}"));
        assert_eq!(again.words, filter.words, "{listing}");
    }
    let Ok(program) = cspf::lower(filter, linktype) else {
        return;
    };
    verified.expect("what is lowered is verified");
    let expected = cspf::run(filter, linktype, bytes, wire_len);
    let found = weir_filter::interp::run(&program, bytes, wire_len) != 0;
    assert_eq!(found, expected, "{listing}\n{program}");
    engines_agree(&program, bytes, wire_len);
}
