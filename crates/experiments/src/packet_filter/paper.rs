//! What the paper states: J. Mogul, R. Rashid and M. Accetta, "The Packet
//! Filter: An Efficient Mechanism for User-level Network Code", 1987. All in
//! milliseconds, on a MicroVAX-II with Ultrix 1.2 but for §6.1's.

/// Table 6-1, for each size: by packet filter, by UDP.
pub const SEND: [(f64, f64); 2] = [(1.9, 3.1), (3.6, 4.9)];

/// Table 6-8, for each size: demultiplexed in the kernel, in a process.
pub const RECEIVE: [(f64, f64); 2] = [(2.3, 5.0), (4.0, 9.0)];

/// Table 6-9: the same with batches.
pub const RECEIVE_BATCHES: [(f64, f64); 2] = [(1.9, 2.4), (3.5, 5.9)];

/// Table 6-10: instructions of a filter, and the cost of a frame of 128 bytes.
pub const INSTRUCTIONS: [(usize, f64); 4] = [(0, 1.9), (1, 2.0), (9, 2.2), (21, 2.5)];

/// §6.1, on a VAX-11/780: fixed, and for each predicate tested.
pub const LINE: (f64, f64) = (0.8, 0.122);

/// §6.5.3: filters of 21 instructions, and filters with short-circuit
/// operators, before acceptance; filters that are active then.
pub const BREAK_EVEN: &str = "3 filters of 21 instructions before acceptance; about 10 with short-circuit operators, \
     with more than 20 active";
