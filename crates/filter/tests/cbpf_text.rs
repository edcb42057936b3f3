//! Classic BPF as text and bytes, compared with tcpdump's output.

use proptest::prelude::*;
use weir_filter::lang::cbpf::{
    self, Form, Insn, Order, code, from_bytes, from_bytes_in, parse, read, text, to_bytes, verify,
};
use weir_lab::testenv;

/// Expressions whose programs together contain every instruction that tcpdump emits,
/// with and without its optimiser.
const EXPRESSIONS: [&str; 24] = [
    "",
    "ip",
    "tcp port 80 or 443",
    "tcp[tcpflags] & tcp-syn != 0 and ip[6:2] & 0x1fff = 0",
    "ip6 and (udp portrange 5000-6000 or icmp6)",
    "vlan 5 and mpls and ip",
    "ip[0] + 1 = 3 and ip[1] - ip[2] > 4",
    "ip[0] * 7 = 3 and ip[1] * ip[2] > 4",
    "ip[0] / 3 = 3 and ip[1] / ip[2] > 4",
    "ip[0] % 3 = 3 and ip[1] % ip[2] > 4",
    "ip[0] | 3 = 3 and ip[1] | ip[2] > 4",
    "ip[0] ^ 3 = 3 and ip[1] ^ ip[2] > 4",
    "ip[0] & 3 = 3 and ip[1] & ip[2] > 4",
    "ip[0] << 3 = 3 and ip[1] << ip[2] > 4",
    "ip[0] >> 3 = 3 and ip[1] >> ip[2] > 4",
    "-ip[0] = 3",
    "ip[0] - 0xffffffff > 0xfffffff0",
    "len > 100 and ip[2:2] > ip[4:2] and ip[2:2] >= ip[6:2]",
    "ip[2:4] & ip[6:4] != 0",
    "ip6 protochain 6",
    "net 192.168.0.0/16 and not host 10.0.0.1",
    "ether host 01:02:03:04:05:06 and ether[0] & 1 != 0",
    "geneve 5 and tcp",
    "greater 1000000000",
];

/// The output of tcpdump for an expression; `None` if tcpdump refuses it.
fn tcpdump(form: &str, optimise: bool, expression: &str) -> Option<String> {
    let mut command = testenv::program("tcpdump").expect("the test has asked for it");
    command.args(["-y", "EN10MB", form]);
    if !optimise {
        command.arg("-O");
    }
    let output = command.arg(expression).output().unwrap();
    let printed = String::from_utf8(output.stdout).expect("tcpdump prints ASCII");
    output.status.success().then_some(printed)
}

/// Clears the constant of an instruction that works on registers only.
fn drop_unused(insn: &mut Insn) {
    let by_register = matches!(code::class(insn.code), code::ALU | code::JMP)
        && code::takes_x(insn.code)
        || code::class(insn.code) == code::MISC
        || insn.code == code::ALU | code::NEG
        || insn.code == code::RET | code::A
        || code::mode(insn.code) == code::LEN && code::class(insn.code) <= code::LDX;
    if by_register {
        insn.k = 0;
    }
}

#[test]
fn every_form_reads_and_writes_as_tcpdump_prints_it() {
    if !testenv::programs(&["tcpdump"]) {
        return;
    }
    let mut programs = 0;
    for expression in EXPRESSIONS {
        for optimise in [true, false] {
            let Some(decimal) = tcpdump("-ddd", optimise, expression) else {
                continue;
            };
            let insns = parse(&decimal).expect(expression);
            let mut insns_shown = insns.clone();
            for (flag, form) in [
                ("-d", Form::Listing),
                ("-dd", Form::C),
                ("-ddd", Form::Decimal),
            ] {
                let Some(printed) = tcpdump(flag, optimise, expression) else {
                    panic!("tcpdump printed {expression} with -ddd and not with {flag}");
                };
                let mut found = parse(&printed).expect(expression);
                // The listing omits an unused constant, for which libpcap leaves arbitrary
                // numbers.
                if form == Form::Listing {
                    found.iter_mut().for_each(drop_unused);
                    insns_shown.iter_mut().for_each(drop_unused);
                    assert_eq!(found, insns_shown, "{flag} of {expression}");
                } else {
                    assert_eq!(found, insns, "{flag} of {expression}");
                }
                assert_eq!(text(&insns, form), printed, "{flag} of {expression}");
            }
            programs += 1;
        }
    }
    println!("{programs} programs");
    // Most expressions must have compiled.
    assert!(programs >= 40, "{programs} programs");
}

