//! strongSwan's log and VICI as the source of a gateway's SAs.

mod common;
#[path = "common/vici_tape.rs"]
mod vici_tape;

use common::packet;
use vici_tape::{LOG, child, encode, keys, list, listed, value};
use weir_esp::config::Direction;
use weir_esp::negotiated::{ALL_PORTS, Mapper, NegotiatedPolicy, Selector, Treatment};
use weir_esp::strongswan::{self, Keys, Shunt};
use weir_esp::vici::{self, Node, Packet, Section};
use weir_esp::{Config, Gateway, Outward};
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;

const INITIATOR: &str = "d6814018a7664e0bdb298ca8bae3ecd2fdb670181f73284a7887756e32aef8c2eb250585";
const RESPONDER: &str = "e05a0b43838e730848cf330896a263ef8b7350dedd9cd47e278eb4a3b6696c782e8cd59b";

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
    encode(&section, &mut bytes).unwrap();
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

/// Seeds of the fuzz target `vici`, also damaged.
#[test]
fn any_tape_is_survived() {
    let tapes = common::fuzz_seeds("vici");
    tapes.iter().for_each(|tape| vici_tape::run(tape));
    for seed in seeds(200) {
        let mut rng = Rng::new(seed);
        vici_tape::run(&common::damaged(&mut rng, &tapes));
    }
}

/// A packet has room for more pairs of selectors than memory has.
#[test]
fn more_policies_than_are_followed_drop_all() {
    let many = |count: usize| Node::List(vec!["10.0.0.0/8".into(); count]);
    let sections = |count: usize| {
        let wide = [("local-ts", many(count)), ("remote-ts", many(40_000))];
        wide.map(|(name, node)| (name.to_owned(), node))
    };
    let keys = Keys::default();
    let mut wide = child("1", "INSTALLED", ["b129729f", "c9808e16"]);
    for element in sections(40_000) {
        wide = with(wide, element);
    }
    let pass = shunt("PASS", "10.3.0.5/32", "10.1.0.0/16");
    let children = strongswan::children(&listed(vec![wide]));
    let made = strongswan::config(&mut Mapper::default(), &children, &[pass], &keys, 1500);
    assert_eq!(outward(&made, "10.3.0.5"), "policy");
    assert_eq!(outward(&made, "192.0.2.9"), "policy");
    assert!(made.refused[0].contains("more than"), "{:?}", made.refused);
    let [local, remote] = sections(40_000);
    let policy = Section(vec![value("mode", "PASS"), local, remote]);
    let named = Section(vec![("c/shunt".into(), Node::Section(policy))]);
    let shunts = [strongswan::shunt(&named).unwrap()];
    let made = strongswan::config(&mut Mapper::default(), &[], &shunts, &keys, 1500);
    assert_eq!(outward(&made, "10.3.0.5"), "policy");
}
