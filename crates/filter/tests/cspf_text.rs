//! The stack language as text and bytes.

use proptest::prelude::*;
use weir_filter::lang::Language;
use weir_filter::lang::cspf::{
    Dialect, Filter, Order, assemble, compile, disassemble, numbers, verify,
};
use weir_wire::LinkType;

fn words(text: &str, dialect: Dialect) -> Vec<u16> {
    match assemble(text, dialect) {
        Ok(filter) => filter.words,
        Err(error) => panic!("{text:?}: {error}"),
    }
}

#[test]
fn the_ways_to_write_a_program() {
    let expected = [17, 1 << 10 | 1, 2];
    for text in [
        "PUSHWORD+1, PUSHLIT | EQ, 2",
        "PUSHWORD+1, PUSHLIT | EQ, 2,\n",
        "PUSHWORD + 1\n\nPUSHLIT|EQ\n2\n",
        "PUSHWORD+1 // the type\nPUSHLIT | # a literal\nEQ, 0x2",
        "/* a\n * comment */ PUSHWORD+1, /**/ PUSHLIT | EQ, 02",
        "ENF_PUSHWORD + 1, ENF_PUSHLIT + ENF_EQ, 2",
        "1 + NETF_PUSHWORD, NETF_EQ | NETF_PUSHLIT, 2",
        "17, 1025, 2",
        "0x0011,\r\n0x0401,\r\n0x0002,\r\n",
        "u_short f[] = { PUSHWORD+1, PUSHLIT\n| EQ, 2 };",
        "static const unsigned short f[3] = { 17, 1025, 2 }",
    ] {
        assert_eq!(words(text, Dialect::Paper), expected, "{text}");
        assert_eq!(assemble(text, Dialect::Paper).unwrap().priority, None);
    }
    for text in [
        "struct enfilter f = { 10, 3, PUSHWORD+1, PUSHLIT | EQ, 2 };",
        "static struct packetfilt f =\n{\n10,\n3,\n{ PUSHWORD+1,\nPUSHLIT | EQ, 2, } };",
        "{ 10, 3, { 17, 1025, 2 }, }",
    ] {
        let filter = assemble(text, Dialect::Paper).unwrap();
        assert_eq!(filter.words, expected, "{text}");
        assert_eq!(filter.priority, Some(10));
    }
    for text in ["", "\n\n", "/* nothing */", "{ 3, 0 }", "{ 3, 0, }"] {
        assert_eq!(words(text, Dialect::Paper), [0_u16; 0], "{text}");
    }
}

#[test]
fn every_name_has_its_code() {
    use Dialect::*;
    for (text, dialect, word) in [
        ("NOP", Bsd, 0),
        ("NOPUSH", Bsd, 0),
        ("PUSHZERO", Bsd, 2),
        ("PUSHWORD+1007", Bsd, 1023),
        ("NEQ", Bsd, 13 << 10),
        ("PUSHONE", Paper, 3),
        ("PUSHFFFF", Dec, 4),
        ("PUSH00FF", Paper, 5),
        ("PUSHFF00", Paper, 6),
        ("PUSHFF00", Sun, 5),
        ("PUSH00FF", Sun, 6),
        ("POP | CNAND", Sun, 12 << 10 | 10),
        ("PUSHWORD+943", Mach, 959),
        ("PUSHHDR+31", Mach, 991),
        ("PUSHSTK+31 | SUB", Mach, 17 << 10 | 1023),
        ("PUSHIND | RSH", Mach, 15 << 10 | 14),
        ("PUSHHDRIND", Mach, 15),
        ("PUSHIND | MOD", Weir, 20 << 10 | 14),
        ("PUSHLEN", Weir, 15),
    ] {
        assert_eq!(words(text, dialect), [word], "{text}");
    }
}

