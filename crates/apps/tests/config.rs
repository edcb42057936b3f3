//! `router.toml`: what is taken, and what is said of what is not.

use std::net::IpAddr;
use weir_apps::router::engine::config::{Config, InterfaceInfo};
use weir_apps::router::engine::{Hop, Router, Target};
use weir_lab::rng::Rng;

fn facts() -> InterfaceInfo {
    InterfaceInfo {
        hardware: "02:00:00:00:00:01".parse().unwrap(),
        mtu: 1500,
        addresses: vec!["10.1.0.1/24".parse().unwrap()],
    }
}

fn read(text: &str) -> Result<weir_apps::router::engine::config::Instantiated, String> {
    let config = Config::parse(text, &[]).map_err(|error| error.to_string())?;
    let interfaces = vec![facts(); config.links.len()];
    config
        .settings(&interfaces)
        .map_err(|error| error.to_string())
}

/// That of the documentation.
fn example() -> String {
    let source = include_str!("../src/router/engine/config.rs");
    let example: Vec<&str> = source
        .lines()
        .skip_while(|line| !line.contains("```toml"))
        .skip(1)
        .take_while(|line| !line.contains("```"))
        .map(|line| line.trim_start_matches("//!").trim_start())
        .collect();
    example.join("\n")
}

#[test]
fn the_example_of_the_documentation_is_taken() {
    let (settings, routes) = read(&example()).unwrap();
    assert_eq!((settings.links.len(), settings.neighbours.len()), (1, 1));
    assert!(settings.redirects);
    let gateway = Some("192.0.2.254".parse().unwrap());
    let hop = Hop { link: 0, gateway };
    assert_eq!(
        routes[0],
        (
            "0.0.0.0/0".parse().unwrap(),
            Target::Forward(Box::new([hop]))
        )
    );
    assert_eq!(routes[1].1, Target::Unreachable);
}

/// As the fuzz target `router`, for a moment: values are exchanged, cut, and
/// made up, lines are left out and come twice.
#[test]
fn what_is_taken_makes_a_router_whatever_it_says() {
    const VALUES: [&str; 12] = [
        "0",
        "1",
        "-1",
        "4294967296",
        "true",
        "\"\"",
        "[]",
        "\"0.0.0.0/0\"",
        "\"::/0\"",
        "\"255.255.255.255/32\"",
        "\"ff:ff:ff:ff:ff:ff\"",
        "[\"192.0.2.1/24\", \"::1/128\"]",
    ];
    let seed = std::env::var("WEIR_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(4100);
    println!("WEIR_SEED={seed}");
    let mut rng = Rng::new(seed);
    let example = example();
    let values: Vec<&str> = example
        .lines()
        .filter_map(|l| Some(l.split_once('=')?.1))
        .collect();
    let mut taken = 0;
    for _ in 0..2_000 {
        let mut lines: Vec<String> = example.lines().map(str::to_owned).collect();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(lines.len());
            match rng.below(4) {
                0 if lines.len() > 1 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[rng.below(lines.len())].clone()),
                2 => {
                    let line = &mut lines[at];
                    let end = (0..=rng.below(line.len() + 1)).rev();
                    let end = end.filter(|end| line.is_char_boundary(*end)).max();
                    line.truncate(end.unwrap_or(0));
                }
                _ => {
                    let value = if rng.chance(50) {
                        rng.pick(&VALUES)
                    } else {
                        rng.pick(&values)
                    };
                    if let Some((key, _)) = lines[at].split_once('=') {
                        lines[at] = format!("{key}= {value}");
                    }
                }
            }
        }
        let text = lines.join("\n");
        if let Ok((settings, _)) = read(&text) {
            taken += 1;
            let made = Router::new(&settings, 1);
            assert!(made.is_ok(), "what is taken fits: {:?}\n{text}", made.err());
        }
    }
    assert!((100..1_900).contains(&taken), "{taken} were taken");
}

