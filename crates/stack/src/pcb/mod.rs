//! PCB tables: find the connection that a segment belongs to.
//!
//! [`Table`] is the trait of them. A table counts the PCBs that it examines, the
//! measure of McKenney and Dove, "Efficient Demultiplexing of Incoming TCP
//! Packets" (Computing Systems, 1992). [`Weir`] is the stack's table: a keyed
//! hash, and tags that lie beside what they stand for. The paper's tables are in
//! the crate `weir-experiments`.
//!
//! [`Listeners`] finds the listener of an address and port in constant time.
//!
//! ```
//! use weir_stack::pcb::{Key, PcbId, Table, Weir};
//!
//! let mut table = Weir::new(42);
//! let local = "192.0.2.1:80".parse().unwrap();
//! let remote = "198.51.100.7:40000".parse().unwrap();
//! let key = Key::new(local, remote).unwrap();
//! table.insert(key, PcbId(7)).unwrap();
//! assert_eq!(table.find(&key), Some(PcbId(7)));
//! assert_eq!(table.examined(), 1);
//! ```

mod bucket;
mod chunk;
mod hash;
mod interned_addr;
mod key;
mod linear_hash;
mod listeners;
mod weir;

pub use chunk::{ChunkSource, TableChunk};
pub use hash::KeyHash;
pub use key::{Key, Key4, Key6, Tuple};
pub use listeners::Listeners;
pub use weir::Weir;

/// Names a PCB: its place in the array of the stack's PCBs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PcbId(pub u32);

/// Most entries of one table, of each IP version.
pub const ENTRIES_MAX: usize = 1 << 30;

/// Why a PCB was not entered.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertError {
    /// The connection has a PCB already.
    #[error("the connection is already PCB {}: remove it first", .0.0)]
    Exists(PcbId),
    /// The table has [`ENTRIES_MAX`] entries.
    #[error("the table has {ENTRIES_MAX} entries, as many as it takes: close connections first")]
    Full,
    /// The PCB's name is not below [`ENTRIES_MAX`].
    #[error("PCB {} is beyond the names of a table: choose one below {ENTRIES_MAX}", .0.0)]
    Name(PcbId),
}

/// Finds the PCB of a segment by its addresses and transport ports.
///
/// Looking up changes the table: caches are set, lists reordered, and PCBs
/// examined are counted. A PCB is *examined* when its addresses and transport
/// ports are compared with the segment's.
pub trait Table {
    /// Enters a connection.
    ///
    /// # Errors
    /// If it is there already, or the table is full; nothing has changed then.
    fn insert(&mut self, key: Key, pcb: PcbId) -> Result<(), InsertError>;

    /// Takes a connection out. Examines nothing by the count: a stack that
    /// closes a connection has its PCB in hand.
    fn remove(&mut self, key: &Key) -> Option<PcbId>;

    /// The connection's PCB.
    fn find(&mut self, key: &Key) -> Option<PcbId>;

    /// The PCBs of a batch, as [`Table::find`] in turn would find them.
    ///
    /// # Panics
    /// If `found` is not as long as `keys`.
    fn find_batch(&mut self, keys: &[Key], found: &mut [Option<PcbId>]) {
        assert_eq!(keys.len(), found.len(), "one answer a key");
        for (key, found) in keys.iter().zip(found) {
            *found = self.find(key);
        }
    }

    /// Connections there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// PCBs examined by all look-ups so far.
    fn examined(&self) -> u64;
}
