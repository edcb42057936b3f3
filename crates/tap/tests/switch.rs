//! The learning bridge, against a model that is simple and slow.

use std::collections::HashMap;
use weir_lab::rng::Rng;
use weir_tap::switch::{Decision, Reason, Settings, Switch, Vlans};
use weir_wire::ethernet::Address;

fn frame(dst: Address, src: Address, vlan: Option<u16>) -> Vec<u8> {
    let mut bytes = [dst.0, src.0].concat();
    if let Some(vlan) = vlan {
        bytes.extend([0x81, 0x00]);
        bytes.extend(vlan.to_be_bytes());
    }
    bytes.extend([0x88, 0xb5]);
    bytes.resize(60, 0);
    bytes
}

fn station(number: u64) -> Address {
    let [.., c, d, e] = number.to_be_bytes();
    Address([2, 0, 0, c, d, e])
}

#[test]
fn it_decides_as_the_model() {
    const SEED: u64 = 0x5eed_0004;
    println!("seed {SEED:#x}");
    let mut rng = Rng::new(SEED);
    // Room enough that no station is evicted: four times as many fit.
    let mut switch = Switch::new(Settings::wire(4), SEED);
    let mut model: HashMap<(u16, Address), (usize, u32)> = HashMap::new();
    let (mut now, mut moved) = (0_u32, 0_u64);
    for _ in 0..50_000 {
        now += u32::from(rng.below(50) == 0) * 60;
        let from = rng.below(4);
        let vlan = rng.below(3) as u16;
        let (src, dst) = (
            station(rng.below(200) as u64),
            station(rng.below(300) as u64),
        );
        let is_old = |seen: u32| now - seen > 300;
        let before = model.insert((vlan, src), (from, now));
        moved += u64::from(before.is_some_and(|(port, seen)| port != from && !is_old(seen)));
        let expected = match model.get(&(vlan, dst)) {
            Some((port, seen)) if !is_old(*seen) => {
                if *port == from {
                    Decision::Drop(Reason::Local)
                } else {
                    Decision::Port(*port as u16)
                }
            }
            _ => Decision::Flood { vlan },
        };
        let tag = (vlan != 0).then_some(vlan);
        let decided = switch.decide(from, &frame(dst, src, tag), now);
        assert_eq!(decided, expected, "{src} to {dst} in {vlan} at {now}");
    }
    let known = model.values().filter(|(_, seen)| now - seen <= 300).count();
    assert_eq!(switch.stations(now), known);
    let counts: Vec<_> = (0..4).map(|port| switch.counts(port)).collect();
    assert_eq!(counts.iter().map(|c| c.moved).sum::<u64>(), moved);
    assert_eq!(counts.iter().map(|c| c.evicted).sum::<u64>(), 0);
}

#[test]
fn a_flood_of_stations_is_bounded_and_counted() {
    let settings = Settings {
        stations: 1024,
        ..Settings::wire(2)
    };
    let mut switch = Switch::new(settings, 7);
    for number in 0..100_000 {
        switch.decide(0, &frame(Address::BROADCAST, station(number), None), 1);
    }
    let counts = switch.counts(0);
    assert!(switch.stations(1) <= 1024);
    assert_eq!(counts.learned, 100_000);
    assert!(counts.evicted >= 100_000 - 1024, "{counts:?}");
}

#[test]
fn vlans_pass_where_they_may() {
    let mut settings = Settings::wire(2);
    settings.vlans = vec!["10,20-22,untagged".parse().unwrap(), "20".parse().unwrap()];
    let mut switch = Switch::new(settings, 7);
    let (a, b) = (station(1), station(2));
    let mut decide = |from, src, dst, vlan| switch.decide(from, &frame(dst, src, vlan), 0);
    assert_eq!(decide(0, a, b, Some(20)), Decision::Flood { vlan: 20 });
    assert_eq!(decide(1, b, a, Some(20)), Decision::Port(0));
    assert_eq!(decide(1, b, a, Some(10)), Decision::Drop(Reason::Vlan));
    assert_eq!(decide(0, a, b, Some(30)), Decision::Drop(Reason::Vlan));
    assert_eq!(decide(1, b, a, None), Decision::Drop(Reason::Vlan));
    // Flooded, and then not out at the other.
    assert_eq!(decide(0, a, b, None), Decision::Flood { vlan: 0 });
    assert!(!switch.passes(1, 0) && switch.passes(1, 20));
}

#[test]
fn lists_of_vlans_are_read_or_refused() {
    let vlans: Vlans = "1,5-7,untagged".parse().unwrap();
    let allowed: Vec<u16> = (0..4096).filter(|v| vlans.allows(*v)).collect();
    assert_eq!(allowed, [0, 1, 5, 6, 7]);
    for text in ["", "0", "4095", "9-3", "x", "1-", "-", "1,,2", "untagged-3"] {
        let refused = text.parse::<Vlans>().unwrap_err().to_string();
        assert!(refused.contains("1 to 4094"), "{text}: {refused}");
    }
}

#[test]
fn reserved_addresses_and_malformed_frames() {
    let mut settings = Settings::wire(2);
    settings.stp = false;
    let mut switch = Switch::new(settings, 7);
    let group = |last| Address([1, 0x80, 0xc2, 0, 0, last]);
    let mut to = |dst| switch.decide(0, &frame(dst, station(1), None), 0);
    assert_eq!(to(group(0)), Decision::Drop(Reason::Reserved), "STP");
    assert_eq!(to(group(1)), Decision::Drop(Reason::Reserved), "pause");
    assert_eq!(to(group(0x0e)), Decision::Flood { vlan: 0 }, "LLDP");
    assert_eq!(to(group(0x10)), Decision::Flood { vlan: 0 });
    let malformed = Decision::Drop(Reason::Malformed);
    assert_eq!(switch.decide(0, &[0; 13], 0), malformed);
    assert_eq!(
        switch.decide(0, &frame(station(1), Address::BROADCAST, None), 0),
        malformed
    );
    assert_eq!(
        switch.decide(9, &frame(station(1), station(2), None), 0),
        malformed
    );
}
