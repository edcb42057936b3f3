//! Opening many connections at once: McKenney and Dove 1992, §4.
//!
//! A client opens connections to a server as nearly at once as it can, and
//! writes five times 100 bytes on each. Both hosts are whole stacks, and
//! before each the table under test finds the PCB of every segment that comes,
//! as the paper's hosts "C" and "S" did. A connection enters a host's table
//! when its SYN goes or comes.
//!
//! ```text
//!  client: connect, write ─► stack ─► 256 frames ─► table ─► stack: accept, read
//!          stack ◄─ table ◄──────────  256 frames ◄──────────
//! ```
//!
//! Opening and writing take turns, a segment each, for as long as the link has
//! room: so connections that are open write while others still open, as in the
//! paper, and each write leaves as a segment of its own. Writes go round the
//! open connections, once on each: the paper's PCBs examined are half a list
//! for each packet, so that its writes were no trains either.

mod node;

use super::tpca::Algorithm;
use node::Node;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use weir_stack::pcb::Key;
use weir_stack::tcp::{ListenerId, State, TcpId};

/// Connections of one run, at most.
pub const CONNECTIONS_MAX: u32 = 1_000_000;
/// Chains of one table, at most: a list each.
pub const CHAINS_MAX: u32 = 1_000_000;
/// Connections with which a list is still searched: its cost grows with the
/// square.
pub const CONNECTIONS_LISTS_MAX: u32 = 20_000;
/// Writes on each connection, and bytes of one (§4).
pub const WRITES: usize = 5;
/// See [`WRITES`].
pub const WRITE_BYTES: usize = 100;
/// Frames that the link holds in each direction: so the client's SYNs go as
/// fast as the server answers them.
const LINK_FRAMES: usize = 256;
/// Connections from one of the client's addresses, each from a transport port
/// of its own; the next ones come from the next address.
const ADDRESS_CONNECTIONS: u32 = 16_000;
const FIRST_PORT: u16 = 1024;
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(server()), 8000);
/// Without progress for so long, a run is given up: longer than any time-out
/// before a first answer.
const STUCK_NS: u64 = 30_000_000_000;

const fn server() -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 1)
}

/// The scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Connections; 1 to [`CONNECTIONS_MAX`].
    pub connections: u32,
    /// The tables of both hosts.
    pub algorithm: Algorithm,
    /// Chains of Sequent's.
    pub chains: NonZeroU32,
    /// Where all that is random begins.
    pub seed: u64,
}

/// Why there is no result.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetupError {
    /// Too few or too many connections.
    #[error("{0} connections: it takes 1 to {CONNECTIONS_MAX}")]
    Connections(u32),
    /// Too many chains.
    #[error("{0} chains: it takes 1 to {CHAINS_MAX}")]
    Chains(NonZeroU32),
    /// A list would take too long.
    #[error(
        "{0} connections in lists this long: {1} compares in turn; take more chains, or fewer connections"
    )]
    Lists(u32, &'static str),
    /// Both hosts are silent before all is done.
    #[error("{0} of {1} connections were opened, and nothing moves any more")]
    Stuck(u32, u32),
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// From the first SYN to the last SYN-ACK at the client, in nanoseconds.
    pub setup_ns: u64,
    /// Until the server has read all.
    pub total_ns: u64,
    /// PCBs examined by both hosts until the last SYN-ACK.
    pub examined_setup: u64,
    /// PCBs examined by client and server in all.
    pub examined: [u64; 2],
    /// Segments that came to client and server.
    pub segments: [u64; 2],
    /// Bytes that the server has read.
    pub bytes: u64,
}

impl Settings {
    /// Whether they can be run.
    ///
    /// # Errors
    /// If a value is out of its range.
    pub fn check(&self) -> Result<(), SetupError> {
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return Err(SetupError::Connections(self.connections));
        }
        if self.chains.get() > CHAINS_MAX {
            return Err(SetupError::Chains(self.chains));
        }
        let list = match self.algorithm {
            Algorithm::Bsd | Algorithm::Mtf => self.connections,
            Algorithm::Sequent => self.connections / self.chains,
            Algorithm::Weir => 0,
        };
        let most = u64::from(CONNECTIONS_LISTS_MAX).pow(2);
        if u64::from(list) * u64::from(self.connections) > most {
            return Err(SetupError::Lists(self.connections, self.algorithm.name()));
        }
        Ok(())
    }
}

/// Both hosts, and how far they are.
struct Run<'a> {
    connections: u32,
    clock: &'a mut dyn FnMut() -> u64,
    client: Node,
    server: Node,
    listener: ListenerId,
    start_ns: u64,
    /// Connections begun, those answered, and how often each was written on
    /// that is to be written on.
    begun: u32,
    answered: HashSet<TcpId, BuildHasherDefault<DefaultHasher>>,
    writing: VecDeque<(TcpId, usize)>,
    report: Report,
}

/// The client's end of a connection.
fn client_end(index: u32) -> SocketAddr {
    let address = server().to_bits() + 1 + index / ADDRESS_CONNECTIONS;
    let port = FIRST_PORT + (index % ADDRESS_CONNECTIONS) as u16;
    SocketAddr::new(Ipv4Addr::from_bits(address).into(), port)
}

/// The client's addresses.
fn client_addresses(connections: u32) -> impl Iterator<Item = Ipv4Addr> {
    let count = connections.div_ceil(ADDRESS_CONNECTIONS);
    (1..=count).map(|number| Ipv4Addr::from_bits(server().to_bits() + number))
}

