//! `weir run --check` and `--print` of its short forms, without interfaces.

mod common;

use common::{Folder, stdout, weir};
use std::process::Output;
use weir_wire::{Protocol, ipv4};

fn run(arguments: &[&str]) -> Output {
    weir([]).args(arguments).output().unwrap()
}

fn check(name: &str, text: &str) -> Output {
    let folder = Folder::new(name);
    let file = folder.write("box.toml", text.as_bytes());
    run(&["run", &file, "--check"])
}

fn stderr(run: &Output) -> String {
    String::from_utf8(run.stderr.clone()).unwrap()
}

const LINKS: &str = "outside = 'missing1'\n[kernel]\nroutes = true\n\
                     [[link]]\nname = 'missing0'\n[[link]]\nname = 'missing1'\n";

#[test]
fn all_that_is_wrong_is_said_missing_interfaces_last() {
    let text = format!("{LINKS}[[stage]]\nkind = 'nat'\nblock = 3\n");
    let run = check("box-check-all", &text);
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    let said = stderr(&run);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].contains("box.toml:8:"), "{said}");
    for (line, name) in lines[1..].iter().zip(["missing0", "missing1"]) {
        let missing = format!("weir: there is no interface `{name}`");
        assert!(line.starts_with(&missing), "{said}");
    }
    // A host filter, and next hops of links whose addresses are stated.
    let text = "outside = 'missing1'\n[kernel]\nhost = 'udp prot 53'\n\
                [[link]]\nname = 'missing0'\naddresses = ['10.0.0.1/24']\n\
                [[link]]\nname = 'missing1'\naddresses = ['192.0.2.1/24']\n\
                [[route]]\nto = '0.0.0.0/0'\nvia = '198.51.100.1'\n[[stage]]\nkind = 'nat'\n";
    let said = stderr(&check("box-check-host", text));
    for wrong in ["prot", "198.51.100.1", "`missing0`", "`missing1`"] {
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
}

/// Its addresses would be the pool, of which forwards are.
#[test]
fn a_configuration_whose_interfaces_alone_are_missing_is_not_refused() {
    let forward = "[[stage]]\nkind = 'nat'\n[[stage.forward]]\nprotocol = 'tcp'\n\
                   from = '203.0.113.5:80'\nto = '10.0.0.2:80'\n";
    let run = check("box-check-missing", &format!("{LINKS}{forward}"));
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let said = stderr(&run);
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn limits_of_prefixes_are_checked() {
    let limit = |prefix: &str, count: &str| {
        let text = format!(
            "{LINKS}[[stage]]\nkind = 'nat'\n[[stage.limit]]\n\
             prefix = '{prefix}'\nsessions_max = {count}\n"
        );
        stderr(&check("box-check-limit", &text))
    };
    let good = limit("10.0.1.0/24", "100");
    assert_eq!(good.lines().count(), 2, "{good}");
    for (prefix, count, why) in [
        (
            "10.0.1.0/33",
            "100",
            "box.toml:11:10: `10.0.1.0/33`: write a prefix",
        ),
        ("2001:db8::/32", "100", "as in \"10.0.0.0/8\""),
        (
            "10.0.1.0/24",
            "0",
            "sessions_max of a limit of 0: write 1 to",
        ),
    ] {
        let said = limit(prefix, count);
        assert!(said.contains(why), "{said}");
    }
}

/// A gateway's file is explained on a machine that has other addresses.
#[test]
fn the_box_that_is_explained_may_be_another_machine() {
    let folder = Folder::new("box-explain");
    let key = "01".repeat(36);
    let sas = format!(
        "[[tunnel]]\nname = 't'\nlocal = '192.0.2.1'\nremote = '198.51.100.1'\n\
         [[sa]]\ntunnel = 't'\ndirection = 'out'\nalgorithm = 'aes256gcm'\nspi = 1000\n\
         key = '{key}'\n[[policy]]\nmatch = 'udp'\naction = 'protect'\ntunnel = 't'\n"
    );
    let sas = folder.write("sa.toml", sas.as_bytes());
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&sas, private).unwrap();
    // The loopback interface is one that each machine has.
    let text = "outside = 'lo'\n[[link]]\nname = 'missing0'\n[[link]]\nname = 'lo'\n\
                [[stage]]\nkind = 'ipsec'\nsa = 'sa.toml'\n";
    let file = folder.write("box.toml", text.as_bytes());
    // A capture without frames.
    let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1];
    let header: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    let capture = folder.write("empty.pcap", &header);
    let explained = run(&["run", &file, "--explain", "-r", &capture]);
    assert!(explained.status.success(), "{explained:?}");
    assert!(
        stdout(&explained).contains("stage 1 ipsec"),
        "{explained:?}"
    );
    let checked = stderr(&run(&["run", &file, "--check"]));
    assert!(
        checked.contains("the outside has another address"),
        "{checked}"
    );
}

