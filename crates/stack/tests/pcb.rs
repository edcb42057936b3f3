//! The table equals a map, whatever is done to it, and examines hardly more than one PCB.

#[path = "common/tables.rs"]
mod tables;

use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tables::{
    chosen_keys, equals_a_map, examined_under_attack, filled, forgets_what_it_cached, key,
    remote_key, steps,
};
use weir_stack::pcb::{ChunkSource, InsertError, Key, Listeners, PcbId, Table, TableChunk, Weir};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_equals_a_map(seed in any::<u128>(), steps in steps()) {
        let mut table = Weir::new(seed);
        equals_a_map("weir", &mut table, &steps)?;
        let keys: Vec<Key> = (0..600).map(|n| key(n % 3 == 0, n * 7 % 2000)).collect();
        let mut found = vec![None; keys.len()];
        let before = table.examined();
        table.find_batch(&keys, &mut found);
        let by_batch = table.examined() - before;
        let before = table.examined();
        keys.iter().for_each(|key| { table.find(key); });
        prop_assert_eq!(by_batch, table.examined() - before, "batches count alike");
    }
}

#[test]
fn a_freed_pcb_is_not_found() {
    forgets_what_it_cached("weir", &mut Weir::new(1));
}

#[test]
fn chosen_keys_cost_nothing() {
    for (attack, keys) in chosen_keys(2000) {
        let examined = examined_under_attack(&mut Weir::new(0x5eed), &keys);
        let bounds = 1.0..=1.02;
        assert!(
            examined.iter().all(|each| bounds.contains(each)),
            "{attack}: {examined:?}"
        );
    }
}

