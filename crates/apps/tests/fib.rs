//! Longest-prefix match against a linear search, through any changes.

use proptest::prelude::*;
use std::collections::HashMap;
use std::hash::Hash;
use weir_apps::router::engine::fib::{Fib, Key};
use weir_lab::rng::Rng;

/// The oracle: every prefix, looked through.
#[derive(Default)]
struct Linear<K>(Vec<(K, u8, u32)>);

impl<K: Key> Linear<K> {
    fn insert(&mut self, key: K, len: u8, value: u32) {
        self.remove(key, len);
        self.0.push((key.masked(len), len, value));
    }

    fn remove(&mut self, key: K, len: u8) {
        self.0
            .retain(|route| (route.0, route.1) != (key.masked(len), len));
    }

    fn lookup(&self, key: K) -> u32 {
        let matching = self
            .0
            .iter()
            .filter(|(prefix, len, _)| key.masked(*len) == *prefix);
        matching
            .max_by_key(|route| route.1)
            .map_or(0, |route| route.2)
    }
}

/// A change: what is inserted, or nothing for a removal; how far the table
/// may then work.
type Change<K> = (K, u8, Option<u32>, u32);

/// Keys that share beginnings, so that prefixes nest.
fn near_v4() -> impl Strategy<Value = u32> {
    (0..4u32, any::<u32>(), 0..32u32)
        .prop_map(|(top, low, keep)| top << 30 | (low & (u32::MAX >> 2)) >> keep.min(29))
}

fn near_v6() -> impl Strategy<Value = u128> {
    (0..3u128, any::<u128>(), 0..120u32)
        .prop_map(|(top, low, keep)| top << 125 | (low & (u128::MAX >> 3)) >> keep)
}

macro_rules! check {
    ($changes:expr, $keys:expr, $type:ty) => {{
        let mut fib = Fib::<$type>::default();
        let mut linear = Linear::<$type>::default();
        for (key, len, value, work) in $changes {
            match value {
                Some(value) => {
                    fib.insert(key, len, value);
                    linear.insert(key, len, value);
                }
                None => {
                    fib.remove(key, len);
                    linear.remove(key, len);
                }
            }
            fib.rebuild_some(work);
            prop_assert_eq!(fib.len(), linear.0.len());
        }
        while !fib.is_up_to_date() {
            fib.rebuild_some(4096);
        }
        // Where prefixes begin and end, and anywhere.
        let edges = linear.0.iter().flat_map(|(key, len, _)| {
            let last = !(<$type>::MAX.masked(*len)) | *key;
            [*key, last, key.wrapping_sub(1), last.wrapping_add(1)]
        });
        let keys: Vec<$type> = edges.chain($keys).collect();
        let mut found = vec![0; keys.len()];
        fib.lookup_batch(&keys, &mut found);
        for (key, found) in keys.iter().zip(found) {
            let expected = linear.lookup(*key);
            prop_assert_eq!(fib.lookup(*key), expected, "{:x}", key);
            prop_assert_eq!(found, expected, "{:x} in a batch", key);
        }
    }};
}