#[test]
fn what_is_left_out_is_the_interface_s() {
    let (settings, routes) = read("[[link]]\nname = \"a\"").unwrap();
    assert_eq!(settings.links[0].addresses, facts().addresses);
    assert_eq!((settings.links[0].mtu, routes.len()), (1500, 0));
}

#[test]
fn the_host_s_frames_are_told_by_one_filter() {
    for (host, filter) in [
        ("", None),
        ("host = false", None),
        ("host = []", None),
        ("host = true", Some("")),
        ("host = \"icmp\"", Some("(icmp)")),
        (
            "host = [\"icmp\", \"tcp or udp\"]",
            Some("(icmp) or (tcp or udp)"),
        ),
    ] {
        let link = "name = \"a\"\naddresses = [\"10.9.0.1/24\"]";
        let text = format!("[kernel]\n{host}\n[[link]]\n{link}");
        let config = Config::parse(&text, &[]).unwrap();
        assert_eq!(config.kernel.host.filter().as_deref(), filter, "{host}");
        let (settings, _) = config.settings(&[facts()]).unwrap();
        assert_eq!(settings.host, filter.is_some());
        // The host's addresses are answered for.
        let own = settings.links[0].addresses.contains(&facts().addresses[0]);
        assert_eq!(own, settings.host, "{host}");
    }
}

#[test]
fn interfaces_of_the_command_line_are_links() {
    let names = ["a", "b"].map(str::to_owned);
    let config = Config::parse("", &names).unwrap();
    assert_eq!(config.links.len(), 2);
    let twice = Config::parse("[[link]]\nname = \"a\"", &names).unwrap_err();
    assert!(twice.to_string().contains("[[link]] 2"), "{twice}");
}

