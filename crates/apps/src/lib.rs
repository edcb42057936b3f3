//! Network applications on the frames of shared links: an IP router, and the
//! scheduler of output links.
//!
//! - [`router::engine`]: an IPv4 and IPv6 router without I/O; frames in,
//!   verdicts out.
//! - [`router`]: the engine on live links, with routes and addresses of the
//!   host.
//! - [`shape`]: two links, and the scheduler of what leaves each.
//!
//! ```
//! use weir_apps::router::engine::fib::Fib;
//!
//! let mut fib = Fib::<u32>::default();
//! fib.insert(0xc000_0200, 24, 1); // 192.0.2.0/24
//! assert_eq!(fib.lookup(0xc000_0205), 1);
//! assert_eq!(fib.lookup(0xc633_6401), 0); // no route
//! ```
//!
//! Every table of the engine has a limit, which the constant of the table
//! states; [`router::engine`] lists the protocols that the router does not
//! speak.
//!
//! `docs/explanation/forwarding.md` explains the engine; `weir route` and
//! `weir shape` are the commands.

pub mod chain;
pub mod router;
pub mod shape;
