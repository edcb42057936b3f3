//! Round trips and transfers between two of our hosts: all bytes arrive, and
//! by `Opt` on the fast path.

use weir_experiments::adapter::{End, Stalled, Transport, WeirHost, pair, round_trips, transfer};
use weir_stack::iface::Mode;

const START_NS: u64 = 1_000_000_000;

/// A clock of which each look takes a microsecond.
fn clock() -> impl FnMut() -> u64 {
    let mut now_ns = START_NS;
    move || {
        now_ns += 1000;
        now_ns
    }
}

fn ends(mode: Mode, transport: Transport) -> (WeirHost, WeirHost) {
    pair(mode, transport, 1996, START_NS)
}

#[test]
fn each_part_of_a_round_trip_is_measured_and_a_look_at_the_clock_is_not() {
    for transport in [Transport::Tcp, Transport::Udp] {
        for mode in [Mode::Mux, Mode::Opt] {
            let (mut client, mut server) = ends(mode, transport);
            let split = round_trips(&mut client, &mut server, 50, 1, &mut clock()).unwrap();
            // Two looks are a microsecond apart, and nothing else takes time.
            assert_eq!(split.round_trip_ns(), 0.0, "{split:?}");
        }
    }
}

/// An end whose every call takes time.
struct Slow<'a>(WeirHost, &'a std::cell::Cell<u64>, [u64; 4]);

impl Slow<'_> {
    fn spend(&self, what: usize) {
        self.1.set(self.1.get() + self.2[what]);
    }
}

impl End for Slow<'_> {
    fn write(&mut self, now_ns: u64, bytes: &[u8]) -> usize {
        self.spend(0);
        self.0.write(now_ns, bytes)
    }

    fn read(&mut self, now_ns: u64, out: &mut [u8]) -> usize {
        let count = self.0.read(now_ns, out);
        self.1.set(self.1.get() + self.2[1] * u64::from(count > 0));
        count
    }

    fn run(&mut self, now_ns: u64) {
        self.0.run(now_ns);
    }

    fn arrive(&mut self, now_ns: u64, frame: &[u8]) {
        self.spend(2);
        self.0.arrive(now_ns, frame);
    }

    fn leave(&mut self, give: &mut dyn FnMut(&[u8])) {
        self.spend(3);
        self.0.leave(give);
    }
}

/// What the client and the server take goes to their parts, and what the link
/// takes to none.
#[test]
fn time_goes_to_the_part_that_takes_it() {
    let (client, server) = ends(Mode::Opt, Transport::Udp);
    let time = std::cell::Cell::new(START_NS);
    let mut client = Slow(client, &time, [10, 200, 3000, 100_000]);
    let mut server = Slow(server, &time, [40, 500, 6000, 100_000]);
    let mut clock = || time.get();
    let split = round_trips(&mut client, &mut server, 20, 1, &mut clock).unwrap();
    assert_eq!(split.client_send_ns, 10.0);
    assert_eq!(split.server_ns, 6540.0);
    assert_eq!(split.client_receive_ns, 3200.0);
}

#[test]
fn opt_takes_the_fast_path_and_mux_does_not() {
    for (mode, fast) in [(Mode::Mux, false), (Mode::Opt, true)] {
        let (mut client, mut server) = ends(mode, Transport::Tcp);
        round_trips(&mut client, &mut server, 100, 1, &mut clock()).unwrap();
        let (by_filter, standard) = server.segments();
        assert_eq!(by_filter >= 99, fast, "{mode:?} {by_filter} {standard}");
        assert_eq!(standard >= 99, !fast, "{mode:?} {by_filter} {standard}");
    }
}

#[test]
fn messages_of_every_size_arrive() {
    for transport in [Transport::Tcp, Transport::Udp] {
        for len in [1, 100, 1472, 5000, 60_000] {
            let (mut client, mut server) = ends(Mode::Opt, transport);
            let total = 20 * len;
            let ns = transfer(&mut client, &mut server, len, total, &mut clock());
            assert!(ns.unwrap() > 0, "{transport:?} {len}");
        }
    }
}

/// An end whose link loses everything.
struct Deaf(WeirHost);

impl End for Deaf {
    fn write(&mut self, now_ns: u64, bytes: &[u8]) -> usize {
        self.0.write(now_ns, bytes)
    }

    fn read(&mut self, now_ns: u64, out: &mut [u8]) -> usize {
        self.0.read(now_ns, out)
    }

    fn run(&mut self, now_ns: u64) {
        self.0.run(now_ns);
    }

    fn arrive(&mut self, _: u64, _: &[u8]) {}

    fn leave(&mut self, give: &mut dyn FnMut(&[u8])) {
        self.0.leave(give);
    }
}

#[test]
fn a_link_that_loses_everything_is_said() {
    let (client, server) = ends(Mode::Opt, Transport::Udp);
    let (mut client, mut server) = (Deaf(client), Deaf(server));
    let lost = round_trips(&mut client, &mut server, 1, 1, &mut clock());
    assert_eq!(lost, Err(Stalled));
}