/// Of a balancer whose servers answer directly: the line, and the remedy.
#[test]
fn servers_that_cannot_answer_directly_are_named() {
    let links = "outside = 'missing1'\n[[link]]\nname = 'missing0'\naddresses = ['10.0.0.1/24']\n\
                 [[link]]\nname = 'missing1'\naddresses = ['192.0.2.1/24', '198.51.100.1/24']\n";
    let first = links.lines().count() + 1;
    let stage = "[[stage]]\nkind = 'balance'\nservice = '192.0.2.1:80'\ndirect_return = true\n";
    let server = |end: &str| format!("[[stage.server]]\nto = '{end}'\n");
    let good = server("10.0.0.2:80");
    for (text, line, remedy) in [
        (
            server("10.0.0.3:8080"),
            7,
            "changes no ports: write the service's",
        ),
        (server("10.0.1.3:80"), 7, "the network of a link"),
        // There the host has the service's address alone.
        (
            server("192.0.2.3:80"),
            7,
            "another address than the service's",
        ),
        (server("10.0.0.1:80"), 7, "of this host itself"),
        (server("10.0.0.2:80"), 7, "it is there twice"),
        (
            "[[stage]]\nkind = 'nat'\n".into(),
            3,
            "the stage `nat` of this chain",
        ),
        (
            "[[stage]]\nkind = 'ipsec'\nsa = 's'\n".into(),
            3,
            "leave out one of the two",
        ),
    ] {
        let run = check("box-check-direct", &format!("{links}{stage}{good}{text}"));
        assert_eq!(run.status.code(), Some(2), "{text}: {run:?}");
        let said = stderr(&run);
        let place = format!("box.toml:{}:", first + line);
        assert!(
            said.contains(&place) && said.contains(remedy),
            "{text}: {said}"
        );
    }
    let other = server("198.51.100.3:80");
    let said = stderr(&check(
        "box-check-direct",
        &format!("{links}{stage}{good}{other}"),
    ));
    assert_eq!(
        said.lines().count(),
        2,
        "the interfaces alone are missing: {said}"
    );
    let text = format!("{links}{stage}{good}").replace("= true", "= 'yes'");
    let said = stderr(&check("box-check-direct", &text));
    assert!(said.contains(&format!("box.toml:{}:", first + 3)), "{said}");
}

/// A capture of a client's segments to a service.
fn segments(count: usize) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12] = 8;
    let header = ipv4::Repr {
        src: [198, 51, 100, 7].into(),
        dst: [192, 0, 2, 1].into(),
        protocol: Protocol::TCP,
        ttl: 64,
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: 20,
    };
    header.emit(&mut frame[14..]);
    frame[34..38].copy_from_slice(&[0x12, 0x34, 0, 80]);
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
    let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1];
    let len = frame.len() as u32;
    let record = [0, 0, len, len].into_iter().flat_map(u32::to_le_bytes);
    let record: Vec<u8> = record.chain(frame).collect();
    let header = header.into_iter().flat_map(u32::to_le_bytes);
    header.chain(record.repeat(count)).collect()
}

