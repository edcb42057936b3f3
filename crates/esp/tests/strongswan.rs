//! strongSwan's log and VICI as the source of a gateway's SAs.

mod common;

use common::packet;
use weir_esp::config::Direction;
use weir_esp::negotiated::{ALL_PORTS, Mapper, NegotiatedPolicy, Selector, Treatment};
use weir_esp::strongswan::{self, Keys, Shunt};
use weir_esp::vici::{self, Node, Packet, Section};
use weir_esp::{Config, Gateway, Outward};
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;

/// Lines of strongSwan 5.9.8 as the responder of a CHILD_SA. Another thread speaks in between.
const LOG: &str = "\
10[ENC] parsed IKE_AUTH request 1 [ IDi N(INIT_CONTACT) IDr AUTH SA TSi TSr ]
10[CHD] CHILD_SA net{1} state change: CREATED => INSTALLING
10[CHD]   using AES_GCM_16 for encryption
10[CHD] seed => 64 bytes @ 0x7f59bdbb5940
10[CHD]    0: C1 85 B6 42 BA 51 0C EB 27 FD 5B 97 CD 24 A7 8F  ...B.Q..'.[..$..
10[CHD] encryption initiator key => 36 bytes @ 0x7f5980005820
10[CHD]    0: D6 81 40 18 A7 66 4E 0B DB 29 8C A8 BA E3 EC D2  ..@..fN..)......
11[ENC] parsed CREATE_CHILD_SA response 7 [ SA No ]
11[CHD] adding inbound ESP SA
10[CHD]   16: FD B6 70 18 1F 73 28 4A 78 87 75 6E 32 AE F8 C2  ..p..s(Jx.un2...
10[CHD]   32: EB 25 05 85                                      .%..
10[CHD] encryption responder key => 36 bytes @ 0x7f5980001f40
10[CHD]    0: E0 5A 0B 43 83 8E 73 08 48 CF 33 08 96 A2 63 EF  .Z.C..s.H.3...c.
10[CHD]   16: 8B 73 50 DE DD 9C D4 7E 27 8E B4 A3 B6 69 6C 78  .sP....~'....ilx
10[CHD]   32: 2E 8C D5 9B                                      ....
10[CHD] adding inbound ESP SA
10[CHD]   SPI 0xb129729f, src 192.0.2.1 dst 192.0.2.2
10[CHD] adding outbound ESP SA
10[CHD]   SPI 0xc9808e16, src 192.0.2.2 dst 192.0.2.1
";

const INITIATOR: &str = "d6814018a7664e0bdb298ca8bae3ecd2fdb670181f73284a7887756e32aef8c2eb250585";
const RESPONDER: &str = "e05a0b43838e730848cf330896a263ef8b7350dedd9cd47e278eb4a3b6696c782e8cd59b";

fn keys(log: &str) -> Keys {
    let mut keys = Keys::default();
    log.lines().for_each(|line| _ = keys.line(line));
    keys
}

fn fingerprint(digits: &str) -> [u8; 32] {
    weir_esp::algorithm::Keymat::of_hex(digits)
        .unwrap()
        .fingerprint()
}

/// The fingerprints of the inbound and the outbound key.
fn found(keys: &Keys) -> [Option<[u8; 32]>; 2] {
    let ends = [(0xb129_729f, "192.0.2.2"), (0xc980_8e16, "192.0.2.1")];
    ends.map(|(spi, dst)| Some(keys.key(spi, dst.parse().unwrap())?.fingerprint()))
}

#[test]
fn each_end_has_the_key_by_which_it_receives() {
    let of = |digits| Some(fingerprint(digits));
    assert_eq!(found(&keys(LOG)), [of(INITIATOR), of(RESPONDER)]);
    let initiator = LOG.replace("IKE_AUTH request", "IKE_AUTH response");
    assert_eq!(found(&keys(&initiator)), [of(RESPONDER), of(INITIATOR)]);
    // A responder's rekeying: the outbound SA is added later, by another thread.
    let rekeyed = LOG.replace("adding outbound", "registering outbound")
        + "12[CHD] adding outbound ESP SA\n12[CHD]   SPI 0xc9808e16, src 192.0.2.2 dst 192.0.2.1\n";
    assert_eq!(found(&keys(&rekeyed)), [of(INITIATOR), of(RESPONDER)]);
    // With times and names of connections.
    let adorned = LOG
        .replace("[CHD] ", "[CHD] <c|1> ")
        .replace("10[", "Nov 28 16:30:00 10[");
    assert_eq!(found(&keys(&adorned)), [of(INITIATOR), of(RESPONDER)]);
    // Without the roles nothing is guessed.
    let silent = LOG.replace("parsed", "generating");
    assert_eq!(found(&keys(&silent)), [None, None]);
}

fn value(name: &str, text: &str) -> (String, Node) {
    (name.into(), Node::Value(text.into()))
}

fn list(name: &str, text: &str) -> (String, Node) {
    (name.into(), Node::List(vec![text.into()]))
}

fn child(number: &str, state: &str, spis: [&str; 2]) -> (String, Node) {
    let sa = Section(vec![
        value("name", "net"),
        value("uniqueid", number),
        value("reqid", "1"),
        value("state", state),
        value("mode", "TUNNEL"),
        value("protocol", "ESP"),
        value("encap", "yes"),
        value("spi-in", spis[0]),
        value("spi-out", spis[1]),
        value("encr-alg", "AES_GCM_16"),
        value("encr-keysize", "256"),
        list("local-ts", "10.2.0.0/16"),
        list("remote-ts", "10.1.0.0/16"),
    ]);
    (format!("net-{number}"), Node::Section(sa))
}

fn listed(children: Vec<(String, Node)>) -> Section {
    let ike = Section(vec![
        value("local-host", "192.0.2.2"),
        value("local-port", "4500"),
        value("remote-host", "192.0.2.1"),
        value("remote-port", "4501"),
        ("child-sas".into(), Node::Section(Section(children))),
    ]);
    Section(vec![("c".into(), Node::Section(ike))])
}

fn config(section: &Section, keys: &Keys) -> Config {
    let children = strongswan::children(section);
    strongswan::config(&mut Mapper::default(), &children, &[], keys, 1500)
}

#[test]
fn child_sas_become_sas() {
    let keys = keys(LOG);
    let made = config(
        &listed(vec![child("1", "INSTALLED", ["b129729f", "c9808e16"])]),
        &keys,
    );
    assert!(made.refused.is_empty(), "{:?}", made.refused);
    let sas: Vec<_> = made
        .sas
        .iter()
        .map(|it| (it.direction, it.sa.spi))
        .collect();
    assert_eq!(
        sas,
        [(Direction::In, 0xb129_729f), (Direction::Out, 0xc980_8e16)]
    );
    let ports = made.tunnels[0].udp.unwrap();
    assert_eq!((ports.local, ports.remote), (4500, 4501));
    assert!(Gateway::new(&made, 0, 1).is_ok());
    // Without its key an SA is not used, and named.
    let unknown = config(
        &listed(vec![child("1", "INSTALLED", ["b1297290", "c9808e16"])]),
        &keys,
    );
    assert_eq!((unknown.sas.len(), unknown.refused.len()), (1, 1));
    assert!(
        unknown.refused[0].contains("--rekey"),
        "{:?}",
        unknown.refused
    );
}

/// The old SA sends until the peer has deleted it, and receives a while longer.
#[test]
fn a_replaced_child_sa_sends_until_it_is_deleted() {
    let twice = LOG.to_owned()
        + &LOG
            .replace("b129729f", "b1000001")
            .replace("c9808e16", "c1000001")
            .replace("D6 81", "11 11")
            .replace("E0 5A", "22 22");
    let keys = keys(&twice);
    let steps = [
        ("REKEYED", "INSTALLED", 0xc980_8e16),
        ("DELETED", "INSTALLED", 0xc100_0001),
    ];
    for (old, new, sends) in steps {
        let made = config(
            &listed(vec![
                child("1", old, ["b129729f", "c9808e16"]),
                child("2", new, ["b1000001", "c1000001"]),
            ]),
            &keys,
        );
        let mut outbound = made.sas.iter().filter(|it| it.direction == Direction::Out);
        assert_eq!(
            outbound.next_back().map(|it| it.sa.spi),
            Some(sends),
            "{old}"
        );
        let inbound = made.sas.iter().filter(|it| it.direction == Direction::In);
        assert_eq!(inbound.count(), 2);
    }
}

/// Keys do not outlive their SAs; those that are not listed yet stay.
#[test]
fn keys_of_sas_that_are_gone_are_forgotten() {
    let mut keys = keys(LOG);
    let both = found(&keys);
    let other = child("1", "INSTALLED", ["b1297290", "c9808e17"]);
    let mine = child("2", "INSTALLED", ["b129729f", "c9808e16"]);
    let listed = |list| strongswan::children(&listed(list));
    assert_eq!(
        found(&keys.listed(&listed(vec![other.clone()]))),
        [None, None]
    );
    assert_eq!(found(&keys), both);
    assert_eq!(found(&keys.listed(&listed(vec![other, mine]))), both);
    assert_eq!(found(&keys), both);
    keys.listed(&[]);
    assert_eq!(found(&keys), [None, None]);
}

/// The same CHILD_SA with another element.
fn with((name, node): (String, Node), element: (String, Node)) -> (String, Node) {
    let Node::Section(mut section) = node else {
        panic!("{node:?}")
    };
    section.0.retain(|(name, _)| *name != element.0);
    section.0.push(element);
    (name, Node::Section(section))
}

fn shunt(mode: &str, local: &str, remote: &str) -> Shunt {
    let policy = Section(vec![
        value("mode", mode),
        list("local-ts", local),
        list("remote-ts", remote),
    ]);
    let named = Section(vec![("c/shunt".into(), Node::Section(policy))]);
    strongswan::shunt(&named).unwrap()
}

/// The decision of a gateway on a packet to 10.1.0.6.
fn outward(config: &Config, src: &str) -> &'static str {
    let mut gateway = Gateway::new(config, 0, 1).unwrap();
    match gateway.outward(0, &mut packet(src, "10.1.0.6", 0, false, b"text")) {
        Outward::Pass => "passes",
        Outward::Protected(_) => "protected",
        Outward::Drop(reason, _) => reason,
    }
}