#[test]
fn a_comma_ends_a_decimal_line() {
    let insns = parse("4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0,\n").unwrap();
    assert_eq!(insns.len(), 4);
    assert_eq!(insns[1], Insn::jump(0x15, 2048, 0, 1));
}

#[test]
fn what_tcpdump_has_no_expression_for_prints_and_reads_back() {
    let listing = "\
(000) ldb      [xor_x]
(001) ldh      [vlan_tpid]
(002) ld       [x + -1]
(003) ldxb     4*([-8]&0xf)
(004) ldx      #pktlen
(005) ldx      #0xffffffff
(006) ja       8
(007) ret      #-1
(008) jset     x                jt 9\tjf 264
(009) add      #-5
(010) ret      \n";
    let insns = parse(listing).unwrap();
    assert_eq!(text(&insns, Form::Listing), listing);
    assert_eq!(insns[0], Insn::stmt(0x30, 0xffff_f028));
    assert_eq!(insns[2], Insn::stmt(0x40, u32::MAX));
    assert_eq!(insns[6], Insn::stmt(0x05, 1));
    assert_eq!(insns[8], Insn::jump(0x4d, 0, 0, 255));
}

/// Invalid texts, and the required parts of their messages.
const REFUSED: [(&str, &[&str]); 26] = [
    ("", &["line 1", "no program"]),
    (" \n\t\n", &["line 1", "no program"]),
    ("\nldh [12]\n", &["line 2", "`ldh [12]`", "-ddd"]),
    (
        "(000) frob #1",
        &["line 1", "`frob`", "expected an instruction"],
    ),
    (
        "(000) ret #1\n(002) ret #0",
        &["line 2", "`002`", "expected 1"],
    ),
    ("(000 ret #1", &["line 1", "`(000 ret #1`"]),
    ("(000) ret 1", &["line 1", "`1`", "`#12`"]),
    (
        "(000) ret #4294967296",
        &["line 1", "`4294967296`", "4294967295"],
    ),
    ("(000) ret #-2147483649", &["line 1", "`2147483649`"]),
    ("(000) ret #+5", &["line 1", "`+5`"]),
    ("(000) neg #5", &["line 1", "`#5`", "no operand"]),
    ("(000) ldh M[3]", &["line 1", "`M[3]`", "position"]),
    ("(000) ldx [3]", &["line 1", "`[3]`", "scratch"]),
    ("(000) ldxb [3]", &["line 1", "`[3]`", "4*("]),
    ("(000) ld [y + 3]", &["line 1", "`y + 3`"]),
    ("(000) ld [x - 3]", &["line 1", "`[x - 3]`"]),
    ("(000) st 3", &["line 1", "`3`", "M[3]"]),
    ("(000) jeq #3", &["line 1", "`jt` and `jf`"]),
    (
        "(000) jeq #3 jt 0 jf 1",
        &["line 1", "from 0 to `0`", "0 to 255"],
    ),
    ("(000) jeq #3 jt 1 jf 257", &["line 1", "to `257`"]),
    ("(000) unimp 0xff", &["line 1", "0xff", "-dd"]),
    (
        "{ 0x6, 0, 0 },",
        &["line 1", "found 3 numbers", "expected 4"],
    ),
    ("{ 0x6, 0, 256, 0 },", &["line 1", "jf", "`256`", "255"]),
    ("{ 0x6, 0, 0, 0 ", &["line 1", "`{ 0x6, 0, 0, 0`"]),
    ("2\n6 0 0 0\n", &["line 2", "says 2", "1 follow"]),
    ("4097\n6 0 0 0\n", &["line 1", "`4097`", "4096"]),
];

