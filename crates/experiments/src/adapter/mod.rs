//! The cost of protocols by the place where they run: Biersack and Rütsche, "Demultiplexing on the
//! ATM Adapter" (1996), §4.
//!
//! A client sends, a server sends back, and of each round trip three parts are
//! measured (figure 6), from the application's call to the link and back:
//!
//! ```text
//!  client            write ─► stack ─┐                  ┌─► stack ─► read
//!                    ╰── C_snd ────╯ │ link        link │ ╰── C_rcv ────╯
//!  server                            └─► stack ─► read, write ─► stack ─┘
//!                                        ╰──────── S_rcv&snd ────────╯
//! ```
//!
//! The link is not measured: it is another in each case. Everything runs on
//! one thread, one part after the other, so that no part waits for another.
//! [`WeirHost`] is our stack, by [`Mode::Mux`](weir_stack::iface::Mode) or
//! [`Mode::Opt`](weir_stack::iface::Mode); an application with another network implements [`End`].
//!
//! [`program`] is an ordinary program with sockets of the standard library: `weir experiment
//! adapter` runs it, unmodified, by the kernel's protocols and by both modes of weir's.

mod kernel_hosts;
pub mod program;
mod weir_host;

pub use kernel_hosts::{Kernel, KernelHostsError, World};
pub use weir_host::{WeirHost, pair};

/// TCP or UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// One connection, on which small segments go out at once.
    Tcp,
    /// Two sockets tied to each other.
    Udp,
}

/// A host with one socket, tied to that of the other host.
pub trait End {
    /// The application sends; gives how many bytes were taken, none if there
    /// is no room.
    fn write(&mut self, now_ns: u64, bytes: &[u8]) -> usize;

    /// The application receives; gives how many bytes, none if there are none.
    fn read(&mut self, now_ns: u64, out: &mut [u8]) -> usize;

    /// The protocols do what is due: what was written goes to the link.
    fn run(&mut self, now_ns: u64);

    /// A frame comes from the link.
    fn arrive(&mut self, now_ns: u64, frame: &[u8]);

    /// The link takes what was handed to it since, and gives each frame away.
    fn leave(&mut self, give: &mut dyn FnMut(&[u8]));
}

/// The parts of one round trip, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Split {
    /// C_snd.
    pub client_send_ns: f64,
    /// S_rcv&snd.
    pub server_ns: f64,
    /// C_rcv.
    pub client_receive_ns: f64,
}

impl Split {
    /// Their sum: the round trip without the link.
    pub fn round_trip_ns(&self) -> f64 {
        self.client_send_ns + self.server_ns + self.client_receive_ns
    }
}

/// A host fell silent: what was sent did not arrive.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("nothing has moved for {IDLE_MAX} turns: frames are lost between the hosts")]
pub struct Stalled;

/// Turns without anything that moves, after which a run is given up.
const IDLE_MAX: u32 = 2_000_000;
/// Bytes that go before those that came are read.
const TURN_BYTES: usize = 64 << 10;
/// Messages of which the same is true.
const TURN_MESSAGES: usize = 32;

/// A frame after the other, on their way.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Frames {
    /// The frames that an end has handed to the link.
    fn of(&mut self, end: &mut impl End) {
        self.bytes.clear();
        self.ends.clear();
        end.leave(&mut |frame| {
            self.bytes.extend_from_slice(frame);
            self.ends.push(self.bytes.len());
        });
    }

    fn to(&self, now_ns: u64, end: &mut impl End) {
        let mut start = 0;
        for &stop in &self.ends {
            end.arrive(now_ns, &self.bytes[start..stop]);
            start = stop;
        }
    }
}