fn changes<K: std::fmt::Debug>(
    key: impl Strategy<Value = K>,
    bits: u8,
) -> impl Strategy<Value = Vec<Change<K>>> {
    let value = prop_oneof![3 => (1..9u32).prop_map(Some), 1 => Just(None)];
    // Short ones are rare: each touches thousands of slots.
    let len = prop_oneof![1 => 6..18u8, 1 => Just(0), 12 => 18..=bits];
    prop::collection::vec((key, len, value, 0..50u32), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn v4_is_as_a_linear_search(
        changes in changes(near_v4(), 32),
        keys in prop::collection::vec(near_v4(), 0..40),
    ) {
        check!(changes, keys, u32);
    }

    #[test]
    fn v6_is_as_a_linear_search(
        changes in changes(near_v6(), 128),
        keys in prop::collection::vec(near_v6(), 0..40),
    ) {
        check!(changes, keys, u128);
    }
}

#[test]
fn what_is_removed_leaves_nothing_behind() {
    let mut fib = Fib::<u32>::default();
    let routes = || (0..4000u32).map(|n| (n.wrapping_mul(0x9e37_79b9), 14 + (n % 19) as u8));
    let mut grown = 0;
    for turn in 0..3 {
        for (key, len) in routes() {
            fib.insert(key, len, 1 + turn);
        }
        for (key, len) in routes() {
            fib.remove(key, len);
        }
        while !fib.is_up_to_date() {
            fib.rebuild_some(u32::MAX);
        }
        assert!(fib.is_empty());
        assert!((0..1000u32).all(|n| fib.lookup(n.wrapping_mul(0x0123_4567)) == 0));
        // What the first turn took is enough for the later ones.
        assert!(
            turn == 0 || fib.bytes() <= grown + grown / 8,
            "{grown} → {}",
            fib.bytes()
        );
        grown = grown.max(fib.bytes());
    }
}

#[test]
fn a_short_prefix_is_brought_in_step_by_step() {
    let mut fib = Fib::<u32>::default();
    fib.insert(0x0a00_0000, 24, 7);
    fib.insert(0, 4, 9);
    assert!(!fib.is_up_to_date());
    assert_eq!(fib.lookup(0x0a00_0001), 7, "what is there goes on");
    fib.rebuild_some(1 << 14);
    assert!(fib.is_up_to_date());
    assert_eq!((fib.lookup(0x0a00_0001), fib.lookup(0x0b00_0001)), (7, 9));
    fib.insert(0, 0, 3);
    assert_eq!(fib.lookup(0xf000_0000), 3, "the default is there at once");
}

/// The oracle of a large table: of each length, its prefixes.
struct ByLength<K>(Vec<HashMap<K, u32>>);

impl<K: Key + Hash> ByLength<K> {
    fn lookup(&self, key: K) -> u32 {
        let mut longest_first = (0..=K::BITS).rev();
        let found = longest_first.find_map(|len| self.0[usize::from(len)].get(&key.masked(len)));
        found.copied().unwrap_or(0)
    }
}

/// Inserts routes until there are `count` different ones, then takes every
/// tenth away, and compares look-ups: of a key below each of some routes, and
/// of as many anywhere.
fn full<K: Key + Hash>(
    count: usize,
    mut route: impl FnMut(&mut Rng) -> (K, u8),
    any: fn(&mut Rng) -> K,
) where
    (K, u8): prefix_trie::Prefix,
{
    const SAMPLE: usize = 20_000;
    let mut rng = Rng::new(0xf1b);
    let mut fib = Fib::<K>::default();
    let mut model = ByLength(vec![HashMap::new(); usize::from(K::BITS) + 1]);
    let mut keys = Vec::new();
    while fib.len() < count {
        let (key, len) = route(&mut rng);
        let value = 1 + rng.below(200) as u32;
        fib.insert(key, len, value);
        model.0[usize::from(len)].insert(key.masked(len), value);
        if rng.below(count) < SAMPLE {
            keys.push((key, len));
        }
    }
    for (key, len) in keys.iter().step_by(10) {
        fib.remove(*key, *len);
        model.0[usize::from(*len)].remove(&key.masked(*len));
    }
    while !fib.is_up_to_date() {
        fib.rebuild_some(u32::MAX);
    }
    assert_eq!(fib.len(), model.0.iter().map(HashMap::len).sum::<usize>());
    let anywhere = (0..SAMPLE).map(|_| any(&mut rng)).collect::<Vec<K>>();
    let keys: Vec<K> = keys
        .into_iter()
        .map(|(key, _)| key)
        .chain(anywhere)
        .collect();
    let mut found = vec![0; keys.len()];
    fib.lookup_batch(&keys, &mut found);
    for (key, found) in keys.iter().zip(found) {
        let expected = model.lookup(*key);
        assert_eq!((found, fib.lookup(*key)), (expected, expected), "{key:x?}");
    }
}

/// Lengths as in the Internet's tables, some of each; the top bits of each
/// table are those of 1.0.0.0 to 223.255.255.255, and of 2000::/3.
fn full_tables(v4: usize, v6: usize) {
    let length = |rng: &mut Rng, all: &[u8]| all[rng.below(all.len())];
    full::<u32>(
        v4,
        |rng| {
            let len = length(
                rng,
                &[
                    24, 24, 24, 24, 24, 24, 23, 22, 22, 21, 20, 19, 18, 16, 28, 32,
                ],
            );
            (rng.within(1 << 24..224 << 24), len)
        },
        |rng| rng.bits() as u32,
    );
    let any =
        |rng: &mut Rng| (1 << 125) | u128::from(rng.bits()) << 60 | u128::from(rng.bits() >> 4);
    full::<u128>(
        v6,
        |rng| {
            let len = length(rng, &[48, 48, 48, 44, 40, 36, 32, 32, 29, 64, 128]);
            (any(rng), len)
        },
        any,
    );
}

#[test]
fn large_tables_are_as_their_prefixes_by_length() {
    full_tables(100_000, 20_000);
}

/// The largest that is required: `cargo test --release -p weir-apps --test fib --
/// --ignored`.
#[test]
#[ignore = "takes long without the optimiser"]
fn full_tables_are_as_their_prefixes_by_length() {
    full_tables(1_000_000, 200_000);
}