#[test]
fn what_is_wrong_is_named_with_its_value_and_what_would_do() {
    let link = "[[link]]\nname = \"a\"\naddresses = [\"192.0.2.1/24\"]\n";
    for (more, said) in [
        (
            "speed = 3",
            &["unknown field `speed`", "addresses"][..],
        ),
        ("mtu = 9000", &["[[link]] 1: mtu = `9000`", "68 to 1500"]),
        ("mtu = 60", &["mtu = `60`", "from 68"]),
        (
            "[[link]]\nname = \"a\"",
            &["[[link]] 2: name = `a`", "together"],
        ),
        (
            "[[route]]\nto = \"1.2.3.0\"",
            &["[[route]] 1: to", "prefix length"],
        ),
        ("[[route]]\nto = \"1.2.3.0/24\"", &["say where it leads"]),
        (
            "[[route]]\nto = \"1.2.3.0/24\"\nvia = \"9.9.9.9\"",
            &["via = `9.9.9.9`", "link = \"NAME\""],
        ),
        (
            "[[route]]\nto = \"10.0.0.1/8\"\nvia = \"192.0.2.9\"",
            &["to = `10.0.0.1/8`", "10.0.0.1/8 has host bits: write 10.0.0.0/8"],
        ),
        (
            "[[route]]\nto = \"2001:db8::1/32\"\nkind = \"blackhole\"",
            &["2001:db8::1/32 has host bits: write 2001:db8::/32"],
        ),
        (
            "[[route]]\nto = \"1.2.3.0/24\"\nvia = \"x\"",
            &["via = `x`", "IP address"],
        ),
        (
            "[[route]]\nto = \"1.2.3.0/24\"\nlink = \"b\"",
            &["link = `b`", "there are a"],
        ),
        (
            "[[route]]\nto = \"1.2.3.0/24\"\nkind = \"gone\"",
            &["unreachable", "prohibit"],
        ),
        (
            "[[route]]\nto = \"1.2.3.0/24\"\nlink=\"a\"\nkind = \"prohibit\"",
            &["kind = `prohibit`", "leads nowhere"],
        ),
        (
            "[[neighbour]]\nlink = \"a\"\naddress = \"1.2.3.4\"\nhardware = \"02:zz\"",
            &["02:zz", "six bytes"],
        ),
        ("[kernel]\ntables = [\"main\"]", &["expected u32"]),
        (
            "[kernel]\ntables = [0]",
            &["[kernel]: tables = `0`", "254 is `main`"],
        ),
        ("[kernel]\nhost = 5", &["true, false, a filter"]),
        (
            "[[route]]\nto = \"2001:db8::/32\"\nvia = \"fe80::2%a\"",
            &["write `fe80::2`", "link = \"a\""],
        ),
        (
            "[[link]]\nname = \"b\"\naddresses = [\"fe80::2%b/64\"]",
            &["[[link]] 2", "leave out `%"],
        ),
        (
            "[[route]]\nto = \"1.2.3.0/24\"\nvia = \"192.0.2.1\"",
            &["via = `192.0.2.1`", "this router itself"],
        ),
        (
            "[[route]]\nto = \"1.2.3.0/24\"\nvia = \"224.0.0.5\"\nlink = \"a\"",
            &["via = `224.0.0.5`", "one station"],
        ),
        (
            "[[route]]\nto = \"1.2.3.0/24\"\nvia = \"192.0.2.9\"\n[[route]]\nto = \"1.2.3.0/24\"\nlink = \"a\"",
            &["[[route]] 2: to = `1.2.3.0/24`", "together"],
        ),
        (
            "[[neighbour]]\nlink = \"a\"\naddress = \"192.0.2.1\"\nhardware = \"02:00:00:00:00:09\"",
            &["address = `192.0.2.1`", "this router itself"],
        ),
        (
            "[[neighbour]]\nlink = \"a\"\naddress = \"192.0.2.9\"\nhardware = \"01:00:5e:00:00:09\"",
            &["hardware = `01:00:5e:00:00:09`", "the neighbour's own"],
        ),
        (
            "[[neighbour]]\nlink = \"a\"\naddress = \"192.0.2.9\"\nhardware = \"00:00:00:00:00:00\"",
            &["no hardware address of one station"],
        ),
        (
            &"[[neighbour]]\nlink = \"a\"\naddress = \"192.0.2.9\"\nhardware = \"02:00:00:00:00:09\"\n".repeat(2),
            &["[[neighbour]] 2: address = `192.0.2.9`", "one hardware address"],
        ),
        (
            "[[route]]\nto = \"2001:db8::/32\"\nvia = \"fe80::2\"",
            &["via = `fe80::2`", "on every link", "link = \"NAME\""],
        ),
        (
            // That of its hardware address.
            "[[route]]\nto = \"2001:db8::/32\"\nvia = \"fe80::ff:fe00:1\"\nlink = \"a\"",
            &["via = `fe80::ff:fe00:1`", "this router itself"],
        ),
        (
            "[[link]]\nname = \"b\"\naddresses = [\"192.0.2.1/24\"]",
            &["[[link]] 2: addresses = `192.0.2.1/24`", "already"],
        ),
        (
            "[[link]]\nname = \"b\"\naddresses = [\"192.0.3.1/24\", \"192.0.3.1/25\"]",
            &["addresses = `192.0.3.1/25`", "already"],
        ),
        (
            "[[link]]\nname = \"b\"\naddresses = [\"192.0.3.0/24\"]",
            &["addresses = `192.0.3.0/24`", "no address of one router"],
        ),
        (
            "[[link]]\nname = \"b\"\naddresses = [\"192.0.3.255/24\"]",
            &["addresses = `192.0.3.255/24`", "no address of one router"],
        ),
    ] {
        let error = read(&format!("{link}{more}")).unwrap_err();
        assert!(
            said.iter().all(|part| error.contains(part)),
            "{more:?} gives: {error}"
        );
    }
    let error = read("").unwrap_err();
    assert!(
        error.starts_with("the router has no link, and needs 1 to 8: write [[link]]"),
        "{error}"
    );
    let links = |count: u32| {
        let links = (0..count).map(|number| format!("[[link]]\nname = \"eth{number}\"\n"));
        read(&links.collect::<String>())
    };
    assert!(links(8).is_ok());
    let error = links(9).unwrap_err();
    assert!(
        error.contains("[[link]] = 9: a router has 1 to 8 links"),
        "{error}"
    );
    for wrong in [
        "neighbours_max = 1",
        "routes_max = 0",
        "routes_max = 4000001",
    ] {
        let error = read(&format!("{wrong}\n{link}")).unwrap_err();
        let key = wrong.split(' ').next().unwrap();
        assert!(error.contains(key), "{wrong}: {error}");
    }
    let v6 = "[[link]]\nname = \"a\"\nmtu = 1000\naddresses = [\"2001:db8::1/64\"]";
    assert!(read(v6).unwrap_err().contains("from 1280"));
}

