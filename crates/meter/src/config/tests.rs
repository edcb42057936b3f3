use super::*;
use crate::policy::{PolicyAction, RateLimit, SpentRequest};
use weir_filter::lang::expr::NoNames;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, &NoNames)
}

#[test]
fn the_example_has_every_key() {
    let text = include_str!("../../../../examples/counter.toml");
    let config = parse(text).unwrap();
    assert_eq!(config.counter, "pop1");
    assert_eq!(config.period_ns, 300 * NS_PER_S);
    let names: Vec<&str> = config
        .services
        .iter()
        .map(|service| &*service.name)
        .collect();
    assert_eq!(names, ["onnet", "dns", "web", "voice", "icmp"]);
    assert_eq!(config.services[0].filter.as_deref(), Some("net 10.0.0.0/8"));
    assert_eq!(config.services[2].ports[2], (Protocol::TCP, 8000..=8099));
    assert_eq!(config.services[4].protocols, [Protocol(1), Protocol(58)]);
    assert_eq!(config.measures.len(), 4);
    assert_eq!(config.links.len(), 1);
    let keys = [
        "counter",
        "bytes",
        "period",
        "keys",
        "subscribers",
        "each_address",
        "capacity",
        "unattributed_max",
        "adoption",
        "chunk_records",
        "inside",
        "outside",
        "from_inside",
        "default_policy",
        "portal",
        "rate",
        "burst",
        "over",
        "quota",
        "spent",
    ];
    for key in keys {
        assert!(text.contains(&format!("{key} = ")), "{key}");
    }
}

#[test]
fn an_empty_file_has_the_defaults() {
    let config = parse("").unwrap();
    assert_eq!(config.inside, Inside::Prefixes(private_prefixes()));
    assert!(!config.each_address && config.services.is_empty());
    assert_eq!(
        parse("subscribers = 'a.csv'").unwrap().inside,
        Inside::Sessions
    );
    let settings = Config::default().settings(1, 2);
    assert!(settings.each_address && settings.services.len() == 9);
}

#[test]
fn policies_are_read() {
    let text = "default_policy = 'a'\nportal = 'eth9'\n[policy.a]\nrate = '10M'\n\
                [policy.b]\nrate = { down = '8k' }\nburst = '2MB'\nover = 'dscp:46'\n\
                [policy.c]\nquota = '5GB'\nspent = 'portal'\n";
    let config = parse(text).unwrap();
    let [a, b, c] = &config.policies[..] else {
        panic!("{config:?}")
    };
    let limit = |bits_per_second, burst_bytes| {
        Some(RateLimit {
            bits_per_second,
            burst_bytes,
        })
    };
    assert_eq!(a.rates, [limit(10_000_000, 125_000); 2]);
    assert_eq!((a.over, a.quota_bytes), (PolicyAction::Drop, None));
    assert_eq!(b.rates, [None, limit(8_000, 2_000_000)]);
    assert_eq!(b.over, PolicyAction::Mark(46));
    assert_eq!(
        (c.quota_bytes, c.spent),
        (Some(5_000_000_000), PolicyAction::Portal)
    );
    assert_eq!(config.default_policy.as_deref(), Some("a"));
    assert_eq!(config.portal.as_deref(), Some("eth9"));
    for (text, why) in [
        ("[policy.a]", "it limits nothing"),
        ("[policy.a]\nrate = '7k'", "from 8k to 400G"),
        ("[policy.a]\nrate = '10 Mbit'", "`10 Mbit`"),
        ("[policy.a]\nrate = '1M'\nburst = '10B'", "from 1600 to"),
        ("[policy.a]\nrate = '1M'\nover = 'dscp:64'", "from 0 to 63"),
        (
            "[policy.a]\nrate = '1M'\nover = 'portal'",
            "portal = \"IF\"",
        ),
        (
            "[policy.a]\nrate = '1M'\nspent = 'drop'",
            "there is no quota",
        ),
        (
            "[policy.a]\nquota = '1MB'\nburst = '1MB'",
            "there is no rate",
        ),
        (
            "[policy.a]\nrate = '1M'\nspent_request = 'disconnect'",
            "spent_request = `disconnect`: there is no quota",
        ),
        (
            "[policy.a]\nquota = '1MB'\nspent_request = 'coa:'",
            "spent_request = `coa:`: there are \"disconnect\" and",
        ),
        (
            "[policy.a]\nquota = '1MB'\nspent_request = 'disconnect'",
            "[policy.a]: spent_request: no access server can be asked: add dynamic",
        ),
        ("[policy.'a b']\nquota = '1MB'", "`a b`"),
        ("default_policy = 'z'", "add [policy.z]"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.message.contains(why), "{text}: {error:?}");
        assert!(error.at.is_some(), "{text}");
    }
}

#[test]
fn services_and_measures_keep_the_order_of_the_file() {
    let text = "[services]\nz = 'arp'\na = { udp = [1] }\nm = 'tcp'\n[measures]\nz = 'arp'\nflows = true\na = 'ip'\ngaps = false";
    let config = parse(text).unwrap();
    let names: Vec<&str> = config
        .services
        .iter()
        .map(|service| &*service.name)
        .collect();
    assert_eq!(names, ["z", "a", "m"]);
    let columns = config
        .measures
        .iter()
        .map(|measure| measure.measurement(1).columns());
    let columns: Vec<String> = columns.flatten().map(|column| column.name).collect();
    assert_eq!(columns, ["z", "flows", "a"]);
}

