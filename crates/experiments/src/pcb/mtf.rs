//! Crowcroft's proposal: a list that moves what it finds to its front (the
//! 1992 paper, §3.2).

use super::list::{List, NONE, Nodes};
use weir_stack::pcb::{InsertError, Key, PcbId, Table};

/// A linear list in the order of last use.
pub struct Mtf {
    nodes: Nodes,
    list: List,
}

impl Mtf {
    /// A table without connections.
    pub fn new() -> Mtf {
        Mtf {
            nodes: Nodes::default(),
            list: List::EMPTY,
        }
    }
}

impl Default for Mtf {
    fn default() -> Mtf {
        Mtf::new()
    }
}

impl Table for Mtf {
    fn insert(&mut self, key: Key, pcb: PcbId) -> Result<(), InsertError> {
        self.nodes.insert(&mut self.list, key, pcb)
    }

    fn remove(&mut self, key: &Key) -> Option<PcbId> {
        let (_, pcb) = self.nodes.remove(&mut self.list, key)?;
        Some(pcb)
    }

    fn find(&mut self, key: &Key) -> Option<PcbId> {
        match self.nodes.search(self.list, key) {
            NONE => None,
            node => {
                self.nodes.move_to_front(&mut self.list, node);
                Some(self.nodes.pcb(node))
            }
        }
    }

    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn examined(&self) -> u64 {
        self.nodes.examined
    }
}
