//! Sequent: hash chains, each a list with a one-entry cache (the 1992 paper,
//! §3.3, figure 8).

use super::list::{List, NONE, Nodes};
use std::num::NonZeroU32;
use weir_stack::pcb::KeyHash;
use weir_stack::pcb::{InsertError, Key, PcbId, Table};

#[derive(Clone, Copy)]
struct Chain {
    list: List,
    /// The node found last on this chain.
    cached: u32,
}

/// Sequent's table with a fixed number of chains; 19 was the installation's
/// default.
pub struct Sequent {
    nodes: Nodes,
    chains: Box<[Chain]>,
    hash4: KeyHash<1>,
    hash6: KeyHash<4>,
}

impl Sequent {
    /// A table without connections, with `chains` chains. The paper leaves
    /// the hash open; this is the one of [`weir_stack::pcb::Weir`], keyed by `seed`.
    pub fn new(chains: NonZeroU32, seed: u128) -> Sequent {
        let chain = Chain {
            list: List::EMPTY,
            cached: NONE,
        };
        Sequent {
            nodes: Nodes::default(),
            chains: vec![chain; chains.get() as usize].into(),
            hash4: KeyHash::new(seed),
            hash6: KeyHash::new(seed),
        }
    }

    fn chain(&self, key: &Key) -> usize {
        let hash = match key {
            Key::V4(key) => self.hash4.hash(key),
            Key::V6(key) => self.hash6.hash(key),
        };
        // The hash as a fraction of 2^64, times the number of chains.
        ((u128::from(hash) * self.chains.len() as u128) >> 64) as usize
    }
}

impl Table for Sequent {
    fn insert(&mut self, key: Key, pcb: PcbId) -> Result<(), InsertError> {
        let chain = self.chain(&key);
        self.nodes.insert(&mut self.chains[chain].list, key, pcb)
    }

    fn remove(&mut self, key: &Key) -> Option<PcbId> {
        let index = self.chain(key);
        let chain = &mut self.chains[index];
        let (node, pcb) = self.nodes.remove(&mut chain.list, key)?;
        if chain.cached == node {
            chain.cached = NONE;
        }
        Some(pcb)
    }

    fn find(&mut self, key: &Key) -> Option<PcbId> {
        let index = self.chain(key);
        let chain = &mut self.chains[index];
        if !self.nodes.is(chain.cached, key) {
            match self.nodes.search(chain.list, key) {
                NONE => return None,
                node => chain.cached = node,
            }
        }
        Some(self.nodes.pcb(chain.cached))
    }

    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn examined(&self) -> u64 {
        self.nodes.examined
    }
}
