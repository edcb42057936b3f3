//! The engine: ports on interfaces. The daemon drives one for everybody, and
//! a program of the superuser without a broker one of its own.
//!
//! ```text
//!  open ─► policy ─► filter compiled ─► ring set aside ─ ─ ─► bound ─► opened
//!                                       (maybe later)
//! ```
//!
//! Setting a ring aside may wait for the kernel, so it is asked for and
//! reported later; everything else is done at once. What divides the frames
//! of an interface is a [`Divider`]: the kernel's, or one in memory.

mod finished;
pub mod kernel;
mod lingering_rings;
pub mod mem;
mod owner;
mod place;
mod ports;
mod reload;
mod takeover;
mod tx_state;
mod usage;
mod verifier_budget;

pub use owner::Owner;
pub use place::NATIVE_HOLD;
pub use ports::{Engine, Finished, limits};
pub use reload::Reloaded;
pub use takeover::Takeover;

use crate::Bytes;
use crate::interface::InterfaceInfo;
use crate::protocol::{Attach, Refusal};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Weak;
use weir_demux::{Binding, BindingId, Filter};
use weir_link::live::{EgressRules, EgressSocket, PathCounts};

/// What the ring of a port is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Its size: a power of two, of at least a page.
    pub ring: Bytes,
    /// Bytes of a frame at most; 0 for all.
    pub snap_len: u32,
    /// Whether frames carry the time they came.
    pub timestamps: bool,
}

/// A ring that was set aside.
#[derive(Debug)]
pub struct Reserved {
    /// The port's place in the divider: [`Target::Port`](weir_demux::Target)'s
    /// number.
    pub slot: u32,
    /// What the reader gets, each with its name.
    pub fds: Vec<(String, OwnedFd)>,
    /// The ring's number, for [`Backend::has_ring`].
    pub ring: u32,
}

/// What a divider has counted for one slot, since it was set aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Frames put into the ring.
    pub delivered: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Frames that there was no room for.
    pub lost: u64,
}

/// A path by which a user sends, that was made.
#[derive(Debug)]
pub struct MadePath {
    /// Its name; no other has it.
    pub name: String,
    /// What the sender gets.
    pub end: EgressSocket,
}

/// Divides the frames of one interface among slots.
pub trait InterfaceDemux {
    /// Where frames are divided at the moment; `None` if nowhere yet.
    fn attached(&self) -> Option<Attach>;

    /// What that costs the host, in words: a line for each program there.
    fn cost(&self) -> String;

    /// Moves to another place; never [`Attach::Auto`].
    ///
    /// # Errors
    /// If the kernel refuses; then it stays where it was.
    fn attach(&mut self, attach: Attach) -> Result<(), Refusal>;

    /// Begins to set a ring aside; [`reserved`](Self::reserved) tells when it
    /// is done, with the same token.
    fn reserve(&mut self, token: u32, queue: &Queue);

    /// The rings that are ready since, or why there is none.
    fn reserved(&mut self) -> Vec<(u32, Result<Reserved, Refusal>)>;

    /// Adds a binding.
    ///
    /// # Errors
    /// If a limit is reached or the kernel refuses.
    fn bind(&mut self, binding: Binding) -> Result<BindingId, Refusal>;

    /// Gives a binding another filter.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind); then bind the old filter again.
    fn rebind(&mut self, id: BindingId, filter: Filter) -> Result<(), Refusal>;

    /// Removes a binding.
    fn unbind(&mut self, id: BindingId);

    /// Gives a slot back, whose binding is removed. Where the kernel has
    /// refused to remove it, the slot is no other's until it has.
    fn release(&mut self, slot: u32);

    /// What was counted.
    fn counted(&self, slot: u32) -> PortStats;

    /// Takes over a slot and its ring from the broker before; gives the
    /// ring's number, if there is one. Only before [`resume`](Self::resume).
    fn take_over(&mut self, slot: u32, queue: &Queue) -> Option<u32>;

    /// Puts what was bound since it was [adopted](Backend::adopt) in the place
    /// of what the broker before had, for every frame at once, and removes
    /// what that had beside.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn resume(&mut self) -> Result<(), Refusal>;

