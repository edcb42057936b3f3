//! Arithmetic, byte access, and operator precedence.

mod expr_frames;

use expr_frames::{check, ethernet, ip4, ip6, refusal, syn, tcp, udp};
use weir_filter::interp;
use weir_filter::lang::expr::{Context, compile};
use weir_wire::LinkType;

/// Whether a relation of constants holds. One that does not is refused, or compiles to
/// a program that rejects.
fn holds(text: &str) -> bool {
    let context = Context::new(LinkType::EN10MB);
    compile(text, &context).is_ok_and(|program| interp::run(&program, &[], 0) != 0)
}

#[test]
fn operators_bind_as_in_libpcap() {
    let rows = [
        ("1 + 2 * 3 = 7", true),
        ("(1 + 2) * 3 = 9", true),
        ("10 - 3 - 2 = 5", true),
        ("2 + 1 << 3 = 24", true),
        ("1 | 2 & 2 = 3", true),
        ("6 & 3 | 8 = 10", true),
        ("- 1 + 2 = 1", true),
        ("-1 = 0xffffffff", true),
        ("0 - 1 > 5", true),
        // `%` and `^` reduce all that follows them first.
        ("5 % 3 * 2 = 5", true),
        ("5 % 3 * 2 = 4", false),
        ("1 ^ 2 + 4 = 7", true),
        ("2 * 5 % 3 = 4", true),
        ("-1 ^ 1 = 0", true),
        ("7 / 2 = 3", true),
        ("0x10 = 16", true),
        ("010 = 8", true),
        ("1 == 1", true),
        ("1 != 2", true),
        ("2 >= 2", true),
        ("1 <= 0", false),
        ("1 < 2 and 3 > 2", true),
    ];
    for (text, expected) in rows {
        assert_eq!(holds(text), expected, "{text}");
    }
}

#[test]
fn bytes_are_loaded_behind_their_protocol() {
    let web = tcp([10, 0, 0, 1], [10, 0, 0, 2], 40_000, 80);
    let dns = udp([10, 0, 0, 1], [10, 0, 0, 2], 53, 53);
    let mut options = ip4(
        6,
        [10, 0, 0, 1],
        [10, 0, 0, 2],
        &[&[1; 4], &syn(40_000, 80)[..]].concat(),
    );
    options[0] = 0x46;
    let options = ethernet(0x0800, &options);
    let echo = ethernet(0x86dd, &ip6(58, &[128, 0, 0, 0, 0, 1, 0, 1]));
    let frames = [&web[..], &dns, &options, &echo];
    let rows = [
        ("tcp[tcpflags] = tcp-syn", [true, false, true, false]),
        ("tcp[2:2] = 80", [true, false, true, false]),
        ("ip[0] & 0xf != 5", [false, false, true, false]),
        ("ip[2:2] > 42", [false, false, true, false]),
        ("udp[0:2] = udp[2:2]", [false, true, false, false]),
        ("icmp6[icmp6type] = icmp6-echo", [false, false, false, true]),
        ("ip6[40] = 128", [false, false, false, true]),
        ("ether[0:4] = 0x02000000", [true; 4]),
        ("ip[(ip[0] & 0xf) - 5 + 9] = 6", [true, false, false, false]),
        (
            "tcp[(tcp[12] >> 4) * 4 - 7] = 0x02",
            [true, false, true, false],
        ),
        ("len = 54", [true, false, false, false]),
        ("length - 14 = ip[2:2]", [true, true, true, false]),
        // A negative index wraps: the last byte of the EtherType.
        ("ip[-1] = 0", [true, true, true, false]),
        // As in libpcap, the guards of a right operand are lost. The byte is loaded
        // whatever the protocol is; if it is not captured, the frame is rejected.
        ("0 + tcp[3] = 80 or udp", [true, true, true, false]),
        ("byte 23 = 17", [false, true, false, false]),
        ("byte 12 & 0x80", [false, false, false, true]),
    ];
    check(LinkType::EN10MB, &frames, &rows);
}

#[test]
fn what_always_fails_is_refused() {
    let context = Context::new(LinkType::EN10MB);
    for (text, word) in [
        ("1 / 0 = 1", "zero"),
        ("ip[0] % 0 = 1", "zero"),
        ("ip[0] / (1 - 1) = 1", "zero"),
        // As in libpcap, a right operand that starts with a zero counts as zero.
        ("10 / ip[0] = 1", "zero"),
        ("1 << 32 = 1", "31 bits"),
        ("ip[0] >> (16 + 16) = 1", "31 bits"),
        ("ip[0:3] = 1", "1, 2 or 4"),
        ("stp[0] = 1", "`stp`"),
        ("1 = 2", "no packet"),
        ("tcp and udp", "no packet"),
        ("ip and arp", "no packet"),
    ] {
        let refused = refusal(text, &context);
        assert!(refused.contains(word), "{text}: {refused}");
    }
    // Contradictions between several tests are not detected.
    assert!(compile("len < 5 and len > 10", &context).is_ok());
}

#[test]
fn the_order_of_tests_shows_on_short_frames() {
    let arp = ethernet(0x0806, &[0; 28]);
    let short = &arp[..20];
    let rows = [
        // The load at 100 rejects the frame before the tests that follow.
        ("ether[100] = 1 or arp", [false]),
        ("arp or ether[100] = 1", [true]),
        ("not ether[100] = 1", [false]),
        // A test of the same value as the test before it is moved up.
        (
            "ether[12:2] = 5 or ether[100] = 1 or ether[12:2] = 0x806",
            [true],
        ),
        // A test with a constant outcome is not executed.
        ("ether[100] & 0 = 0", [true]),
        ("arp or ether[100] = 1 or not ether[100] = 1", [true]),
    ];
    check(LinkType::EN10MB, &[short], &rows);
}
