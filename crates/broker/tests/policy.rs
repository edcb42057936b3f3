//! The policy: the content of its file, and what users get by it.

use std::net::IpAddr;
use std::path::Path;
use weir_broker::Bytes;
use weir_broker::policy::{
    AccessRequest, Accounts, Denied, Grant, Machine, PeerCred, Policy, PolicyError, Usage, Warning,
};

const PASSWD: &str =
    "root:x:0:0::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\namy:x:1002:1002::/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnetdev:x:110:amy\n";

fn parse(text: &str) -> Result<Policy, PolicyError> {
    Policy::parse(text, &Accounts::parse(PASSWD, GROUP))
}

fn who(uid: u32, gids: &[u32]) -> PeerCred {
    PeerCred {
        uid,
        gids: gids.into(),
        pid: 1,
        is_superuser: false,
    }
}

const POLICY: &str = r#"
[[grant]]
users = ["bob"]
interfaces = ["eth0"]
priority_max = 10
ports_max = 2
memory_max = "2 MiB"
take = true
filter = "udp portrange 5000-5999"

[[grant]]
groups = ["netdev"]
interfaces = ["eth*", "lo"]
memory_max = 65536
send = "udp"

[[grant]]
users = ["*", 7]
interfaces = ["lo"]
"#;

#[test]
fn the_first_grant_that_fits_applies() {
    let policy = parse(POLICY).unwrap();
    let place = |who: &PeerCred, interface| policy.grant(who, interface).map(|(place, _)| place);
    let (bob, amy, eve) = (who(1001, &[1001]), who(1002, &[1002, 110]), who(4, &[4]));
    assert_eq!(place(&bob, "eth0"), Some(0));
    assert_eq!(place(&bob, "eth1"), None);
    assert_eq!(place(&bob, "lo"), Some(2));
    assert_eq!(place(&amy, "eth0"), Some(1));
    assert_eq!(place(&amy, "lo"), Some(1));
    assert_eq!(place(&eve, "eth0"), None);
    assert_eq!(place(&eve, "lo"), Some(2));
}

#[test]
fn no_user_gets_more_than_granted() {
    let policy = parse(POLICY).unwrap();
    let (_, grant) = policy.grant(&who(1001, &[]), "eth0").unwrap();
    let wish = AccessRequest {
        interface: "eth0",
        priority: 10,
        take: true,
        send: false,
        xdp: true,
        memory: Bytes(1 << 20),
    };
    let mut usage = Usage::default();
    assert_eq!(grant.allows(&wish, usage), Ok(()));
    let refused = |change: fn(&mut AccessRequest<'_>), usage| {
        let mut wish = wish.clone();
        change(&mut wish);
        grant.allows(&wish, usage).unwrap_err()
    };
    let above = refused(|wish| wish.priority = 11, usage);
    assert_eq!(above, Denied::Priority { asked: 11, max: 10 });
    assert_eq!(refused(|wish| wish.send = true, usage), Denied::Send);
    let large = refused(|wish| wish.memory = Bytes((2 << 20) + 1), usage);
    assert!(matches!(large, Denied::Memory { .. }));
    usage.memory = Bytes(u64::MAX);
    assert!(matches!(refused(|_| {}, usage), Denied::Memory { .. }));
    usage.ports = 2;
    assert_eq!(refused(|_| {}, usage), Denied::Ports { max: 2 });
    // All users together.
    let usage = Usage {
        ports_total: 256,
        ..Usage::default()
    };
    assert_eq!(refused(|_| {}, usage), Denied::PortsTotal { max: 256 });
    let usage = Usage {
        memory_total: Bytes(256 << 20),
        ..Usage::default()
    };
    assert!(matches!(refused(|_| {}, usage), Denied::MemoryTotal { .. }));

    let (_, grant) = policy.grant(&who(1002, &[110]), "eth1").unwrap();
    assert_eq!(
        grant.allows(&wish, Usage::default()).unwrap_err(),
        Denied::Priority { asked: 10, max: 0 }
    );
    let wish = AccessRequest {
        priority: 0,
        ..wish
    };
    assert_eq!(grant.allows(&wish, Usage::default()), Err(Denied::Take));
    let copy = AccessRequest {
        take: false,
        ..wish
    };
    assert_eq!(grant.allows(&copy, Usage::default()), Err(Denied::Xdp));
    let at_tc = AccessRequest {
        memory: Bytes(1 << 16),
        xdp: false,
        ..copy
    };
    assert_eq!(grant.allows(&at_tc, Usage::default()), Ok(()));
}

#[test]
fn what_is_not_said_is_not_granted() {
    let policy = parse("[[grant]]\nusers = ['bob']\ninterfaces = ['*']\n").unwrap();
    let Grant {
        priority_max,
        ports_max,
        memory_max,
        ports_total,
        memory_total,
        take,
        send,
        filter,
        ..
    } = &policy.grants[0];
    assert_eq!(
        (*priority_max, *ports_max, *memory_max),
        (0, 1, Bytes(1 << 20))
    );
    assert_eq!((*ports_total, *memory_total), (256, Bytes(256 << 20)));
    assert!(!take && send.is_none() && filter.is_empty());
    assert_eq!(parse("").unwrap(), Policy::default());
}

