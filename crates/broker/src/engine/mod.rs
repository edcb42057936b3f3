//! The engine: the open ports on interfaces. The daemon runs one for all users;
//! a program of the superuser without a broker runs its own.
//!
//! ```text
//!  open ─► policy ─► filter compiled ─► ring set aside ─ ─ ─► bound ─► opened
//!                                       (maybe later)
//! ```
//!
//! Reserving a ring may wait for the kernel, so the engine requests it and
//! reports it later; all else happens at once. An [`InterfaceDemux`]
//! demultiplexes the frames of an interface: in the kernel ([`kernel`]), or in
//! memory.

mod attach_point;
mod fanout;
mod finished;
pub mod kernel;
mod lingering_rings;
pub mod mem;
mod owner;
mod ports;
mod reload;
mod takeover;
mod tx_state;
mod usage;
mod verifier_budget;

pub use attach_point::NATIVE_HOLD;
pub use fanout::limits as fanout_limits;
pub use owner::Owner;
pub use ports::{Engine, Finished, limits};
pub use reload::Reloaded;
pub use takeover::Takeover;

use crate::Bytes;
use crate::interface::InterfaceInfo;
use crate::protocol::{Attach, Refusal};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Weak;
use weir_demux::fanout::Buckets;
use weir_demux::{Binding, BindingId, Filter};
use weir_link::live::{EgressCounts, EgressRules, EgressSocket};

/// The parameters of a port's ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue {
    /// The ring's size: a power of two, of at least a page.
    pub ring: Bytes,
    /// Largest number of bytes delivered of a frame; 0 for all.
    pub snap_len: u32,
    /// Whether frames carry a receive timestamp.
    pub timestamps: bool,
}

/// A reserved ring.
#[derive(Debug)]
pub struct Reserved {
    /// The port's slot in the demultiplexer, which is the number of
    /// [`Target::Port`](weir_demux::Target).
    pub slot: u32,
    /// The reader's descriptors, each with its name.
    pub fds: Vec<(String, OwnedFd)>,
    /// The ring's id, for [`Backend::gone_rings`].
    pub ring: u32,
}

/// The counters of one slot since its reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Number of frames put into the ring.
    pub delivered: u64,
    /// Bytes of these frames on the wire.
    pub bytes: u64,
    /// Number of frames lost because the ring was full.
    pub lost: u64,
}

/// An egress path by which a user sends.
#[derive(Debug)]
pub struct MadePath {
    /// The path's name, which is unique.
    pub name: String,
    /// The sender's end of the path.
    pub end: EgressSocket,
}

/// Demultiplexes the frames of one interface to slots.
pub trait InterfaceDemux {
    /// The present attach point; `None` if not attached yet.
    fn attached(&self) -> Option<Attach>;

    /// The cost of the attached programs to the host, as text: one line for
    /// each.
    fn cost(&self) -> String;

    /// Moves to another attach point; never [`Attach::Auto`].
    ///
    /// # Errors
    /// If the kernel refuses; then the attach point stays. If nothing was attached
    /// before, the refusal may come with the next binding instead; then nothing is.
    fn attach(&mut self, attach: Attach) -> Result<(), Refusal>;

    /// A ring of this many bytes is about to be reserved: making it may begin.
    fn expect_ring(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Starts to reserve a ring; [`reserved`](Self::reserved) returns it later,
    /// with the same token.
    fn reserve(&mut self, token: u32, queue: &Queue);

    /// The rings that became ready since the last call, or the errors.
    fn reserved(&mut self) -> Vec<(u32, Result<Reserved, Refusal>)>;

    /// Adds a binding.
    ///
    /// # Errors
    /// If a limit is reached or the kernel refuses.
    fn bind(&mut self, binding: Binding) -> Result<BindingId, Refusal>;

    /// Replaces the filter of a binding.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind); then bind the old filter again.
    fn rebind(&mut self, id: BindingId, filter: Filter) -> Result<(), Refusal>;

    /// Removes a binding.
    fn unbind(&mut self, id: BindingId);

    /// Makes a fan-out with these buckets; returns the number of its
    /// [`Target::Fanout`](weir_demux::Target).
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    fn add_fanout(&mut self, buckets: &Buckets) -> Result<u32, Refusal>;

    /// Gives buckets of a fan-out to other slots, for every frame from then on.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    fn change_fanout(&mut self, number: u32, buckets: &Buckets) -> Result<(), Refusal>;

    /// Removes a fan-out whose bindings are removed.
    fn remove_fanout(&mut self, number: u32);

    /// Releases a slot whose binding is removed. If the kernel refused to
    /// remove the binding, the slot is not reused until it is removed.
    fn release(&mut self, slot: u32);

    /// The counters of a slot.
    fn counted(&self, slot: u32) -> PortStats;

    /// Adopts a slot and its ring from the former broker; returns the ring's
    /// id, or `None` if there is none. Only before [`resume`](Self::resume).
    fn take_over(&mut self, slot: u32, queue: &Queue) -> Option<u32>;

    /// Replaces the former broker's bindings by those bound since
    /// [adoption](Backend::adopt), for every frame at once, and removes its
    /// other state.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn resume(&mut self) -> Result<(), Refusal>;

    /// Starts a batch of changes. Frames follow the old bindings until
    /// [`commit`](Self::commit).
    fn begin_batch(&mut self);

    /// Makes the changes since [`begin_batch`](Self::begin_batch) effective for
    /// every frame.
    ///
    /// # Errors
    /// If the kernel refuses; the next change tries again.
    fn commit(&mut self) -> Result<(), Refusal>;

    /// Makes dropping this leave all state to the next broker.
    fn hand_over(&mut self);

    /// A reference that expires when rings that were being made at the drop
    /// have released their memory.
    fn life(&self) -> Weak<()>;
}

/// The interfaces of a machine, and their demultiplexers.
pub trait Backend {
    /// The demultiplexer of one interface.
    type Demux: InterfaceDemux;