#[test]
fn what_is_not_understood_does_not_pass_by_a_wider_policy() {
    let usual = child("1", "INSTALLED", ["b129729f", "c9808e16"]);
    let pass = shunt("PASS", "10.0.0.0/8", "10.0.0.0/8");
    let trap = shunt("TUNNEL", "10.2.0.0/16", "10.1.0.0/16");
    let of = |children: Vec<(String, Node)>, shunts: &[Shunt]| {
        let children = strongswan::children(&listed(children));
        let keys = Keys::default();
        strongswan::config(&mut Mapper::default(), &children, shunts, &keys, 1500)
    };
    let passing = std::slice::from_ref(&pass);
    let cases = [
        (usual.clone(), ["no-outbound-sa", "passes"]),
        (
            with(usual.clone(), list("local-ts", "10.2.0.0/16[udp/http]")),
            ["policy", "passes"],
        ),
        (
            with(usual.clone(), list("local-ts", "10.2.0.0/16[udp")),
            ["policy", "passes"],
        ),
        (
            with(usual.clone(), list("local-ts", "10.2.0.1..10.2.0.9")),
            ["policy", "policy"],
        ),
        (
            with(usual.clone(), value("mode", "BEET")),
            ["policy", "passes"],
        ),
        (
            with(usual.clone(), value("protocol", "AH")),
            ["policy", "passes"],
        ),
    ];
    for (child, [inside, beside]) in cases {
        let made = of(vec![child.clone()], passing);
        assert_eq!(outward(&made, "10.2.0.5"), inside, "{child:?}");
        assert_eq!(outward(&made, "10.3.0.5"), beside, "{child:?}");
        assert!(!made.refused.is_empty());
    }
    // A trap, until there is a CHILD_SA.
    let shunts = [trap, pass];
    let made = of(Vec::new(), &shunts);
    assert_eq!(outward(&made, "10.2.0.5"), "policy");
    assert_eq!(outward(&made, "10.3.0.5"), "passes");
    assert_eq!(
        outward(&of(vec![usual], &shunts), "10.2.0.5"),
        "no-outbound-sa"
    );
    // What should pass and is not understood does not.
    let odd = shunt("PASS", "10.2.0.0/16[udp/http]", "10.1.0.0/16");
    let made = of(Vec::new(), &[odd]);
    assert_eq!(outward(&made, "10.2.0.5"), "policy");
    assert_eq!(made.refused.len(), 1, "{:?}", made.refused);
}