/// RFC 4007: another station may have on one link what is the router's on another.
#[test]
fn an_address_of_a_link_alone_is_the_routers_on_that_link() {
    let of = |link: &str| {
        format!(
            "[[link]]\nname = \"a\"\naddresses = [\"fe80::1/64\"]\n\
             [[link]]\nname = \"b\"\naddresses = [\"fe80::2/64\"]\n\
             [[route]]\nto = \"2001:db8::/32\"\nvia = \"fe80::1\"\nlink = \"{link}\"\n\
             [[neighbour]]\nlink = \"{link}\"\naddress = \"fe80::1\"\n\
             hardware = \"02:00:00:00:00:09\"\n"
        )
    };
    let (settings, routes) = read(&of("b")).unwrap();
    let gateway: IpAddr = "fe80::1".parse().unwrap();
    assert_eq!(settings.neighbours[0].1, gateway);
    let hop = Hop {
        link: 1,
        gateway: Some(gateway),
    };
    assert_eq!(routes[0].1, Target::Forward(Box::new([hop])));
    let refused = read(&of("a")).unwrap_err();
    assert!(refused.contains("this router itself"), "{refused}");
}

/// A file of something else may be one line.
#[test]
fn an_unreadable_line_is_not_shown() {
    let long = format!("# first\n{}", "\0".repeat(1 << 20));
    let said = read(&long).unwrap_err();
    assert!(said.len() < 300, "{} bytes", said.len());
}

#[test]
fn what_is_wrong_is_found_in_the_text() {
    let link = "[[link]]\nname = \"a\"\naddresses = [\"192.0.2.1/24\"]\n";
    for (more, at) in [
        ("speed = 3", "speed"),
        ("mtu = 9000", "9000"),
        ("[[link]]\nname = \"a\" # second", "\"a\" # second"),
        (
            "[[route]]\nto = \"1.2.3.0/24\"\nkind = \"blackhole\"\n\
             [[route]]\nto = \"9.9.9.9\"",
            "\"9.9.9.9\"",
        ),
        ("[kernel]\nhost = 5", "5"),
        ("[kernel]\ntables = [0]", "[0]"),
        // In none of the keys: the table itself.
        ("[[route]]\nto = \"1.2.3.0/24\"\nkind = 1", "1"),
    ] {
        let text = format!("{link}{more}");
        let error = match Config::parse(&text, &[]) {
            Ok(config) => config
                .settings(&vec![facts(); config.links.len()])
                .unwrap_err(),
            Err(error) => error,
        };
        let found = error.at(&text).unwrap();
        assert!(
            text[found..].starts_with(at),
            "{more:?}: {}",
            &text[found..]
        );
    }
    let top = format!("neighbours_max = 1\n{link}");
    let error = Config::parse(&top, &[]).unwrap_err();
    assert_eq!(error.at(&top), Some("neighbours_max = ".len()));
    assert!(
        error.to_string().starts_with("neighbours_max = 1: "),
        "{error}"
    );
    // That of the command line is not in the text.
    let twice = Config::parse(link, &["a".to_owned()]).unwrap_err();
    assert_eq!(twice.at(link), None);
    let text = format!("{link}[kernel]\nhost = \"tcp\"");
    let host = weir_apps::router::engine::config::host_at(&text).unwrap();
    assert_eq!(&text[host..], "\"tcp\"");
}