/// Invalid texts, and the required parts of their messages.
const REFUSED: [(&str, Dialect, &[&str]); 27] = [
    (
        "\nPUSH0OFF | AND",
        Dialect::Paper,
        &["line 2", "`PUSH0OFF`", "did you mean `PUSH00FF`?"],
    ),
    (
        "FROBNICATE",
        Dialect::Paper,
        &["line 1", "`FROBNICATE`", "expected an action"],
    ),
    (
        "PUSHONE",
        Dialect::Bsd,
        &[
            "`PUSHONE`",
            "dialect bsd does not have",
            "paper, dec, sun, weir",
        ],
    ),
    ("PUSHHDR+1", Dialect::Sun, &["`PUSHHDR`", "it is of mach"]),
    ("PUSHZERO | ADD", Dialect::Dec, &["`ADD`", "mach, weir"]),
    (
        "PUSHLIT | PUSHZERO",
        Dialect::Paper,
        &["`PUSHZERO` beside `PUSHLIT`", "one action"],
    ),
    (
        "EQ | AND",
        Dialect::Paper,
        &["`AND` beside `EQ`", "one operator"],
    ),
    (
        "PUSHZERO+1",
        Dialect::Paper,
        &["`PUSHZERO+1`", "nothing is added"],
    ),
    (
        "PUSHWORD+1008",
        Dialect::Paper,
        &["`PUSHWORD+1008`", "ends at +1007"],
    ),
    (
        "PUSHWORD+944",
        Dialect::Mach,
        &["`PUSHWORD+944`", "ends at +943"],
    ),
    (
        "PUSHWORD | 3",
        Dialect::Paper,
        &["number 3 beside `PUSHWORD`", "`+`"],
    ),
    ("65536", Dialect::Paper, &["`65536`", "65535"]),
    (
        "PUSHLIT | EQ, 65536",
        Dialect::Paper,
        &["`65536`", "literal that `PUSHLIT` takes"],
    ),
    (
        "PUSHLIT | EQ,\nPUSHWORD+1",
        Dialect::Paper,
        &["line 2", "`PUSHWORD`", "literal"],
    ),
    (
        "PUSHZERO PUSHZERO",
        Dialect::Paper,
        &["`PUSHZERO`", "expected `,`"],
    ),
    ("PUSHZERO |", Dialect::Paper, &["end of the text"]),
    ("PUSHZERO ^ 3", Dialect::Paper, &["`^`"]),
    ("08", Dialect::Paper, &["`08`", "octal"]),
    ("99999999999", Dialect::Paper, &["`99999999999`"]),
    (
        "PUSHZERO\n/* no end\n\n",
        Dialect::Paper,
        &["line 2", "never ends"],
    ),
    (
        "struct enfilter f = { 10, 2, PUSHZERO };",
        Dialect::Paper,
        &["line 1", "says 2", "1 follow"],
    ),
    (
        "struct enfilter f = {\n256, 1, PUSHZERO };",
        Dialect::Paper,
        &["line 2", "`256`", "priority", "255"],
    ),
    (
        "{ 10,\n41, PUSHZERO }",
        Dialect::Bsd,
        &["line 2", "`41`", "length", "40"],
    ),
    (
        "{ 10, PUSHZERO }",
        Dialect::Paper,
        &["`PUSHZERO`", "length"],
    ),
    (
        "struct filter f = { 1, 0 };",
        Dialect::Paper,
        &["`filter`", "enfilter"],
    ),
    (
        "{ 10, 1, PUSHZERO }; }",
        Dialect::Paper,
        &["`}`", "nothing after"],
    ),
    ("{ 10, 1, PUSHZERO", Dialect::Paper, &["end of the text"]),
];

#[test]
fn a_wrong_text_is_refused_with_line_and_value() {
    for (text, dialect, parts) in REFUSED {
        let message = assemble(text, dialect).expect_err(text).to_string();
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
        "/* ".repeat(3_300_000),
        "{".repeat(10_000_000),
        "PUSHZERO,".repeat(1_000_000),
        "PUSHZERO|".repeat(1_000_000),
        "1+".repeat(1_000_000),
        "A".repeat(10_000_000),
        "9".repeat(10_000_000),
        "struct ".repeat(1_000_000),
        "é".repeat(5_000_000),
        "{ 1, 0 }".to_owned() + &"\n".repeat(1_000_000) + "!",
    ];
    for text in texts {
        let started = std::time::Instant::now();
        let message = assemble(&text, Dialect::Weir).expect_err("refused");
        println!("{:?} {message}", started.elapsed());
        let len = message.to_string().len();
        assert!(len < 400, "{len} bytes of message");
    }
    // A long but valid text.
    let comments = "/* /* */ // */\n".repeat(600_000) + "PUSHZERO";
    assert_eq!(words(&comments, Dialect::Paper), [2]);
}

