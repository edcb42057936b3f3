//! What every PCB table must do, and the keys of an attacker: for the table of the stack,
//! and for the papers' tables in the crate `weir-experiments`.

use proptest::prelude::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_stack::pcb::{InsertError, Key, KeyHash, PcbId, Table};

/// Connection `index` of a server: by version, 64 addresses' ports in turn; over
/// IPv6 of one of 20 addresses of the server's own.
pub(crate) fn key(v6: bool, index: u32) -> Key {
    let port = 1024 + (index % 64) as u16;
    let (local, remote): (IpAddr, IpAddr) = if v6 {
        let remote = 0x2001_0db8_u128 << 96 | u128::from(index / 64);
        (
            Ipv6Addr::from_bits(0xfd << 120 | u128::from(index % 20)).into(),
            Ipv6Addr::from_bits(remote).into(),
        )
    } else {
        let remote = Ipv4Addr::from_bits(0x0a00_0000 + index / 64);
        (Ipv4Addr::LOCALHOST.into(), remote.into())
    };
    let local = SocketAddr::new(local, 80);
    Key::new(local, SocketAddr::new(remote, port)).unwrap()
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Insert(bool, u32),
    Remove(bool, u32),
    Find(bool, u32),
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = prop_oneof![0..30u32, 0..2000u32];
    let step = (0..4u8, any::<bool>(), index).prop_map(|(kind, v6, index)| match kind {
        0 | 1 => Step::Insert(v6, index),
        2 => Step::Remove(v6, index),
        _ => Step::Find(v6, index),
    });
    prop::collection::vec(step, 0..400)
}

/// The table does what a map does; it is named `name` in messages.
pub(crate) fn equals_a_map(
    name: &str,
    table: &mut dyn Table,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut model = HashMap::new();
    for (number, &step) in steps.iter().enumerate() {
        let pcb = PcbId(number as u32);
        match step {
            Step::Insert(v6, index) => {
                let key = key(v6, index);
                let expected = match model.get(&key) {
                    Some(&old) => Err(InsertError::Exists(old)),
                    None => Ok(()),
                };
                prop_assert_eq!(table.insert(key, pcb), expected, "{}", name);
                model.entry(key).or_insert(pcb);
            }
            Step::Remove(v6, index) => {
                let key = key(v6, index);
                prop_assert_eq!(table.remove(&key), model.remove(&key), "{}", name);
            }
            Step::Find(v6, index) => {
                let key = key(v6, index);
                prop_assert_eq!(table.find(&key), model.get(&key).copied(), "{}", name);
            }
        }
        prop_assert_eq!(table.len(), model.len(), "{}", name);
    }
    let keys: Vec<Key> = (0..600).map(|n| key(n % 3 == 0, n * 7 % 2000)).collect();
    let mut found = vec![None; keys.len()];
    table.find_batch(&keys, &mut found);
    for (key, found) in keys.iter().zip(&found) {
        prop_assert_eq!(*found, model.get(key).copied(), "{}", name);
    }
    Ok(())
}

pub(crate) fn filled(table: &mut dyn Table, count: u32) {
    for index in 0..count {
        table.insert(key(false, index), PcbId(index)).unwrap();
    }
}

/// What a removed connection leaves in a cache is not found.
pub(crate) fn forgets_what_it_cached(name: &str, table: &mut dyn Table) {
    filled(table, 3);
    assert_eq!(table.find(&key(false, 1)), Some(PcbId(1)), "{name}");
    table.remove(&key(false, 1));
    assert_eq!(table.find(&key(false, 1)), None, "{name}");
    table.insert(key(false, 7), PcbId(7)).unwrap(); // takes the freed node
    assert_eq!(table.find(&key(false, 1)), None, "{name}");
    assert_eq!(table.find(&key(false, 7)), Some(PcbId(7)), "{name}");
}

/// A connection of a stranger's choice to one server.
pub(crate) fn remote_key(address: u32, port: u16) -> Key {
    let local = SocketAddr::from(([192, 0, 2, 1], 80));
    let remote = SocketAddr::new(Ipv4Addr::from_bits(address).into(), port);
    Key::new(local, remote).unwrap()
}

/// Keys of an attacker who knows the tables and all that is hashed, but not the secret: it
/// has sought keys that collide by a secret of its own, and keys that collide by any hash
/// that takes no secret.
pub(crate) fn chosen_keys(count: u32) -> [(&'static str, Vec<Key>); 2] {
    let structured = (0..count).map(|n| remote_key(n << 12, (n >> 4) as u16));
    [
        ("sought", colliding(count as usize)),
        ("structured", structured.collect()),
    ]
}

/// Keys that come to one chain of a table of 256, by a secret that the attacker has drawn:
/// each costs the others of its chain one PCB there.
fn colliding(count: usize) -> Vec<Key> {
    let guessed = KeyHash::new(0xbad);
    let chain = |key: &Key| match key {
        Key::V4(key) => guessed.hash(key) >> 56,
        Key::V6(_) => unreachable!("all keys are of IPv4"),
    };
    let wanted = chain(&remote_key(1, 1));
    let numbered =
        |number: u32| remote_key(0x0a00_0000 + (number >> 8), 1024 + (number & 0xff) as u16);
    let keys = (1..).map(numbered);
    keys.filter(|key| chain(key) == wanted)
        .take(count)
        .collect()
}

/// What an attacker's connections cost the attacker, and a connection that was there
/// first: PCBs examined for a look-up of each.
pub(crate) fn examined_under_attack(table: &mut dyn Table, keys: &[Key]) -> [f64; 2] {
    let count = keys.len() as u32;
    let good = remote_key(0xc633_6407, 40_000);
    table.insert(good, PcbId(count)).unwrap();
    for (index, &key) in keys.iter().enumerate() {
        table.insert(key, PcbId(index as u32)).unwrap();
    }
    let mut examined = [0, 0];
    for (index, key) in keys.iter().enumerate().rev() {
        for (sum, key, pcb) in [(0, key, index as u32), (1, &good, count)] {
            let before = table.examined();
            assert_eq!(table.find(key), Some(PcbId(pcb)));
            examined[sum] += table.examined() - before;
        }
    }
    examined.map(|sum| sum as f64 / f64::from(count))
}