#[test]
fn a_chosen_next_hop_is_explained() {
    let folder = Folder::new("box-explain-direct");
    let arguments = [
        "balance",
        "missing0",
        "--service",
        "192.0.2.1:80",
        "--to",
        "192.0.2.7",
    ];
    let printed = run(&[&arguments[..], &["--direct-return", "--print"]].concat());
    assert!(
        stdout(&printed).contains("\ndirect_return = true\n"),
        "{printed:?}"
    );
    let file = folder.write("box.toml", stdout(&printed).as_bytes());
    let capture = folder.write("segments.pcap", &segments(4));
    let explained = stdout(&run(&["run", &file, "--explain", "-r", &capture]));
    let lines: Vec<&str> = explained.lines().map(str::trim).collect();
    assert!(
        lines[0].ends_with("192.0.2.1:80 inward, 4 frames"),
        "{explained}"
    );
    assert_eq!(lines[1], "stage 1 balance: next hop 192.0.2.7");
    assert_eq!(lines[2], "entry, from frame 3 on: next hop 192.0.2.7");
}

/// Of a scheduler: the line, and the remedy.
#[test]
fn a_scheduler_that_cannot_be_is_named() {
    let first = LINKS.lines().count() + 1;
    let head = "[[scheduler]]\nlink = 'missing1'\nrate = '20M'\n";
    for (text, place, remedy) in [
        (
            "[[scheduler]]\nlink = 'eth9'\nrate = '20M'\n",
            (1, 8),
            "it is none of the links: missing0, missing1",
        ),
        (
            "[[scheduler]]\nlink = 'missing1'\nrate = 'fast'\n",
            (2, 8),
            "100M",
        ),
        (
            &format!("{head}speed = 3\n"),
            (3, 1),
            "unknown field `speed`",
        ),
        (
            &format!("{head}{head}"),
            (4, 8),
            "it has a scheduler already",
        ),
        (
            "[scheduler]\nlink = 'missing1'\n",
            (0, 1),
            "write each scheduler as [[scheduler]]",
        ),
        (
            &format!("{head}[[scheduler.class]]\nmatch = 'udp prt 1'\n"),
            (4, 9),
            "match:",
        ),
    ] {
        let run = check("box-check-scheduler", &format!("{LINKS}{text}"));
        let said = stderr(&run);
        assert_eq!(run.status.code(), Some(2), "{text}: {said}");
        let place = format!("box.toml:{}:{}:", first + place.0, place.1);
        assert!(said.contains(&place), "{text}: {said}");
        assert!(said.contains(remedy), "{text}: {said}");
    }
    // Memory for the rings and the frames that wait.
    let folder = Folder::new("box-check-memory");
    let text = format!("{LINKS}{head}[[scheduler.class]]\nlimit = 65536\n");
    let file = folder.write("box.toml", text.as_bytes());
    for (ring, why) in [
        ("1000", "a power of two"),
        ("65536", "shorter queues (limit)"),
    ] {
        let run = run(&["run", &file, "--check", "--ring", ring]);
        let said = stderr(&run);
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains(ring) && said.contains(why), "{said}");
    }
}

/// A frame that waits has no entry; what a stage drops, and what leaves by another link, has one.
#[test]
fn where_frames_wait_is_explained() {
    let folder = Folder::new("box-explain-scheduler");
    let capture = folder.write("segments.pcap", &segments(4));
    let class = "[[scheduler.class]]\nname = 'web'\nmatch = 'tcp port 80'\n[[scheduler.class]]\n";
    let explain = |outside: &str, link: &str| {
        let text = format!(
            "outside = '{outside}'\n[[link]]\nname = 'missing0'\n[[link]]\nname = 'missing1'\n\
             [[stage]]\nkind = 'mark'\ndscp = 'ef'\n\
             [[scheduler]]\nlink = '{link}'\nrate = '20M'\n{class}"
        );
        let file = folder.write("box.toml", text.as_bytes());
        stdout(&run(&["run", &file, "--explain", "-r", &capture]))
    };
    let waits = explain("missing1", "missing1");
    assert!(
        waits.contains("\n  no entry: each frame waits in class `web` of missing1\n"),
        "{waits}"
    );
    assert!(
        waits.contains("what leaves missing1 waits in its queues: no entry sends there"),
        "{waits}"
    );
    let passes = explain("missing1", "missing0");
    assert!(passes.contains("\n  entry, from frame "), "{passes}");
    assert!(passes.contains("what leaves missing0 waits"), "{passes}");
}