#[test]
fn what_may_be_sent_is_the_interfaces_own_unless_it_is_named() {
    let grant = |send: &str| {
        let text = format!("[[grant]]\nusers = ['bob']\ninterfaces = ['*']\nsend = {send}\n");
        parse(&text).unwrap().grants[0].send.clone()
    };
    let own = [2, 0, 0, 0, 0, 1];
    let ip: IpAddr = "10.0.0.9".parse().unwrap();
    assert_eq!(grant("false"), None);
    let rules = grant("true").unwrap().rules(own, &[ip]);
    assert_eq!((rules.source, &rules.addresses[..]), (own, &[ip][..]));
    assert!(!rules.any_source && rules.predicate.is_empty() && rules.ethertypes.is_empty());
    let send = "{ source = '02:00:00:00:00:09', addresses = ['2001:db8::1'], \
                ethertypes = [0x8035], filter = 'rarp or ip6' }";
    let rules = grant(send).unwrap().rules(own, &[ip]);
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    assert_eq!(rules.source, [2, 0, 0, 0, 0, 9]);
    assert_eq!(
        (rules.addresses, rules.ethertypes),
        (vec![v6], vec![0x8035])
    );
    assert_eq!(rules.predicate, "rarp or ip6");
    let rules = grant("{ any_source = true }").unwrap().rules(own, &[ip]);
    assert!(rules.any_source);
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let grant = "[[grant]]\nusers = ['bob']\ninterfaces = ['eth0']\n";
    let after = |line: &str| format!("{grant}{line}\n");
    for (text, line, column, words) in [
        ("[[grants]]\n".to_owned(), 1, 3, "unknown field `grants`"),
        (
            "[[grant]]\nusers = ['bob']\n".to_owned(),
            1,
            1,
            "missing field `interfaces`",
        ),
        (
            "[[grant]]\ninterfaces = ['*']\n".to_owned(),
            1,
            1,
            "for nobody",
        ),
        (
            "[[grant]]\nusers = ['bob', 'bib']\ninterfaces = ['*']\n".to_owned(),
            2,
            17,
            "no user `bib`",
        ),
        (
            "[[grant]]\ngroups = ['bob']\ninterfaces = ['*']\n".to_owned(),
            2,
            11,
            "no group `bob`",
        ),
        (
            "[[grant]]\nusers = ['bob']\ninterfaces = ['a/b']\n".to_owned(),
            3,
            15,
            "matches no interface",
        ),
        (
            "[[grant]]\nusers = ['bob']\ninterfaces = []\n".to_owned(),
            1,
            1,
            "is empty",
        ),
        (after("priority_max = 65536"), 4, 16, "u16"),
        (after("priority = 1"), 4, 1, "unknown field `priority`"),
        (after("memory_max = '1 MB'"), 4, 14, "not a size"),
        (after("memory_max = true"), 4, 14, "a size such as"),
        (
            after("ports_max = 4\nports_total = 3"),
            5,
            15,
            "3, less than",
        ),
        (after("memory_total = '1 KiB'"), 4, 16, "less than"),
        (after("take = 1"), 4, 8, "boolean"),
        (after("filter = 'udp prot 5'"), 4, 10, "prot"),
        (after("send = 5"), 4, 8, "true, false, a filter"),
        (after("send = 'udp udp'"), 4, 8, "the filter `udp udp`"),
        (
            after("send = { filter = 'udp udp' }"),
            4,
            19,
            "the filter `udp udp`",
        ),
        (
            after("send = { fliter = 'udp' }"),
            4,
            10,
            "unknown field `fliter`",
        ),
        (after("send = { ethertypes = [70000] }"), 4, 24, "`70000`"),
        (
            after("send = { source = '02:00' }"),
            4,
            19,
            "no Ethernet address",
        ),
        (
            after("send = { ethertypes = [0x800] }"),
            4,
            8,
            "cannot be allowed by number",
        ),
        (
            after("send = { addresses = ['10.0.0.0/8'] }"),
            4,
            23,
            "`10.0.0.0/8` is no IP address",
        ),
        (
            after("send = { any_source = true, addresses = [] }"),
            4,
            8,
            "give it alone",
        ),
        (
            "[[host]]\ninterfaces = ['*']\nfilter = 'nonsense'\n".to_owned(),
            3,
            10,
            "nonsense",
        ),
        ("[[host]]\ninterfaces = ['*']\n".to_owned(), 1, 1, "filter"),
        ("x = \n".to_owned(), 1, 5, ""),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.message.contains(words), "{text}: {error}");
        assert_eq!(
            (error.line, error.column),
            (line, column),
            "{text}: {error}"
        );
    }
}

