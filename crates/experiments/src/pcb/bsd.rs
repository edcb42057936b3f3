//! BSD: a linear list with a one-entry cache (the 1992 paper, §3.1).

use super::list::{List, NONE, Nodes};
use weir_stack::pcb::{InsertError, Key, PcbId, Table};

/// The list of 4.3BSD-Reno: the PCB found last is looked at first, then the
/// whole list from its front, where new connections are.
pub struct Bsd {
    nodes: Nodes,
    list: List,
    /// The node found last.
    cached: u32,
}

impl Bsd {
    /// A table without connections.
    pub fn new() -> Bsd {
        Bsd {
            nodes: Nodes::default(),
            list: List::EMPTY,
            cached: NONE,
        }
    }
}

impl Default for Bsd {
    fn default() -> Bsd {
        Bsd::new()
    }
}

impl Table for Bsd {
    fn insert(&mut self, key: Key, pcb: PcbId) -> Result<(), InsertError> {
        self.nodes.insert(&mut self.list, key, pcb)
    }

    fn remove(&mut self, key: &Key) -> Option<PcbId> {
        let (node, pcb) = self.nodes.remove(&mut self.list, key)?;
        if self.cached == node {
            self.cached = NONE;
        }
        Some(pcb)
    }

    fn find(&mut self, key: &Key) -> Option<PcbId> {
        if !self.nodes.is(self.cached, key) {
            match self.nodes.search(self.list, key) {
                NONE => return None,
                node => self.cached = node,
            }
        }
        Some(self.nodes.pcb(self.cached))
    }

    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn examined(&self) -> u64 {
        self.nodes.examined
    }
}