/// Of a stage `nat64`: the line, and the remedy.
#[test]
fn a_translator_between_ipv6_and_ipv4_says_what_is_wrong_and_where() {
    let first = LINKS.lines().count() + 1;
    let stage = "[[stage]]\nkind = 'nat64'\n";
    for (text, line, remedy) in [
        ("prefix = '64:ff9b::/97'", 2, "32, 40, 48, 56, 64 or 96"),
        ("match = 'udp'", 2, "`inside`"),
        ("ftp = true", 2, "leave it out"),
        ("inside = ['10.0.0.0/8']", 2, "2001:db8:1::/48"),
        ("pool = ['x']", 2, "IPv4 address"),
        ("pool = ['203.0.113.5']\nmtu = 100", 0, "1280 to 65535"),
        ("pool = ['203.0.113.5']\nsubscriber = 8", 0, "32 to 128"),
        ("[[stage]]\nkind = 'nat'", 2, "`pool` of other addresses"),
        (
            "pool = ['203.0.113.5']\n[[stage]]\nkind = 'nat64'\npool = ['203.0.113.6']",
            3,
            "another one",
        ),
        (
            "[[stage.forward]]\nprotocol = 'tcp'\nfrom = '203.0.113.5:80'\nto = '10.0.0.1:80'",
            5,
            "[2001:db8::1]:80",
        ),
    ] {
        let run = check("box-check-nat64", &format!("{LINKS}{stage}{text}\n"));
        assert_eq!(run.status.code(), Some(2), "{text}: {run:?}");
        let said = stderr(&run);
        let place = format!("box.toml:{}:", first + line);
        assert!(
            said.contains(&place) && said.contains(remedy),
            "{text}: {said}"
        );
    }
    let nat = format!("{LINKS}[[stage]]\nkind = 'nat'\nmtu = 1280\n");
    let said = stderr(&check("box-check-nat64", &nat));
    assert!(said.contains("is of kind = \"nat64\""), "{said}");
}