/// Opens the connections and writes on them; `clock` gives nanoseconds from
/// any start.
///
/// # Errors
/// If the settings are out of range, or the hosts fall silent.
pub fn run(settings: &Settings, clock: &mut dyn FnMut() -> u64) -> Result<Report, SetupError> {
    settings.check()?;
    let connections = settings.connections;
    let mut server = Node::new(settings, std::iter::once(server()), 1);
    let listener = server.stack.tcp_listen(SERVER, connections as usize);
    let mut run = Run {
        connections,
        client: Node::new(settings, client_addresses(connections), 2),
        server,
        listener: listener.expect("nobody else listens"),
        start_ns: 0,
        begun: 0,
        answered: HashSet::default(),
        writing: VecDeque::new(),
        report: Report::default(),
        clock,
    };
    for address in client_addresses(connections) {
        run.meet(address);
    }
    run.start_ns = (run.clock)();
    run.all()
}

impl Run<'_> {
    /// The hosts learn one another's hardware address by a connection that is
    /// not counted: SYNs would be lost without it.
    fn meet(&mut self, address: Ipv4Addr) {
        let local = SocketAddr::new(address.into(), FIRST_PORT - 1);
        let opened = (self.client.stack).tcp_connect((self.clock)(), Some(local), SERVER);
        let id = opened.expect("a free end of ours");
        for turn in 0..8 {
            let now_ns = (self.clock)();
            if turn == 6 {
                self.client.stack.tcp_abort(now_ns, id);
            }
            self.server.meet(now_ns, &mut self.client);
            self.client.meet(now_ns, &mut self.server);
        }
    }

    fn all(mut self) -> Result<Report, SetupError> {
        let expected = u64::from(self.connections) * (WRITES * WRITE_BYTES) as u64;
        let (mut before, mut moved_ns) = (None, self.start_ns);
        while self.report.bytes < expected {
            self.send();
            let now_ns = (self.clock)();
            self.server.take_from(now_ns, &mut self.client.link);
            self.serve(now_ns);
            self.client.take_from(now_ns, &mut self.server.link);
            self.look();
            let state = (self.client.segments, self.server.segments);
            if before.replace(state) != Some(state) {
                moved_ns = now_ns;
            }
            if now_ns - moved_ns > STUCK_NS {
                let answered = self.answered.len() as u32;
                return Err(SetupError::Stuck(answered, self.connections));
            }
        }
        self.report.total_ns = (self.clock)() - self.start_ns;
        let nodes = [&self.client, &self.server];
        self.report.examined = nodes.map(|node| node.table.examined());
        self.report.segments = nodes.map(|node| node.segments);
        Ok(self.report)
    }

    /// The client sends what it owes, and then opens and writes in turns while
    /// the link has room: a segment at a time, so that no two writes share one.
    fn send(&mut self) {
        let now_ns = (self.clock)();
        loop {
            let client = &mut self.client;
            client.stack.poll(now_ns, &mut client.link);
            if client.link.is_full() {
                return;
            }
            let opened = self.open(now_ns);
            let client = &mut self.client;
            client.stack.poll(now_ns, &mut client.link);
            if client.link.is_full() {
                return;
            }
            if !(self.write() || opened) {
                return;
            }
        }
    }

    /// Begins the next connection; false if there is none.
    fn open(&mut self, now_ns: u64) -> bool {
        if self.begun == self.connections {
            return false;
        }
        let local = client_end(self.begun);
        let opened = self.client.stack.tcp_connect(now_ns, Some(local), SERVER);
        let id = opened.expect("every end is used once");
        let set = self.client.stack.tcp_set_nodelay(id, true);
        set.expect("it was just opened");
        self.client
            .enter(Key::new(local, SERVER).expect("of one version"));
        self.begun += 1;
        true
    }

    /// Writes on the connection whose turn it is; false if there is none.
    fn write(&mut self) -> bool {
        let Some((id, written)) = self.writing.pop_front() else {
            return false;
        };
        let bytes = [written as u8; WRITE_BYTES];
        let taken = self.client.stack.tcp_write(id, &bytes);
        assert_eq!(taken, Ok(WRITE_BYTES), "the buffer holds all writes");
        if written + 1 < WRITES {
            self.writing.push_back((id, written + 1));
        }
        true
    }

    /// The client looks which connections have opened.
    fn look(&mut self) {
        while let Some(id) = self.client.stack.tcp_next_event() {
            let open = self.client.stack.tcp_state(id) == Some(State::Established);
            if open && self.answered.insert(id) {
                self.writing.push_back((id, 0));
            }
        }
        if self.answered.len() as u32 == self.connections && self.report.setup_ns == 0 {
            self.report.setup_ns = ((self.clock)() - self.start_ns).max(1);
            let (client, server) = (&self.client.table, &self.server.table);
            self.report.examined_setup = client.examined() + server.examined();
        }
    }

    /// The server accepts and reads what there is, and answers.
    fn serve(&mut self, now_ns: u64) {
        let server = &mut self.server;
        // Accepted connections are counted here, and read below.
        while server.stack.tcp_accept(now_ns, self.listener).is_ok() {}
        let mut bytes = [0; 4096];
        while let Some(id) = server.stack.tcp_next_event() {
            while let Ok(count @ 1..) = server.stack.tcp_read(id, &mut bytes) {
                self.report.bytes += count as u64;
            }
        }
        server.stack.poll(now_ns, &mut server.link);
    }
}
