//! Name databases: the files' rules, the built-in tables, and the C library's
//! answers.

use std::net::IpAddr;

use weir_filter::lang::expr::{NameKind, Names, Transport};
use weir_lab::testenv;
use weir_link::names::SystemNames;

/// A folder with the given files.
fn folder(test: &str, files: &[(&str, &[u8])]) -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.join(format!("names-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    folder
}

#[test]
fn files_are_read_as_the_c_library_does() {
    let folder = folder(
        "files",
        &[
            (
                "services",
                b"# all\nWeb 80/tcp http  # the web\nweb\t81/udp\nweb 82/udp\nbad\nworse 9/\nworst \
                  70000/tcp\n5 5/sctp five\n\xff\xfe 9/tcp\nlast 1/udp alias1 alias2",
            ),
            ("protocols", b"one 1 ONE\nmptcp 262 MPTCP\ntwo two\none 11\n"),
            ("networks", b"net 10 n\nloop 127.0.0.0\nodd 0x0a.012.7\nlong 1.2.3.4.5\nbig 256\n"),
            ("ethers", b"2:0:5E:10:00:1 gate extra\n02:00:5e:10:00 short\n1:2:3:4:5:6:7 long\n"),
        ],
    );
    let names = SystemNames::in_folder(&folder);
    let service = |name: &str| {
        (
            names.service(name, Transport::Tcp),
            names.service(name, Transport::Udp),
        )
    };
    assert_eq!(service("Web"), (Some(80), None));
    assert_eq!(
        service("web"),
        (None, Some(81)),
        "the first line, and case counts"
    );
    assert_eq!(service("http"), (Some(80), None));
    assert_eq!(service("alias2"), (None, Some(1)));
    for unknown in ["bad", "worse", "worst", "#", "the", "five", ""] {
        assert_eq!(service(unknown), (None, None), "{unknown}");
    }
    assert_eq!(names.protocol("one"), Some(1));
    assert_eq!(names.protocol("ONE"), Some(1));
    assert_eq!(names.protocol("mptcp"), None, "no packet has protocol 262");
    assert_eq!(names.candidates(NameKind::Protocol), ["ONE", "one"]);
    assert_eq!(names.protocol("two"), None);
    assert_eq!(names.network("n"), Some(10));
    assert_eq!(names.network("loop"), Some(0x7f00_0000));
    assert_eq!(names.network("odd"), Some(0x0a_0a_07));
    assert_eq!(names.network("long"), None);
    assert_eq!(names.network("big"), None);
    assert_eq!(names.ether_host("gate"), Some([2, 0, 0x5e, 0x10, 0, 1]));
    for unknown in ["extra", "short", "long"] {
        assert_eq!(names.ether_host(unknown), None, "{unknown}");
    }
    let candidates = names.candidates(NameKind::Service);
    assert!(candidates.contains(&"alias1".to_owned()) && candidates.is_sorted());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn without_files_the_everyday_names_are_built_in() {
    let names = SystemNames::in_folder("/nonexistent");
    for (name, transport, port) in [
        ("http", Transport::Tcp, 80),
        ("www", Transport::Tcp, 80),
        ("https", Transport::Udp, 443),
        ("domain", Transport::Udp, 53),
        ("ssh", Transport::Tcp, 22),
        ("bootps", Transport::Udp, 67),
        ("sip", Transport::Udp, 5060),
        ("imaps", Transport::Tcp, 993),
    ] {
        assert_eq!(names.service(name, transport), Some(port), "{name}");
    }
    assert_eq!(names.service("HTTP", Transport::Tcp), None);
    assert_eq!(names.protocol("ospf"), Some(89));
    assert_eq!(names.protocol("ipv6-icmp"), Some(58));
    assert_eq!(names.network("loopback"), Some(0x7f00_0000));
    assert_eq!(names.ether_host("gateway"), None);
    assert!(names.candidates(NameKind::Service).len() > 200);
}

/// The built-in tables equal this machine's files where both have an entry.
#[test]
fn built_in_names_agree_with_the_system() {
    let (built_in, system) = (SystemNames::in_folder("/nonexistent"), SystemNames::new());
    let same = |name: &str, ours: Option<u32>, theirs: Option<u32>| {
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            assert_eq!(ours, theirs, "{name}");
        }
    };
    for name in built_in.candidates(NameKind::Service) {
        for transport in [Transport::Tcp, Transport::Udp] {
            let port = |names: &SystemNames| names.service(&name, transport).map(u32::from);
            same(&name, port(&built_in), port(&system));
        }
    }
    for name in built_in.candidates(NameKind::Protocol) {
        let number = |names: &SystemNames| names.protocol(&name).map(u32::from);
        same(&name, number(&built_in), number(&system));
    }
}

/// Every name in this machine's files, compared with `getent` (the C library).
#[test]
fn the_c_library_gives_the_same_answers() {
    if !testenv::programs(&["getent"]) || !testenv::file("/etc/services", "apt-get install netbase")
    {
        return;
    }
    let getent = |database: &str, key: &str| {
        let mut getent = testenv::program("getent").expect("it is there");
        let output = getent.args([database, key]).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.split_whitespace().nth(1).map(str::to_owned))
    };
    let names = SystemNames::new();
    for name in names.candidates(NameKind::Service).iter().step_by(7) {
        for (transport, suffix) in [(Transport::Tcp, "tcp"), (Transport::Udp, "udp")] {
            let theirs = getent("services", &format!("{name}/{suffix}")).flatten();
            let ours = names
                .service(name, transport)
                .map(|port| format!("{port}/{suffix}"));
            assert_eq!(ours, theirs, "{name}");
        }
    }
    for name in names.candidates(NameKind::Protocol).iter().step_by(3) {
        let theirs = getent("protocols", name).flatten();
        let ours = names.protocol(name).map(|number| number.to_string());
        assert!(
            ours == theirs || theirs.as_deref() == Some("262"),
            "{name}: {ours:?} {theirs:?}"
        );
    }
}

#[test]
fn hosts_come_from_the_resolver() {
    let names = SystemNames::new();
    let hosts = names.hosts("localhost");
    if hosts.is_empty() {
        return testenv::skip("localhost does not resolve");
    }
    assert!(hosts.iter().all(IpAddr::is_loopback), "{hosts:?}");
    let distinct: std::collections::HashSet<_> = hosts.iter().collect();
    assert_eq!(distinct.len(), hosts.len());
    assert_eq!(names.hosts(""), Vec::<IpAddr>::new());
    assert_eq!(names.hosts(&"x".repeat(300)), Vec::<IpAddr>::new());
    assert_eq!(names.hosts("no\0name"), Vec::<IpAddr>::new());
}

#[test]
fn a_line_cut_by_the_limit_means_nothing() {
    let line = b"last 123\n";
    let most = weir_link::names::FILE_LEN_MAX as usize;
    for (seen, numbers) in [
        (line.len(), [Some(7), Some(123)]),
        // The limit falls between the digits.
        ("last 12".len(), [Some(7), None]),
    ] {
        let mut text = b"first 7\n".to_vec();
        text.resize(most - seen - 1, b'#');
        text.push(b'\n');
        text.extend(line);
        let cut = folder("cut", &[("protocols", &text)]);
        let names = SystemNames::in_folder(&cut);
        let found = ["first", "last"].map(|name| names.protocol(name));
        std::fs::remove_dir_all(&cut).unwrap();
        assert_eq!(found, numbers, "{seen} bytes of the last line");
    }
}