#[test]
fn an_expression_that_does_not_compile_drops_all() {
    let net = |text: &str, len| (text.parse().unwrap(), len);
    let policy = NegotiatedPolicy {
        selector: Selector {
            src: net("10.2.0.0", 40),
            dst: net("10.1.0.0", 16),
            protocol: None,
            src_ports: ALL_PORTS,
            dst_ports: ALL_PORTS,
        },
        priority: 1,
        treatment: Treatment::Discard,
        spi: None,
    };
    let made = Mapper::default().config([&policy], [], true, 1500);
    assert_eq!(outward(&made, "10.2.0.5"), "policy");
    assert_eq!(made.refused.len(), 1, "{:?}", made.refused);
}

/// The bytes of a section as VICI has them.
fn encode(section: &Section, into: &mut Vec<u8>) {
    let name = |name: &str, into: &mut Vec<u8>| {
        into.push(name.len() as u8);
        into.extend_from_slice(name.as_bytes());
    };
    let text = |text: &str, into: &mut Vec<u8>| {
        into.extend_from_slice(&(text.len() as u16).to_be_bytes());
        into.extend_from_slice(text.as_bytes());
    };
    for (key, node) in &section.0 {
        match node {
            Node::Section(section) => {
                into.push(1);
                name(key, into);
                encode(section, into);
                into.push(2);
            }
            Node::Value(value) => {
                into.push(3);
                name(key, into);
                text(value, into);
            }
            Node::List(items) => {
                into.push(4);
                name(key, into);
                for item in items {
                    into.push(5);
                    text(item, into);
                }
                into.push(6);
            }
        }
    }
}