    /// Collects changes of bindings from now on. Frames go where they went,
    /// until [`commit`](Self::commit).
    fn begin_batch(&mut self);

    /// Has what was changed since [`begin_batch`](Self::begin_batch) hold for every frame.
    ///
    /// # Errors
    /// If the kernel refuses; it is tried again with the next change.
    fn commit(&mut self) -> Result<(), Refusal>;

    /// Leaves everything to the next broker when this is dropped.
    fn hand_over(&mut self);

    /// Is gone when the rings that were still being made when this was dropped
    /// have no memory any more.
    fn life(&self) -> Weak<()>;
}

/// A machine's interfaces, and how to divide them.
pub trait Backend {
    /// What divides.
    type Demux: InterfaceDemux;

    /// The interface of that name.
    ///
    /// # Errors
    /// If there is none.
    fn by_name(&mut self, name: &str) -> Result<InterfaceInfo, Refusal>;

    /// The interface of that number; `None` if it is gone.
    fn by_index(&mut self, ifindex: u32) -> Option<InterfaceInfo>;

    /// A divider for an interface, without ports.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn demux(&mut self, facts: &InterfaceInfo) -> Result<Self::Demux, Refusal>;

    /// A divider for an interface as the broker before has left it, without
    /// bindings: its frames go where they went until it
    /// [resumes](Divider::resume). `None` if there is nothing left.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn adopt(&mut self, facts: &InterfaceInfo) -> Result<Option<Self::Demux>, Refusal>;

    /// Removes what earlier brokers have left on interfaces, but for these,
    /// and paths that were not adopted.
    ///
    /// # Errors
    /// If the kernel refuses; the rest is removed.
    fn sweep(&mut self, kept: &[u32]) -> Result<(), Refusal>;

    /// Has a path ready for who is going to send on an interface by these
    /// rules, as far as that is possible, until
    /// [`end_spare_paths`](Self::end_spare_paths).
    fn prepare_path(&mut self, facts: &InterfaceInfo, rules: EgressRules);

    /// Ends what was made ahead for an interface.
    fn end_spare_paths(&mut self, ifindex: u32);

    /// Begins to make a path to an interface, through which come only frames
    /// that the rules allow; [`made_paths`](Self::made_paths) tells when it is
    /// done, with the same token.
    fn make_path(&mut self, token: u32, facts: &InterfaceInfo, rules: EgressRules);

    /// Nobody waits for that path any more.
    fn cancel_path(&mut self, token: u32);

    /// The paths that are made since, or why they are not.
    fn made_paths(&mut self) -> Vec<(u32, Result<MadePath, Refusal>)>;

    /// Takes over a path that an earlier broker has made; `false` if it is
    /// gone. Only before [`sweep`](Self::sweep).
    fn adopt_path(&mut self, name: &str) -> bool;

    /// Lets nothing through a path any more.
    fn retire_path(&mut self, name: &str);

    /// Whether a path is there: somebody has its socket.
    fn has_path(&self, name: &str) -> bool;

    /// What a path has carried.
    fn path_counts(&self, name: &str) -> PathCounts;

    /// A socket that sends on an interface whatever the superuser says.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn sender(&mut self, facts: &InterfaceInfo) -> Result<OwnedFd, Refusal>;

    /// Leaves paths to the next broker when this is dropped.
    fn hand_over(&mut self);

    /// Whether a ring of that number is still there: someone has it.
    fn has_ring(&self, ring: u32) -> bool;

    /// Becomes readable when some divider's [`reserved`](Divider::reserved)
    /// has news.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Becomes readable when some interface changes.
    fn changes(&self) -> Option<BorrowedFd<'_>>;

    /// Makes [`wake_fd`](Self::wake_fd) unreadable again, before looking.
    fn clear_wake(&mut self);

    /// Makes [`changes`](Self::changes) unreadable again, before looking.
    fn saw_changes(&mut self);

    /// The network namespace of the interfaces, by its inode; `None` if they
    /// are in none.
    fn namespace(&self) -> Option<u64>;
}
