//! The papers' experiments, repeated: what they measure, and the papers' figures.
//!
//! | module | paper |
//! |---|---|
//! | [`packet_filter`] | Mogul, Rashid and Accetta, "The Packet Filter", 1987 |
//! | [`protocols`] | the same paper's protocols, §6.3 and 6.4 |
//! | [`pcb`], [`tpca`], [`setup`] | McKenney and Dove, "Efficient Demultiplexing of Incoming TCP Packets", 1992 |
//! | [`adapter`] | Biersack and Rütsche, "Demultiplexing on the ATM Adapter", 1996 |
//!
//! `weir experiment` runs them and prints their figures. The measurements of the
//! NetTap paper (2000) are those of `weir lab rfc2544`, and have no module here.
//! Only the binary uses this crate.
//!
//! The 1992 paper states that 4.3BSD-Reno's table examines 1,001 PCBs a look-up
//! under the load of 2,000 users, and its equations say so:
//!
//! ```
//! use std::num::NonZeroU32;
//! use weir_experiments::tpca::{Algorithm, Settings, analysis};
//!
//! let settings = Settings {
//!     users: 2000,
//!     chains: NonZeroU32::MIN,
//!     response_s: 0.2,
//!     seed: 1992,
//! };
//! let cost = analysis::cost(Algorithm::Bsd, &settings);
//! assert_eq!(cost.mean().round(), 1001.0);
//! ```

pub mod adapter;
pub mod packet_filter;
pub mod pcb;
pub mod protocols;
pub mod setup;
pub mod tpca;