#[test]
fn packets_of_vici_are_read_and_damaged_ones_refused() {
    assert_eq!(vici::register("list-sa"), b"\x03\x07list-sa");
    assert_eq!(
        vici::command("a", &[("pass", "yes")]),
        b"\x00\x01a\x03\x04pass\x00\x03yes"
    );
    assert_eq!(vici::packet(&[5]), Some(Packet::Confirmed));
    let section = listed(vec![child("1", "INSTALLED", ["b129729f", "c9808e16"])]);
    let mut bytes = b"\x07\x07list-sa".to_vec();
    encode(&section, &mut bytes);
    let event = Packet::Event("list-sa".into(), section);
    assert_eq!(vici::packet(&bytes), Some(event));
    for len in 9..bytes.len() {
        // A packet may end between the elements of the whole alone.
        let cut = vici::packet(&bytes[..len]);
        assert!(len == 9 || cut.is_none(), "{len}: {cut:?}");
    }
    let deep = [b"\x01".to_vec(), [1, 1, b'x'].repeat(1000)].concat();
    assert_eq!(vici::packet(&deep), None);
    let keys = keys(LOG);
    for seed in seeds(500) {
        let mut rng = Rng::new(seed);
        let mut damaged = bytes.clone();
        for _ in 0..1 + rng.below(5) {
            let at = rng.below(damaged.len());
            damaged[at] = rng.word() as u8;
        }
        if let Some(Packet::Event(_, section)) = vici::packet(&damaged) {
            Gateway::new(&config(&section, &keys), 0, seed).unwrap();
        }
    }
}

#[test]
fn damaged_logs_are_harmless() {
    for seed in seeds(300) {
        let mut rng = Rng::new(seed);
        let mut bytes = LOG.as_bytes().to_vec();
        for _ in 0..1 + rng.below(20) {
            let at = rng.below(bytes.len());
            bytes[at] = rng.word() as u8;
        }
        keys(&String::from_utf8_lossy(&bytes));
    }
}
