//! The PCB tables of McKenney and Dove, "Efficient Demultiplexing of Incoming
//! TCP Packets" (Computing Systems, 1992), behind the trait
//! [`Table`](weir_stack::pcb::Table) of the stack:
//!
//! | table | paper | finds a PCB by |
//! |---|---|---|
//! | [`Bsd`] | §3.1, figure 1 | a list, and a cache of the PCB found last |
//! | [`Mtf`] | §3.2, figures 2 and 3 | a list; a look-up moves its PCB to the front |
//! | [`Sequent`] | §3.3, figure 8 | *h* lists chosen by a hash, a cache for each |
//!
//! They are compared with [`Weir`](weir_stack::pcb::Weir), the table of the
//! stack.
//!
//! ```
//! use weir_experiments::pcb::Bsd;
//! use weir_stack::pcb::{Key, PcbId, Table};
//!
//! let mut table = Bsd::new();
//! let local = "192.0.2.1:80".parse().unwrap();
//! for port in 40_000..40_100 {
//!     let remote = std::net::SocketAddr::from(([198, 51, 100, 7], port));
//!     table.insert(Key::new(local, remote).unwrap(), PcbId(port.into())).unwrap();
//! }
//! let first = Key::new(local, "198.51.100.7:40000".parse().unwrap()).unwrap();
//! assert_eq!(table.find(&first), Some(PcbId(40_000)));
//! assert_eq!(table.examined(), 100, "new connections are at the front of the list");
//! ```

mod bsd;
mod list;
mod mtf;
mod sequent;

pub use bsd::Bsd;
pub use mtf::Mtf;
pub use sequent::Sequent;
