//! The trust among processes that share a tap.
//!
//! Members of a tap are processes of one user: both ends of the socket by which
//! a process joins compare the peer's user
//! ([`fd_passing`](crate::shared::fd_passing)). Each member maps the memory of
//! all frames and every ring for reading and writing. Members trust each other
//! with the bytes of frames: a member that writes to a chunk that it does not
//! own changes a frame while another member uses it, and by the chunk's owner
//! word it can have two other members use the chunk at once. Whatever a member
//! writes, no pool has a chunk twice, since each tracks its own chunks in a
//! private bitmap. `docs/explanation/crash-safety.md` lists what a hostile
//! member can do; copies of frames would not end all of that, since the C
//! library keeps its list of robust locks in the shared page.
#![allow(unsafe_code)] // The promise of whom the process trusts.

use std::os::fd::OwnedFd;
use weir_link::xdp::{Xsk, XskError};
use weir_ring::umem::UmemError;
use weir_ring::{RingSizes, Umem, XskRings};

/// Opens the memory of a tap, as a member passes it to a process that joins.
pub(crate) fn memory(given: OwnedFd) -> Result<Umem, UmemError> {
    // SAFETY: the descriptor comes from a process of this user or of root,
    // which shares a tap; all members run this crate's code on the memory.
    unsafe { Umem::open(given) }
}

/// Opens a socket of a tap with this memory, passed in the same way.
pub(crate) fn socket(
    given: OwnedFd,
    sizes: RingSizes,
    umem: &Umem,
) -> Result<(Xsk, XskRings), XskError> {
    // SAFETY: as above; the member has bound the socket to the tap's memory,
    // and all members take the locks of its rings.
    unsafe { Xsk::of_fd(given, sizes, umem) }
}
