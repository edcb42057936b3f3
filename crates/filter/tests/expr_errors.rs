//! Error messages: location, expectation and suggestion.

mod expr_frames;

use std::thread;

use expr_frames::{program, refusal, tcp};
use weir_filter::interp;
use weir_filter::lang::expr::{Context, compile, limits};
use weir_wire::LinkType;

fn ethernet() -> Context<'static> {
    Context::new(LinkType::EN10MB)
}

/// Text, offending word, part of the message or expectation, suggestion.
const ROWS: [(&str, &str, &str, Option<&str>); 38] = [
    ("tpc port 80", "tpc", "no test on its own", Some("tcp")),
    ("tcp prot 80", "prot", "does not fit", Some("port")),
    ("tcp port 80 andd udp", "andd", "`and`", Some("and")),
    ("ip proto tcp", "tcp", "behind `\\`", Some("\\tcp")),
    ("\\tcp", "\\tcp", "no test on its own", Some("tcp")),
    ("host", "", "ends too early", None),
    ("port 80 or", "", "ends too early", None),
    ("tcp and (udp", "(", "never closed", None),
    ("udp)", ")", "does not fit", None),
    ("()", ")", "does not fit", None),
    ("ip[0", "", "`]`", None),
    ("ip[0]", "", "comparison", None),
    ("ip[0] + = 5", "=", "a number", None),
    ("tcp = 5", "=", "does not fit", None),
    ("len > 5 > 6", ">", "does not fit", None),
    ("tcp port 70000", "70000", "at most 65535", None),
    ("port 10.0.0.1", "10.0.0.1", "`port`", None),
    ("10.0.0.1", "10.0.0.1", "qualifier before it", None),
    ("tcp and 80", "80", "qualifier before it", None),
    ("port (80 or tcp)", "tcp", "identifier", None),
    (
        "port ((80 or 81) or 82)",
        "((80 or 81)",
        "another list",
        None,
    ),
    ("src and host 1.2.3.4", "host", "`dst`", None),
    ("vlan 5000", "vlan 5000", "at most 4095", None),
    ("type mgt", "type", "802.11", None),
    ("ifname eth0", "ifname", "PF", None),
    ("lane", "lane", "ATM", None),
    ("tcp $ udp", "$", "means nothing", None),
    ("tcp é", "é", "means nothing", None),
    ("host \\", "\\", "escapes nothing", None),
    ("1:2:3", "1:2:", "no MAC address", None),
    ("ether host 1.2.3.4", "1.2.3.4", "MAC", None),
    ("port 08", "08", "octal", None),
    ("len > 4294967296", "4294967296", "32 bits", None),
    ("llc foo", "foo", "LLC", None),
    (
        "tcp port 80-90",
        "80-90",
        "unknown port",
        Some("portrange 80-90"),
    ),
    ("tcp[tcpflag] = 2", "tcpflag", "a number", Some("tcpflags")),
    (
        "icmp[0] = icmp-ech",
        "icmp-ech",
        "a number",
        Some("icmp-echo"),
    ),
    ("http", "http", "`port` before a name", None),
];

#[test]
fn errors_point_at_the_word() {
    for (text, word, part, suggestion) in ROWS {
        let error = compile(text, &ethernet()).unwrap_err();
        assert_eq!(&text[error.span.clone()], word, "`{text}`: {error}");
        assert!(error.to_string().contains(part), "`{text}`: {error}");
        if let Some(suggestion) = suggestion {
            assert_eq!(error.suggestion.as_deref(), Some(suggestion), "`{text}`");
        }
        if word.is_empty() {
            assert_eq!(error.span.start, text.len(), "`{text}`");
        }
    }
}

#[test]
fn the_line_of_an_error_holds_all_of_it() {
    assert_eq!(
        refusal("tcp prot 80", &ethernet()),
        "`prot` does not fit here; expected `and`, `or` or the end, or a qualifier such as \
         `host` or `port`; did you mean `port`? (at byte 4)"
    );
}

#[test]
fn a_link_type_that_cannot_tell_says_what_it_can() {
    for (linktype, part) in [
        (LinkType::EN3MB, "ether[3] = 2"),
        (LinkType(147), "len > 100"),
    ] {
        let context = Context::new(linktype);
        assert!(refusal("tcp port 80", &context).contains(part));
        compile(part, &context).unwrap();
    }
}