#[test]
fn a_mistake_has_its_place_its_value_and_a_remedy() {
    for (text, at, message) in [
        ("counter = 'a b'", 10, "counter = `a b`: a name has 1 to 64"),
        (
            "\nperiod = '5'",
            10,
            "period = `5`: write a number and ms, s, m, h or d",
        ),
        ("period = '2d'", 9, "period = `2d`: from 1 s to 86400 s"),
        (
            "bytes = 'octets'",
            8,
            "unknown variant `octets`, expected `ip` or `wire`",
        ),
        (
            "keys = []",
            7,
            "keys = []: give some of pppoe, vlan, mac, ipv4, ipv6, prefix",
        ),
        ("keys = ['ip']", 8, "unknown variant `ip`"),
        (
            "capacity = 0",
            11,
            "capacity = 0: give a number from 1 to 16777216",
        ),
        ("subscribers = ''", 14, "give the path of a CSV file"),
        ("colour = 1", 0, "unknown field `colour`"),
        (
            "[capture]\ninside = '10.0.0.1/8'",
            19,
            "inside = `10.0.0.1/8`: write a prefix",
        ),
        (
            "[capture]\ninside = ['::/0', 'vlan:3']",
            28,
            "inside = `vlan:3`: write a prefix",
        ),
        (
            "[capture]\nfrom_inside = 'scr net 1'",
            24,
            "from_inside = `scr net 1`: ",
        ),
        (
            "[capture]\ninside = '::/0'\nfrom_inside = 'ip'",
            40,
            "leave one of the two out",
        ),
        (
            "each_address = true\nsubscribers = 'a'",
            15,
            "say which addresses",
        ),
        (
            "each_address = true\nkeys = ['ipv4']",
            15,
            "add \"ipv6\" to `keys`",
        ),
        (
            "[services]\nother = 'ip'",
            11,
            "a class of this name exists always",
        ),
        ("[services]\na = {}", 15, "a = {}: it fits no frame"),
        (
            "[services]\na = { tcp = [70000] }",
            24,
            "expected a port from 0 to 65535",
        ),
        (
            "[services]\na = { tcp = ['9-1'] }",
            24,
            "expected a port from 0 to 65535",
        ),
        ("[services]\na = { tpc = [1] }", 17, "unknown field `tpc`"),
        (
            "[services]\na = { protocols = ['x'] }",
            30,
            "a number from 0 to 255, or one of icmp",
        ),
        ("[services]\na = 'tcp prot 80'", 15, "a = `tcp prot 80`: "),
        (
            "[services]\na = { filter = 'tcp prot 80' }",
            26,
            "a.filter = `tcp prot 80`: ",
        ),
        (
            "[services]\na = 5",
            15,
            "expected a filter expression, or a table",
        ),
        (
            "[measures]\nspeed = true",
            11,
            "there are flows, active and gaps",
        ),
        ("[measures]\nflows = 'tcp'", 19, "choose another"),
        (
            "[measures]\ngaps = { slot = '1s' }",
            18,
            "other measures have no settings",
        ),
        (
            "[measures]\nflows = { max = 0 }",
            27,
            "flows.max = 0: give a number from 1",
        ),
        ("[[link]]\n", 0, "[[link]] 1: name the interface"),
        (
            "[[link]]\ninside = 'a'\noutside = 'a'",
            0,
            "both sides are one interface",
        ),
        (
            "[[link]]\ninside = 'a'\ntake = true",
            0,
            "take = true: only frames of a mirror port are copies",
        ),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.message.contains(message), "{text}: {error:?}");
        assert_eq!(error.at, Some(at), "{text}: {error:?}");
    }
}

#[test]
fn access_servers_that_are_asked_have_addresses() {
    let config = |client: &str, request: &str| {
        parse(&format!(
            "[radius]\n[[radius.client]]\naddress = '192.0.2.0/24'\nsecret_file = 'a'\n{client}\n\
             [policy.a]\nquota = '1MB'\nspent_request = '{request}'\n"
        ))
    };
    let client = "dynamic = '192.0.2.1:3799'\ndynamic_secret_file = 'b'";
    let read = config(client, "coa:walled garden").unwrap();
    let radius = read.radius.unwrap();
    let asked = radius.clients[0].dynamic.unwrap();
    assert_eq!(asked.to_string(), "192.0.2.1:3799");
    let secret = radius.clients[0].dynamic_secret_file.as_ref().unwrap();
    assert_eq!(secret.0, "b");
    let change = SpentRequest::Change {
        filter: "walled garden".into(),
    };
    assert_eq!(read.policies[0].spent_request, Some(change));
    for (client, why) in [
        (
            "dynamic = '192.0.2.1'",
            "dynamic = 192.0.2.1: write an address and a port",
        ),
        (
            "dynamic = '192.0.2.1:0'",
            "write where the access server listens",
        ),
        (
            "dynamic = '[::]:3799'",
            "write where the access server listens",
        ),
        ("dynamic_secret_file = 'b'", "it is the secret of `dynamic`"),
    ] {
        let refused = config(client, "disconnect").unwrap_err();
        assert!(refused.message.contains(why), "{refused:?}");
    }
}

#[test]
fn lengths_of_time_are_read() {
    assert_eq!(duration_ns("500ms"), Ok(NS_PER_S / 2));
    assert_eq!(duration_ns("1h"), Ok(3600 * NS_PER_S));
    for text in ["", "5", "m", "-5m", "5 m", "99999999999999999d"] {
        assert!(duration_ns(text).is_err(), "{text}");
    }
}