    /// The interface of that name.
    ///
    /// # Errors
    /// If there is no such interface.
    fn by_name(&mut self, name: &str) -> Result<InterfaceInfo, Refusal>;

    /// The interface with that ifindex; `None` if it is gone.
    fn by_index(&mut self, ifindex: u32) -> Option<InterfaceInfo>;

    /// Makes a demultiplexer for an interface, without ports. It will be attached at `attach`, if
    /// that is known: attaching may begin, as of [`attach`](InterfaceDemux::attach).
    ///
    /// # Errors
    /// If the kernel refuses.
    fn demux(
        &mut self,
        facts: &InterfaceInfo,
        attach: Option<Attach>,
    ) -> Result<Self::Demux, Refusal>;

    /// Adopts the demultiplexer of an interface from the former broker, without
    /// bindings: frames follow the former ones until
    /// [`resume`](InterfaceDemux::resume). `None` if there is none.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn adopt(&mut self, facts: &InterfaceInfo) -> Result<Option<Self::Demux>, Refusal>;

    /// Removes the state of former brokers on interfaces other than `kept`, and
    /// egress paths that were not adopted.
    ///
    /// # Errors
    /// If the kernel refuses; everything else is removed.
    fn sweep(&mut self, kept: &[u32]) -> Result<(), Refusal>;

    /// Prepares an egress path for a user who may send on an interface by these
    /// rules, as far as possible, until
    /// [`end_spare_paths`](Self::end_spare_paths).
    fn prepare_path(&mut self, facts: &InterfaceInfo, rules: EgressRules);

    /// Ends the prepared paths of an interface.
    fn end_spare_paths(&mut self, ifindex: u32);

    /// Starts to make an egress path to an interface, which passes only frames
    /// that the rules allow; [`made_paths`](Self::made_paths) returns it later,
    /// with the same token.
    fn make_path(&mut self, token: u32, facts: &InterfaceInfo, rules: EgressRules);

    /// Cancels the request for a path.
    fn cancel_path(&mut self, token: u32);

    /// The paths made since the last call, or the errors.
    fn made_paths(&mut self) -> Vec<(u32, Result<MadePath, Refusal>)>;

    /// Adopts an egress path of a former broker; returns `false` if it is gone.
    /// Only before [`sweep`](Self::sweep).
    fn adopt_path(&mut self, name: &str) -> bool;

    /// Closes an egress path: it passes no more frames.
    fn retire_path(&mut self, name: &str);

    /// Whether an egress path exists: some process has its socket.
    fn has_path(&self, name: &str) -> bool;

    /// The counters of an egress path.
    fn egress_counts(&self, name: &str) -> EgressCounts;

    /// A socket that sends any frame on an interface, for the superuser.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn sender(&mut self, facts: &InterfaceInfo) -> Result<OwnedFd, Refusal>;

    /// Makes dropping this leave the egress paths to the next broker.
    fn hand_over(&mut self);

    /// Which of the rings with these ids do not exist any more: no process holds
    /// them.
    fn gone_rings(&self, rings: &[u32]) -> Vec<u32>;

    /// The descriptor that is readable when
    /// [`reserved`](InterfaceDemux::reserved) has results.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The descriptor that is readable when an interface has changed.
    fn changes(&self) -> Option<BorrowedFd<'_>>;

    /// Clears [`wake_fd`](Self::wake_fd); call it before reading the results.
    fn clear_wake(&mut self);

    /// Clears [`changes`](Self::changes); call it before checking interfaces.
    fn saw_changes(&mut self);

    /// The inode of the interfaces' network namespace; `None` without one.
    fn namespace(&self) -> Option<u64>;
}