#[test]
fn any_text_is_compiled_or_refused() {
    // Every prefix and suffix of some texts, and each text without one character.
    for (text, ..) in ROWS {
        for index in (0..=text.len()).filter(|index| text.is_char_boundary(*index)) {
            let (before, after) = text.split_at(index);
            let mut rest = after.chars();
            rest.next();
            for text in [before, after, &format!("{before}{}", rest.as_str())] {
                if let Ok(program) = compile(text, &ethernet()) {
                    program.verify().unwrap();
                }
            }
        }
    }
}

/// Runs on a small stack: nesting must use the heap.
fn on_small_stack(run: impl FnOnce() + Send + 'static) {
    let small = thread::Builder::new().stack_size(256 << 10);
    small.spawn(run).unwrap().join().unwrap();
}

#[test]
fn nesting_is_bounded_by_the_text_only() {
    on_small_stack(|| {
        let deep = 10_000;
        let frame = tcp([10, 0, 0, 1], [10, 0, 0, 2], 40_000, 80);
        let accepts = |text: &str| {
            let program = program(text, &ethernet());
            interp::run(&program, &frame, frame.len() as u32) != 0
        };
        let parens = format!("{}tcp{}", "(".repeat(deep), ")".repeat(deep));
        assert!(accepts(&parens));
        assert!(accepts(&format!("{}tcp", "not ".repeat(deep))));
        assert!(accepts(&format!("{}1 = 0xffffffff", "-".repeat(deep + 1))));
        assert!(accepts(&format!(
            "port {}80{}",
            "(".repeat(deep),
            ")".repeat(deep)
        )));
        assert!(accepts(&format!(
            "tcp{}",
            " and (ip".repeat(deep) + &")".repeat(deep)
        )));
        let indices = format!("ip[{}0{}] = 0x45", "ip[".repeat(deep), "]".repeat(deep));
        compile(&indices, &ethernet()).unwrap();
        for text in ["(", "not ", "ip[", "port (", "-", "1 + ", "((1 + "] {
            compile(&text.repeat(deep), &ethernet()).unwrap_err();
        }
    });
}

#[test]
fn errors_about_long_words_are_short() {
    const COUNT: usize = 100_000;
    let words = [
        "7", "08", "0x1", "a", "1:", "1:2:", "::1", "1.", "a-", "a.b", "1/", "é",
    ];
    for word in words.map(|word| word.repeat(COUNT)) {
        for text in [
            word.clone(),
            format!("host {word}"),
            format!("port {word}"),
            format!("net {word}"),
            format!("ether host {word}"),
            format!("proto \\{word}"),
            format!("ip[{word}] = 1"),
            format!("tcp {word}"),
        ] {
            let message = refusal(&text, &ethernet()).to_string();
            let start: String = text.chars().take(20).collect();
            assert!(message.len() < 600, "{start}…: {} bytes", message.len());
        }
    }
}

#[test]
fn long_texts_are_refused_at_once() {
    for text in ["x".repeat(10 << 20), " ".repeat(limits::TEXT_MAX + 1)] {
        let refused = refusal(&text, &ethernet());
        assert!(refused.contains("at most 1048576"), "{refused}");
        assert!(refused.len() < 200);
    }
    let long_word = format!("host {}", "x".repeat(100_000));
    assert!(refusal(&long_word, &ethernet()).len() < 400);
    let many = vec!["port 80"; 40_000].join(" or ");
    let refused = refusal(&many, &ethernet());
    assert!(refused.contains("tests"), "{refused}");
}

#[test]
fn thousands_of_hosts_compile() {
    let hosts = |count: u32| {
        let host = |n: u32| format!("host 10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255);
        (0..count).map(host).collect::<Vec<_>>().join(" or ")
    };
    for count in [10, 100, 1_000, 20_000] {
        let program = compile(&hosts(count), &ethernet()).unwrap();
        let last = [10, 0, ((count - 1) >> 8) as u8, ((count - 1) & 255) as u8];
        for (address, expected) in [(last, true), ([11, 0, 0, 1], false)] {
            let frame = tcp(address, [9, 9, 9, 9], 1, 2);
            let accepted = interp::run(&program, &frame, 60) != 0;
            assert_eq!(accepted, expected, "{count} hosts");
        }
    }
}
