//! TCP/IP without I/O. Time and seeds are passed in; frames and calls go in,
//! frames and events come out.
//!
//! What is here so far is the part everything else leans on: the tables that
//! find a segment's connection.
//!
//! | module | what |
//! |---|---|
//! | [`pcb`] | PCB tables: `bsd`, `mtf`, `sequent` and `weir` behind one trait; listeners |
//! | [`experiment`] | the papers' experiments with them |
//!
//! Not there yet: the protocols themselves (IP, ARP, ND, ICMP, UDP, TCP).

pub mod experiment;
pub mod pcb;
pub mod rng;