/// Parts of a round trip of `len` bytes each way, the median of each among so
/// many: a trip that is interrupted does not count. `clock` gives nanoseconds,
/// and what a look at it costs is taken off.
///
/// # Errors
/// If frames are lost.
pub fn round_trips(
    client: &mut impl End,
    server: &mut impl End,
    trips: u32,
    len: usize,
    clock: &mut dyn FnMut() -> u64,
) -> Result<Split, Stalled> {
    let look_ns = look_cost(clock);
    let (bytes, mut buffer) = (vec![1; len], vec![0; len]);
    let mut frames = Frames::default();
    let mut all: [Vec<f64>; 3] = Default::default();
    for _ in 0..trips {
        let mut parts = [0.0; 3];
        let start = clock();
        client.write(start, &bytes);
        client.run(start);
        parts[0] += (clock() - start) as f64 - look_ns;
        let (mut echoed, mut back, mut idle) = (0, 0, 0);
        while back < len {
            frames.of(client);
            let start = clock();
            frames.to(start, server);
            let came = echo(start, server, &mut buffer);
            let spent = (clock() - start) as f64 - look_ns;
            // The time after the last byte belongs to no part.
            parts[1] += if echoed < len { spent } else { 0.0 };
            echoed += came;
            frames.of(server);
            let start = clock();
            frames.to(start, client);
            let count = client.read(start, &mut buffer);
            parts[2] += (clock() - start) as f64 - look_ns;
            back += count;
            idle = if came + count > 0 { 0 } else { idle + 1 };
            if idle > IDLE_MAX {
                return Err(Stalled);
            }
        }
        for (all, part) in all.iter_mut().zip(parts) {
            all.push(part);
        }
    }
    let [client_send_ns, server_ns, client_receive_ns] = all.map(median);
    Ok(Split {
        client_send_ns,
        server_ns,
        client_receive_ns,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The server sends back what has come.
fn echo(now_ns: u64, server: &mut impl End, buffer: &mut [u8]) -> usize {
    let mut echoed = 0;
    loop {
        let count = server.read(now_ns, buffer);
        if count == 0 {
            break;
        }
        server.write(now_ns, &buffer[..count]);
        echoed += count;
    }
    server.run(now_ns);
    echoed
}

/// Least difference between two readings of the clock with nothing between them.
fn look_cost(clock: &mut dyn FnMut() -> u64) -> f64 {
    let mut each = || {
        let start = clock();
        clock() - start
    };
    let least = (0..64).map(|_| each()).min();
    least.unwrap_or(0) as f64
}

/// Sends messages of `len` bytes until `total` bytes have come, and gives the
/// nanoseconds that both hosts took for them, one after the other.
///
/// # Errors
/// If frames are lost.
pub fn transfer(
    client: &mut impl End,
    server: &mut impl End,
    len: usize,
    total: usize,
    clock: &mut dyn FnMut() -> u64,
) -> Result<u64, Stalled> {
    let (message, mut buffer) = (vec![1; len], vec![0; len.max(TURN_BYTES)]);
    let mut frames = Frames::default();
    let (mut rest, mut come, mut idle) = (0, 0, 0);
    let mut spent_ns = 0;
    while come < total {
        let start = clock();
        let mut wrote = 0;
        for _ in 0..TURN_MESSAGES {
            // A message of which a part was taken goes on.
            let count = client.write(start, &message[rest..]);
            client.run(start);
            rest = (rest + count) % len;
            wrote += count;
            if count == 0 || rest > 0 || wrote >= TURN_BYTES {
                break;
            }
        }
        client.run(start);
        let mut turn_ns = clock() - start;
        frames.of(client);
        let start = clock();
        frames.to(start, server);
        let mut came = 0;
        loop {
            let count = server.read(start, &mut buffer);
            came += count;
            if count == 0 {
                break;
            }
        }
        server.run(start);
        turn_ns += clock() - start;
        frames.of(server);
        let start = clock();
        frames.to(start, client);
        turn_ns += clock() - start;
        // Turns in which both wait for a timer of the other's cost nothing.
        let moved = wrote + came > 0;
        spent_ns += if moved { turn_ns } else { 0 };
        idle = if moved { 0 } else { idle + 1 };
        if idle > IDLE_MAX {
            return Err(Stalled);
        }
        come += came;
    }
    Ok(spent_ns)
}
