//! Linked lists of PCBs, as the tables of the paper keep them.

use weir_stack::pcb::{ENTRIES_MAX, InsertError, Key, PcbId};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    key: Key,
    pcb: PcbId,
    next: u32,
    before: u32,
}

/// The nodes of all lists of a table, linked by number.
#[derive(Default)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    /// Nodes that may be used again.
    free: Vec<u32>,
    pub(super) examined: u64,
}

/// A list, by its first node.
#[derive(Clone, Copy)]
pub(super) struct List {
    head: u32,
}

impl List {
    pub(super) const EMPTY: List = List { head: NONE };
}

impl Nodes {
    /// Nodes on lists.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    pub(super) fn pcb(&self, node: u32) -> PcbId {
        self.nodes[node as usize].pcb
    }

    /// Whether a node, if it is one, is this connection's: examines it.
    pub(super) fn is(&mut self, node: u32, key: &Key) -> bool {
        if node == NONE {
            return false;
        }
        self.examined += 1;
        self.nodes[node as usize].key == *key
    }

    /// The connection's node on a list, [`NONE`] if it has none; counts what
    /// it examines.
    pub(super) fn search(&mut self, list: List, key: &Key) -> u32 {
        let (node, examined) = self.walk(list, key);
        self.examined += examined;
        node
    }

    /// The connection's node, and how many were compared.
    fn walk(&self, list: List, key: &Key) -> (u32, u64) {
        let (mut at, mut examined) = (list.head, 0);
        while at != NONE {
            let node = &self.nodes[at as usize];
            examined += 1;
            if node.key == *key {
                break;
            }
            at = node.next;
        }
        (at, examined)
    }

    /// Puts a connection at a list's front, where BSD puts new ones.
    pub(super) fn insert(
        &mut self,
        list: &mut List,
        key: Key,
        pcb: PcbId,
    ) -> Result<(), InsertError> {
        let (node, _) = self.walk(*list, &key);
        if node != NONE {
            return Err(InsertError::Exists(self.pcb(node)));
        }
        if self.len() >= ENTRIES_MAX {
            return Err(InsertError::Full);
        }
        let node = Node {
            key,
            pcb,
            next: NONE,
            before: NONE,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.link_front(list, index);
        Ok(())
    }

    /// Takes a connection off a list; gives its node, which is free now, and
    /// its PCB.
    pub(super) fn remove(&mut self, list: &mut List, key: &Key) -> Option<(u32, PcbId)> {
        let (node, _) = self.walk(*list, key);
        if node == NONE {
            return None;
        }
        self.unlink(list, node);
        self.free.push(node);
        Some((node, self.pcb(node)))
    }

    /// Moves a node of a list to its front.
    pub(super) fn move_to_front(&mut self, list: &mut List, node: u32) {
        if list.head != node {
            self.unlink(list, node);
            self.link_front(list, node);
        }
    }

    fn link_front(&mut self, list: &mut List, index: u32) {
        let head = list.head;
        self.nodes[index as usize].next = head;
        self.nodes[index as usize].before = NONE;
        if head != NONE {
            self.nodes[head as usize].before = index;
        }
        list.head = index;
    }

    fn unlink(&mut self, list: &mut List, index: u32) {
        let Node { next, before, .. } = self.nodes[index as usize];
        match before {
            NONE => list.head = next,
            _ => self.nodes[before as usize].next = next,
        }
        if next != NONE {
            self.nodes[next as usize].before = before;
        }
    }
}