#[test]
fn the_example_is_a_policy() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policy.toml");
    let policy = parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!((policy.grants.len(), policy.claims.len()), (3, 1));
    let bob = who(1001, &[1001]);
    let (_, grant) = policy.grant(&bob, "eth0").unwrap();
    assert!(grant.take && grant.filter == "udp portrange 5000-5999");
    assert_eq!(policy.claims("eth0").count(), 1);
}

/// A grant for user 1001, with these lines.
fn bobs(lines: &str) -> String {
    format!("[[grant]]\nusers = ['bob']\ninterfaces = ['eth0']\n{lines}\n")
}

#[test]
fn likely_mistakes_are_reported_with_their_position() {
    let machine = Machine {
        interfaces: vec!["lo".into(), "eth0".into()],
        memory: Some(Bytes(2 << 30)),
        keeps_nothing: false,
    };
    for (text, line, column, words) in [
        (
            POLICY.to_owned() + "ports_total = 99",
            17,
            1,
            "for every user (users = [\"*\"]): any process of this machine, those of services \
             and containers included, may open ports, up to 99 and 256 MiB",
        ),
        (String::new(), 1, 1, "no [[grant]]"),
        (bobs("memory_max = 1000"), 1, 1, "a ring has 4 KiB or more"),
        (bobs("ports_max = 2"), 1, 1, "give memory_max"),
        (
            bobs("memory_max = '1025 MiB'"),
            1,
            1,
            "more than ports_max rings of 1 GiB",
        ),
        (
            bobs("ports_total = 20000"),
            1,
            1,
            "ports_total is 20000, and the broker opens at most 12288",
        ),
        (
            bobs("memory_total = '3 GiB'"),
            1,
            1,
            "memory_total is 3 GiB, and this machine has 2 GiB",
        ),
        (bobs("") + &bobs(""), 5, 1, "never applies: that of line 1"),
        (
            "[[grant]]\nusers = [1001, 4711]\ninterfaces = ['eth0']\n".into(),
            2,
            16,
            "user 4711 is not in /etc/passwd",
        ),
        (
            "[[grant]]\ngroups = [4711]\ninterfaces = ['eth0']\n".into(),
            2,
            11,
            "group 4711 is not in /etc/group",
        ),
        (
            "[[grant]]\nusers = ['bob']\ninterfaces = ['lo', 'eth1']\n".into(),
            3,
            21,
            "there is no interface `eth1` now",
        ),
        (
            "[[grant]]\nusers = ['bob']\ninterfaces = ['*-interface-of-ours']\n".into(),
            3,
            15,
            "at most 15 bytes",
        ),
    ] {
        let warnings = parse(&text).unwrap().warnings(&machine);
        let place = |warning: &Warning| (warning.line, warning.column) == (line, column);
        assert!(
            warnings
                .iter()
                .any(|warning| place(warning) && warning.message.contains(words)),
            "{text}: {warnings:?}"
        );
    }
}

#[test]
fn what_may_be_meant_brings_no_warning() {
    let machine = Machine {
        interfaces: vec!["lo".into(), "eth0".into()],
        memory: Some(Bytes(2 << 30)),
        keeps_nothing: false,
    };
    let grants = |first: &str, second: &str| {
        let table = |keys: &str| format!("[[grant]]\n{keys}\n");
        table(first) + &table(second)
    };
    for text in [
        bobs(""),
        // Nothing, on an interface of those that another grant names.
        bobs("ports_max = 0\nmemory_max = 0"),
        bobs("ports_max = 2\nmemory_max = '1 MiB'"),
        grants(
            "users = ['bob']\ninterfaces = ['eth0']",
            "users = ['bob']\ninterfaces = ['eth*']",
        ),
        grants(
            "users = ['bob']\ninterfaces = ['*']",
            "groups = ['netdev']\ninterfaces = ['lo']",
        ),
        "[[grant]]\nusers = ['bob']\ninterfaces = ['wlan*']\n".into(),
    ] {
        let warnings = parse(&text).unwrap().warnings(&machine);
        assert!(warnings.is_empty(), "{text}: {warnings:?}");
    }
    // Of the machine nothing is known.
    let text = "[[grant]]\nusers = ['bob']\ninterfaces = ['eth7']\nmemory_total = '900 GiB'\n";
    assert!(
        parse(text)
            .unwrap()
            .warnings(&Machine::default())
            .is_empty()
    );
}

#[test]
fn a_grant_to_send_without_a_folder_brings_a_warning() {
    let machine = |keeps_nothing| Machine {
        keeps_nothing,
        ..Machine::default()
    };
    let policy = parse(&bobs("send = true")).unwrap();
    assert_eq!(policy.warnings(&machine(false)), []);
    let warnings = policy.warnings(&machine(true));
    assert_eq!((warnings.len(), warnings[0].line), (1, 1), "{warnings:?}");
    assert!(
        warnings[0].message.contains("--keep FOLDER"),
        "{warnings:?}"
    );
    assert_eq!(parse(&bobs("")).unwrap().warnings(&machine(true)), []);
}