#[test]
fn the_disassembler_writes_as_the_figures_do() {
    let filter = Filter {
        dialect: Dialect::Paper,
        priority: Some(10),
        words: vec![17, 1 << 10 | 1, 2, 19, 6 << 10 | 5, 0, 8, 63 << 10],
    };
    let text = "\
struct enfilter f = {
    10, 8, /* priority and length */
    PUSHWORD+1,
    PUSHLIT | EQ, 2,
    PUSHWORD+3,
    PUSH00FF | AND,
    NOP,
    0x0008,
    0xfc00,
};
";
    assert_eq!(disassemble(&filter), text);
    assert_eq!(assemble(text, Dialect::Paper), Ok(filter));
    assert_eq!(numbers(&[1, 0xffff]), "0x0001,\n0xffff,\n");
}

#[test]
fn bytes_have_a_stated_order() {
    let filter = Filter::new(Dialect::Sun, vec![0x0011, 0x0401, 2]);
    let big = [0, 0x11, 4, 1, 0, 2];
    assert_eq!(filter.to_bytes(Order::Big), big);
    for order in [Order::Little, Order::Big] {
        let bytes = filter.to_bytes(order);
        let read = Filter::from_bytes(&bytes, order, Dialect::Sun);
        assert_eq!(read.as_ref(), Ok(&filter));
    }
    let odd = Filter::from_bytes(&big[..5], Order::Big, Dialect::Sun);
    assert!(odd.unwrap_err().to_string().starts_with("5 bytes"));
}

#[test]
fn names_of_languages_and_dialects() {
    for language in Language::ALL {
        assert_eq!(language.to_string().parse(), Ok(language));
    }
    assert_eq!("CBPF".parse(), Ok(Language::Cbpf));
    let error = "awk".parse::<Language>().unwrap_err().to_string();
    assert!(error.contains("`awk`") && error.contains("cspf"), "{error}");
    for dialect in Dialect::ALL {
        assert_eq!(dialect.to_string().parse(), Ok(dialect));
    }
    assert_eq!(Dialect::default(), Dialect::Paper);
    let error = "vax".parse::<Dialect>().unwrap_err().to_string();
    assert!(error.contains("`vax`") && error.contains("weir"), "{error}");
}

#[test]
fn compile_gives_program_and_priority() {
    let text = "{ 7, 3, PUSHWORD+1, PUSHLIT | EQ, 2 }";
    let (program, priority) = compile(text, Dialect::Paper, LinkType::EN3MB).unwrap();
    program.verify().unwrap();
    assert_eq!(priority, Some(7));
    let underflow = compile("EQ", Dialect::Paper, LinkType::EN3MB).unwrap_err();
    assert!(underflow.to_string().contains("word 0 (EQ)"), "{underflow}");
}

fn any_dialect() -> impl Strategy<Value = Dialect> {
    prop::sample::select(Dialect::ALL.to_vec())
}

proptest! {
    #[test]
    fn any_words_read_back(
        dialect in any_dialect(),
        priority in any::<Option<u8>>(),
        words in prop::collection::vec(any::<u16>(), 0..40),
    ) {
        let filter = Filter { dialect, priority, words };
        prop_assert_eq!(assemble(&disassemble(&filter), dialect), Ok(filter.clone()));
        let list = assemble(&numbers(&filter.words), dialect).map(|read| read.words);
        prop_assert_eq!(list, Ok(filter.words.clone()));
        for order in [Order::Little, Order::Big] {
            let read = Filter::from_bytes(&filter.to_bytes(order), order, dialect);
            prop_assert_eq!(read.map(|read| read.words), Ok(filter.words.clone()));
        }
        let _ = verify(&filter);
    }

    #[test]
    fn no_text_panics(
        dialect in any_dialect(),
        text in "(PUSHWORD|PUSHLIT|EQ|[0-9]|[a-z]|[{}\\[\\],+|;=\n/*# ]|.){0,60}",
    ) {
        if let Ok(filter) = assemble(&text, dialect) {
            let _ = verify(&filter);
        }
    }
}