#[test]
fn a_wrong_text_is_refused_with_line_and_value() {
    for (text, parts) in REFUSED {
        let message = parse(text).expect_err(text).to_string();
        for part in parts {
            assert!(
                message.contains(part),
                "{text:?}: {message:?} lacks {part:?}"
            );
        }
    }
}

#[test]
fn a_hostile_text_is_refused_briefly() {
    let texts = [
        "(".repeat(10_000_000),
        "{".repeat(10_000_000),
        "9".repeat(10_000_000),
        "1,".repeat(5_000_000),
        "(000) ld [".to_owned() + &"x".repeat(10_000_000),
        "6 0 0 0\n".repeat(1_250_000),
        "{ 6, 0, 0, 0 },\n".repeat(600_000),
        "é".repeat(5_000_000),
    ];
    for text in texts {
        let message = parse(&text).expect_err("refused").to_string();
        assert!(message.len() < 400, "{} bytes of message", message.len());
    }
}

#[test]
fn bytes_tell_their_order() {
    let insns = parse("4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n22 0 0 0\n").unwrap();
    for order in [Order::Little, Order::Big] {
        let bytes = to_bytes(&insns, order);
        assert_eq!(from_bytes(&bytes).as_ref(), Ok(&insns));
        assert_eq!(from_bytes_in(&bytes, order).as_ref(), Ok(&insns));
        assert_eq!(read(&bytes).as_ref(), Ok(&insns));
    }
    assert_eq!(read(b"1\n6 0 0 0\n").unwrap().len(), 1);
    assert_eq!(to_bytes(&insns[1..2], Order::HOST).len(), 8);
    let little = to_bytes(&insns[1..2], Order::Little);
    assert_eq!(little, [0x15, 0, 0, 1, 0, 8, 0, 0]);
}

#[test]
fn wrong_bytes_are_refused() {
    let messages = [
        (from_bytes(&[]), "no bytes"),
        (from_bytes(&[0; 12]), "12 bytes do not make whole"),
        (from_bytes(&[0; 8 * 4097]), "more than 4096"),
        (
            from_bytes(&[0x15, 0, 0, 0, 0, 0, 0, 0]),
            "0x0015 read little",
        ),
    ];
    for (result, part) in messages {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

fn any_insn() -> impl Strategy<Value = Insn> {
    (any::<u16>(), any::<u8>(), any::<u8>(), any::<u32>()).prop_map(|(code, jt, jf, k)| Insn {
        code,
        jt,
        jf,
        k,
    })
}

proptest! {
    #[test]
    fn any_program_reads_back(insns in prop::collection::vec(any_insn(), 1..50)) {
        for form in [Form::C, Form::Decimal] {
            prop_assert_eq!(parse(&text(&insns, form)), Ok(insns.clone()));
        }
        for order in [Order::Little, Order::Big] {
            let bytes = to_bytes(&insns, order);
            prop_assert_eq!(from_bytes_in(&bytes, order), Ok(insns.clone()));
        }
        // The listing omits unused fields, and cannot print unknown codes.
        let listing = text(&insns, Form::Listing);
        if let Ok(read_back) = parse(&listing) {
            prop_assert_eq!(text(&read_back, Form::Listing), listing);
        } else {
            prop_assert!(listing.contains("unimp") || verify(&insns).is_err());
        }
    }

    #[test]
    fn no_text_panics(text in "[(){}0-9a-zM#x, +*&\\[\\]\n-]{0,200}") {
        let _ = parse(&text);
        let _ = read(text.as_bytes());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(insns) = read(&bytes) {
            let _ = verify(&insns);
            let _ = cbpf::lift(&insns);
            let _ = cbpf::run(&insns, &bytes, 7);
        }
    }
}

/// Found by fuzzing: no form accepts a program without instructions.
#[test]
fn a_program_has_instructions() {
    for text in ["", "\n", "0", "0\n", ","] {
        assert!(parse(text).is_err(), "{text:?}");
        assert!(read(text.as_bytes()).is_err(), "{text:?}");
    }
    let error = parse("\n0\n").unwrap_err();
    assert_eq!(error.line, 2);
    assert!(error.message.contains("is 0"), "{error}");
}