/// A table larger than the caches looks a batch up with overlapping cache misses: keys that are
/// there, or not, or not in their first bucket, of either version, in batches of any length, over
/// old answers.
#[test]
fn a_large_table_answers_batches_as_one_by_one() {
    const COUNT: u32 = 40_000;
    let mut table = Weir::new(11);
    filled(&mut table, COUNT);
    for index in 0..COUNT {
        table
            .insert(key(true, index), PcbId(COUNT + index))
            .unwrap();
    }
    let asked = |n: u32| (n % 7 < 3, n.wrapping_mul(0x9e37_79b1) % (COUNT + COUNT / 4));
    let keys: Vec<Key> = (0..30_000).map(asked).map(|(v6, n)| key(v6, n)).collect();
    let expected = |n: u32| {
        let (v6, index) = asked(n);
        (index < COUNT).then_some(PcbId(if v6 { COUNT + index } else { index }))
    };
    let expected: Vec<Option<PcbId>> = (0..30_000).map(expected).collect();
    let before = table.examined();
    for (key, expected) in keys.iter().zip(&expected) {
        assert_eq!(table.find(key), *expected);
    }
    let one_by_one = table.examined() - before;
    for length in [1, 63, 64, 65, 200, keys.len()] {
        let mut found = vec![Some(PcbId(9)); keys.len()];
        let before = table.examined();
        for (keys, found) in keys.chunks(length).zip(found.chunks_mut(length)) {
            table.find_batch(keys, found);
        }
        assert_eq!(found, expected, "batches of {length}");
        assert_eq!(table.examined() - before, one_by_one, "batches of {length}");
    }
    for v6 in [false, true] {
        let mut found = vec![Some(PcbId(9)); keys.len()];
        let (mut v4s, mut v6s, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        for (key, expected) in keys.iter().zip(&expected) {
            match key {
                Key::V4(key) if !v6 => v4s.push(*key),
                Key::V6(key) if v6 => v6s.push(*key),
                _ => continue,
            }
            wanted.push(*expected);
        }
        let found = &mut found[..wanted.len()];
        if v6 {
            table.find_batch6(&v6s, found)
        } else {
            table.find_batch4(&v4s, found)
        }
        assert_eq!(found, wanted);
    }
}

/// However keys follow on one another, one PCB and hardly more is examined.
#[test]
fn weir_examines_one_pcb_whatever_the_keys() {
    let local = SocketAddr::from(([192, 0, 2, 1], 80));
    type Remote = fn(u32) -> SocketAddr;
    let patterns: [(&str, Remote); 5] = [
        ("addresses in turn", |n| {
            SocketAddr::new(Ipv4Addr::from_bits(0x0a00_0000 + n).into(), 40_000)
        }),
        ("one port in 2^16", |n| {
            SocketAddr::new(Ipv4Addr::from_bits(n.rotate_left(16)).into(), 1)
        }),
        ("all ports of few addresses", |n| {
            SocketAddr::new(
                Ipv4Addr::from_bits(0x0a00_0000 + (n >> 16)).into(),
                n as u16,
            )
        }),
        ("multiples of a large number", |n| {
            SocketAddr::new(Ipv4Addr::from_bits(n.wrapping_mul(0x0100_0193)).into(), 7)
        }),
        ("bits of address and port that cancel out", |n| {
            SocketAddr::new(
                Ipv4Addr::from_bits((n & 0xffff) | ((n >> 16) << 20)).into(),
                n as u16,
            )
        }),
    ];
    for seed in 0..4 {
        for (pattern, remote) in patterns {
            let mut table = Weir::new(seed);
            let count = 30_000;
            let keys: Vec<Key> = (0..count)
                .map(|n| Key::new(local, remote(n)).unwrap())
                .collect();
            for (index, &key) in keys.iter().enumerate() {
                table.insert(key, PcbId(index as u32)).unwrap();
            }
            for (index, key) in keys.iter().enumerate() {
                assert_eq!(table.find(key), Some(PcbId(index as u32)));
            }
            let each = table.examined() as f64 / f64::from(count);
            assert!(each < 1.02, "seed {seed}, {pattern}: {each} examined");
        }
    }
}

/// Any secret does: keys in steps, by which a hash with a bad secret would put
/// many into few places, examined by hundreds of secrets.
#[test]
fn no_secret_is_a_bad_one() {
    let steps: Vec<u32> = (0..32).step_by(3).map(|bit| 1 << bit).collect();
    let mut worst = 0.0_f64;
    for seed in 0..25_u128 {
        for &step in &steps {
            let mut table = Weir::new(seed << 64 | 0x77);
            let count = 2000_u32;
            let keys: Vec<Key> = (0..count)
                .map(|n| remote_key(n.wrapping_mul(step), (n >> 7) as u16 ^ n as u16))
                .collect();
            let mut entered = 0;
            for (index, &key) in keys.iter().enumerate() {
                entered += u32::from(table.insert(key, PcbId(index as u32)).is_ok());
            }
            let before = table.examined();
            keys.iter()
                .for_each(|key| assert!(table.find(key).is_some()));
            let each = (table.examined() - before) as f64 / f64::from(count);
            worst = worst.max(each);
            assert!(each < 1.05, "seed {seed}, steps of {step}: {each} examined");
            assert!(entered > 0);
        }
    }
    println!("at worst {worst} examined");
}

#[test]
fn weir_forgets_what_is_removed_at_any_size() {
    let mut table = Weir::new(3);
    for v6 in [false, true] {
        for index in 0..5000 {
            table.insert(key(v6, index), PcbId(index)).unwrap();
        }
    }
    for index in (0..5000).filter(|index| index % 7 != 0) {
        assert_eq!(
            table.remove(&key(index % 2 == 0, index)),
            Some(PcbId(index))
        );
    }
    for index in 0..5000 {
        let gone = index % 7 != 0;
        assert_eq!(table.find(&key(index % 2 == 0, index)).is_none(), gone);
        assert_eq!(table.find(&key(index % 2 == 1, index)), Some(PcbId(index)));
    }
}

#[test]
fn the_most_exact_listener_wins_in_constant_time() {
    let mut listeners = Listeners::new(9);
    let one: IpAddr = [192, 0, 2, 1].into();
    let two: IpAddr = [192, 0, 2, 2].into();
    let any4: IpAddr = Ipv4Addr::UNSPECIFIED.into();
    let any6: IpAddr = Ipv6Addr::UNSPECIFIED.into();
    let six: IpAddr = Ipv6Addr::LOCALHOST.into();
    listeners.insert(one, 80, PcbId(1)).unwrap();
    listeners.insert(any4, 80, PcbId(2)).unwrap();
    listeners.insert_dual(81, PcbId(3)).unwrap();
    listeners.insert(one, 81, PcbId(4)).unwrap();
    listeners.insert(any6, 82, PcbId(5)).unwrap();
    let table = [
        (one, 80, Some(1)),
        (two, 80, Some(2)),
        (six, 80, None),
        (one, 81, Some(4)),
        (two, 81, Some(3)),
        (six, 81, Some(3)),
        (two, 82, None),
        (six, 82, Some(5)),
        (six, 83, None),
    ];
    for (local, port, expected) in table {
        assert_eq!(
            listeners.find(local, port),
            expected.map(PcbId),
            "{local} {port}"
        );
    }
    let taken = |pcb| Err(InsertError::Exists(PcbId(pcb)));
    assert_eq!(listeners.insert(one, 80, PcbId(9)), taken(1));
    assert_eq!(listeners.insert(any4, 81, PcbId(9)), taken(3));
    assert_eq!(listeners.insert_dual(80, PcbId(9)), taken(2));
    assert_eq!(listeners.insert_dual(82, PcbId(9)), taken(5));
    assert_eq!(listeners.remove(any6, 81), Some(PcbId(3)));
    assert_eq!(listeners.find(two, 81), None);
    assert_eq!(listeners.remove(any6, 81), None);
    assert_eq!(listeners.insert(any4, 81, PcbId(9)), Ok(()));

    for port in 1000..20_000 {
        listeners.insert(one, port, PcbId(port.into())).unwrap();
    }
    let before = listeners.examined();
    for port in 1000..20_000 {
        assert_eq!(listeners.find(one, port), Some(PcbId(port.into())));
    }
    assert!(listeners.examined() - before < 19_000 * 51 / 50);
}

/// A supply is asked ahead for each segment but the first, and once more if it had none then.
#[test]
fn a_table_takes_memory_from_a_supply_and_does_without() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let supply: ChunkSource = Arc::new(move || {
        let number = count.fetch_add(1, Relaxed);
        // Neither time for the second, ahead for the third, late for the fourth.
        [2, 4]
            .contains(&number)
            .then(|| TableChunk::ready().unwrap())
    });
    let mut table = Weir::new(11);
    table.set_chunk_source(&supply);
    for index in 0..16_000 {
        table.insert(key(false, index), PcbId(index)).unwrap();
    }
    assert_eq!(asked.load(Relaxed), 0, "the first is its own");
    for index in 16_000..160_000 {
        table.insert(key(false, index), PcbId(index)).unwrap();
    }
    // 1.5 connections a bucket, 32,768 buckets a segment.
    assert_eq!(asked.load(Relaxed), 5);
    for index in 0..160_000 {
        assert_eq!(table.find(&key(false, index)), Some(PcbId(index)));
    }
    for index in 0..160_000 {
        assert_eq!(table.remove(&key(false, index)), Some(PcbId(index)));
    }
    assert!(table.is_empty());
}