/// The addresses of the outside link are the pool of a stage without one.
#[test]
fn a_pool_that_is_not_written_is_another_translators_too() {
    let said = |links: &str, stages: &str| {
        stderr(&check(
            "box-check-pools",
            &format!("{LINKS}{links}{stages}"),
        ))
    };
    let addresses = "addresses = ['203.0.113.5/24']\n";
    let twice = "`pool` of other addresses";
    for (pool, is_twice) in [("203.0.113.5", true), ("203.0.113.6", false)] {
        let without = "[[stage]]\nkind = 'nat64'\n";
        let with = format!("[[stage]]\nkind = 'nat'\npool = ['{pool}']\n");
        for stages in [format!("{without}{with}"), format!("{with}{without}")] {
            let said = said(addresses, &stages);
            assert_eq!(said.contains(twice), is_twice, "{stages}: {said}");
        }
    }
    // While the interface is missing, a forward's address stands for its addresses.
    let stage = |kind: &str, pool: &str, from: &str, to: &str| {
        format!(
            "[[stage]]\nkind = '{kind}'\n{pool}[[stage.forward]]\nprotocol = 'tcp'\n\
             from = '{from}:80'\nto = '{to}:80'\n"
        )
    };
    let first = stage("nat", "", "203.0.113.5", "10.0.0.2");
    let second = stage(
        "nat64",
        "pool = ['203.0.113.6']\n",
        "203.0.113.6",
        "[2001:db8::2]",
    );
    let said = said("", &format!("{first}{second}"));
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn short_forms_print_what_run_accepts_and_nothing_else() {
    let folder = Folder::new("box-print");
    for good in [
        &["nat", "missing0", "missing1"][..],
        &[
            "nat",
            "missing0",
            "missing1",
            "--forward",
            "tcp:203.0.113.5:80=10.0.0.2:80",
        ],
        &[
            "balance",
            "missing1",
            "missing0",
            "--service",
            "192.0.2.1:80",
            "--to",
            "10.0.0.2",
        ],
        &[
            "balance",
            "missing1",
            "--service",
            "192.0.2.1:80",
            "--to",
            "192.0.2.2",
            "--direct-return",
        ],
        &["ipsec", "missing1", "missing0", "--sa", "sa.toml"],
        &["nat64", "missing0", "missing1"],
        &[
            "nat64",
            "missing0",
            "missing1",
            "--prefix",
            "2001:db8:64::/48",
            "--pool",
            "203.0.113.5",
            "--forward",
            "tcp:203.0.113.5:80=[2001:db8::2]:80",
        ],
    ] {
        let printed = run(&[good, &["--print"]].concat());
        assert!(printed.status.success(), "{printed:?}");
        let file = folder.write("box.toml", stdout(&printed).as_bytes());
        let checked = run(&["run", &file, "--check"]);
        let said = stderr(&checked);
        let is_known = |line: &str| line.contains("no interface") || line.contains("sa.toml");
        assert!(said.lines().all(is_known), "{said}");
    }
    for (wrong, why) in [
        (&["nat", "missing0", "missing0"][..], "missing0"),
        (
            &[
                "nat64",
                "missing0",
                "missing1",
                "--prefix",
                "2001:db8::1/96",
            ],
            "2001:db8::/96",
        ),
        (
            &["nat64", "missing0", "missing1", "--prefix", "2001:db8::/65"],
            "32, 40, 48, 56, 64 or 96",
        ),
        (&["nat", "missing0", "missing1", "--block", "3"], "block"),
        (
            &[
                "nat",
                "missing0",
                "missing1",
                "--pool",
                "192.0.2.1",
                "--forward",
                "tcp:203.0.113.5:80=10.0.0.2:80",
            ],
            "not in the pool",
        ),
        (
            &[
                "balance",
                "missing1",
                "missing0",
                "--service",
                "192.0.2.1:80",
                "--to",
                "10.0.0.2",
                "--to",
                "10.0.0.2",
            ],
            "10.0.0.2:80",
        ),
        (
            &["shape", "missing0", "missing0", "--rate", "10M"],
            "missing0",
        ),
        (
            &["ipsec", "missing0", "missing0", "--sa", "sa.toml"],
            "missing0",
        ),
    ] {
        let refused = run(&[wrong, &["--print"]].concat());
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert_eq!(stdout(&refused), "", "{refused:?}");
        assert!(stderr(&refused).contains(why), "{why}: {refused:?}");
    }
}

/// One link may be inside and outside, where no stage has to know which is which.
#[test]
fn a_translator_needs_an_inside_of_its_own() {
    let link = "outside = 'missing0'\n[kernel]\nroutes = true\n[[link]]\nname = 'missing0'\n";
    let nat = "[[stage]]\nkind = 'nat'\npool = ['203.0.113.1']\n";
    let ipsec = "[[stage]]\nkind = 'ipsec'\nstrongswan = 'keys'\n";
    let mark = "[[stage]]\nkind = 'mark'\ndscp = 'ef'\n";
    let of_ike = "host = 'udp port 500 or udp port 4500'\n";
    for (stages, is_taken) in [
        (ipsec.to_owned(), true),
        (format!("{mark}{ipsec}"), true),
        (format!("{nat}{ipsec}"), false),
        (mark.to_owned(), false),
    ] {
        let text = link.replace("routes = true\n", &format!("routes = true\n{of_ike}"));
        let said = stderr(&check("box-check-one", &format!("{text}{stages}")));
        let is_refused = said.contains("a chain needs an inside, too");
        assert_eq!(is_refused, !is_taken, "{stages}: {said}");
    }
}
