//! Opening many connections at once: McKenney and Dove 1992, §4.
//!
//! A client opens connections to a server as nearly at once as it can, and
//! writes five times 100 bytes on each. Both hosts are whole stacks, and
//! before each the table under test finds the PCB of every segment that comes,
//! as the paper's hosts "C" and "S" did. A connection enters a host's table
//! when its SYN goes or comes.

use super::tpca::Algorithm;
use crate::pcb::{Bsd, Key, Mtf, PcbId, Sequent, Table, Weir};
use crate::stack::Outlet;
use crate::tcp::{State, TcpConfig, TcpId};
use crate::{Config, Stack};
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use weir_wire::ethernet::Address;

/// Connections of one run, at most.
pub const CONNECTIONS_MAX: u32 = 1_000_000;
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
/// Connections to one of the server's transport ports.
const PORT_CONNECTIONS: u32 = 20_000;
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Turns without progress after which a run is given up.
const IDLE_TURNS_MAX: u32 = 1_000_000;

/// What is run.
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
    /// A list would take too long.
    #[error(
        "{0} connections in lists this long: {1} compares in turn; take more chains, or fewer connections"
    )]
    Lists(u32, &'static str),
    /// Both hosts are silent before all is done.
    #[error("{0} of {1} connections were opened, and nothing moves any more")]
    Stuck(u32, u32),
}

/// What came of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

    fn table(&self, purpose: u64) -> Box<dyn Table> {
        let key = u128::from(self.seed) << 64 | u128::from(purpose);
        match self.algorithm {
            Algorithm::Bsd => Box::new(Bsd::new()),
            Algorithm::Mtf => Box::new(Mtf::new()),
            Algorithm::Sequent => Box::new(Sequent::new(self.chains, key)),
            Algorithm::Weir => Box::new(Weir::new(key)),
        }
    }
}

/// One direction of the link.
#[derive(Default)]
struct Wire(VecDeque<Vec<u8>>);

impl Outlet for Wire {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.0.len() >= LINK_FRAMES {
            return None;
        }
        self.0.push_back(vec![0; len]);
        self.0.back_mut().map(Vec::as_mut_slice)
    }

    fn submit(&mut self) {}
}

/// A host with the table under test before it.
struct Node {
    stack: Stack,
    table: Box<dyn Table>,
    entered: u32,
    segments: u64,
    link: Wire,
}

/// The ends of a TCP segment in a frame: destination's first, which is ours.
fn ends(frame: &[u8]) -> Option<(Key, u8)> {
    let is_tcp = frame.len() >= 54 && frame[12..15] == [8, 0, 0x45] && frame[23] == 6;
    if !is_tcp {
        return None;
    }
    let end = |address: usize, port: usize| {
        let octets: [u8; 4] = frame[address..address + 4].try_into().expect("four");
        let port = u16::from_be_bytes([frame[port], frame[port + 1]]);
        SocketAddr::new(IpAddr::V4(octets.into()), port)
    };
    Some((Key::new(end(30, 36), end(26, 34))?, frame[47]))
}

const SYN: u8 = 2;
const ACK: u8 = 16;

impl Node {
    fn new(settings: &Settings, address: Ipv4Addr, last: u8) -> Node {
        let prefix = crate::Prefix::new(address.into(), 24).expect("24 bits of 32");
        let config = Config::new(Address([2, 0, 0, 0, 0, last])).address(prefix);
        let seed = u128::from(settings.seed) << 8 | u128::from(last);
        let mut stack = Stack::new(&config, seed).expect("one address is no contradiction");
        stack.tcp_configure(TcpConfig {
            send_buffer: 4096,
            receive_buffer: 65_535,
            ..TcpConfig::default()
        });
        Node {
            stack,
            table: settings.table(last.into()),
            entered: 0,
            segments: 0,
            link: Wire::default(),
        }
    }

    fn enter(&mut self, key: Key) {
        if self.table.insert(key, PcbId(self.entered)).is_ok() {
            self.entered += 1;
        }
    }

    /// Takes a frame: the table finds its PCB first.
    fn take(&mut self, now_ns: u64, frame: &[u8]) {
        if let Some((key, flags)) = ends(frame) {
            self.segments += 1;
            let known = self.table.find(&key).is_some();
            if !known && flags & (SYN | ACK) == SYN {
                self.enter(key);
            }
        }
        self.stack.receive(now_ns, frame);
    }
}

/// Both hosts, and how far they are.
struct Run<'a> {
    settings: &'a Settings,
    clock: &'a mut dyn FnMut() -> u64,
    client: Node,
    server: Node,
    /// Connections begun, those answered, and bytes to be written on each.
    begun: u32,
    answered: HashSet<TcpId, BuildHasherDefault<DefaultHasher>>,
    writing: VecDeque<(TcpId, usize)>,
    bytes: u64,
    report: Report,
}

/// Opens the connections and writes on them; `clock` gives nanoseconds from
/// any start.
///
/// # Errors
/// If the settings are out of range, or the hosts fall silent.
pub fn run(settings: &Settings, clock: &mut dyn FnMut() -> u64) -> Result<Report, SetupError> {
    settings.check()?;
    let run = Run {
        settings,
        clock,
        client: Node::new(settings, CLIENT, 2),
        server: Node::new(settings, SERVER, 1),
        begun: 0,
        answered: HashSet::default(),
        writing: VecDeque::new(),
        bytes: 0,
        report: Report {
            setup_ns: 0,
            total_ns: 0,
            examined_setup: 0,
            examined: [0; 2],
            segments: [0; 2],
            bytes: 0,
        },
    };
    run.all()
}

impl Run<'_> {
    fn port(&self, index: u32) -> u16 {
        8000 + (index / PORT_CONNECTIONS) as u16
    }

    fn all(mut self) -> Result<Report, SetupError> {
        let connections = self.settings.connections;
        let mut listeners = Vec::new();
        for index in (0..connections).step_by(PORT_CONNECTIONS as usize) {
            let local = SocketAddr::new(SERVER.into(), self.port(index));
            let backlog = PORT_CONNECTIONS as usize;
            let listener = self.server.stack.tcp_listen(local, backlog);
            listeners.push(listener.expect("a free transport port of ours"));
        }
        let expected = u64::from(connections) * (WRITES * WRITE_BYTES) as u64;
        self.meet();
        let start_ns = (self.clock)();
        let mut idle = 0;
        while self.bytes < expected {
            let before = (self.begun, self.client.segments, self.server.segments);
            self.open();
            self.carry();
            self.write(start_ns);
            for listener in &listeners {
                // What is accepted is told of, and read below.
                while self
                    .server
                    .stack
                    .tcp_accept((self.clock)(), *listener)
                    .is_ok()
                {}
            }
            self.read();
            let after = (self.begun, self.client.segments, self.server.segments);
            idle = if before == after { idle + 1 } else { 0 };
            if idle > IDLE_TURNS_MAX {
                let answered = self.answered.len() as u32;
                return Err(SetupError::Stuck(answered, connections));
            }
        }
        self.report.total_ns = (self.clock)() - start_ns;
        let nodes = [&self.client, &self.server];
        self.report.examined = nodes.map(|node| node.table.examined());
        self.report.segments = nodes.map(|node| node.segments);
        self.report.bytes = self.bytes;
        Ok(self.report)
    }

    /// The hosts learn one another's hardware address by a connection that is
    /// not counted: SYNs would be lost for want of it.
    fn meet(&mut self) {
        let remote = SocketAddr::new(SERVER.into(), self.port(0));
        let opened = self.client.stack.tcp_connect((self.clock)(), None, remote);
        for turn in 0..16 {
            let now_ns = (self.clock)();
            let (client, server) = (&mut self.client, &mut self.server);
            if let (Ok(id), 8) = (opened, turn) {
                client.stack.tcp_abort(now_ns, id);
            }
            client.stack.poll(now_ns, &mut client.link);
            for frame in client.link.0.drain(..) {
                server.stack.receive(now_ns, &frame);
            }
            server.stack.poll(now_ns, &mut server.link);
            for frame in server.link.0.drain(..) {
                client.stack.receive(now_ns, &frame);
            }
        }
    }

    /// Begins connections, as many as the link has room for.
    fn open(&mut self) {
        let now_ns = (self.clock)();
        for _ in 0..LINK_FRAMES {
            if self.begun == self.settings.connections {
                return;
            }
            let remote = SocketAddr::new(SERVER.into(), self.port(self.begun));
            let opened = self.client.stack.tcp_connect(now_ns, None, remote);
            let Ok(id) = opened else {
                return; // Transport ports are short for a moment.
            };
            // What the paper's writes are: a segment each.
            let _ = self.client.stack.tcp_set_nodelay(id, true);
            if let Some((local, remote)) = self.client.stack.tcp_ends(id)
                && let Some(key) = Key::new(local, remote)
            {
                self.client.enter(key);
            }
            self.begun += 1;
        }
    }

    /// Frames go both ways.
    fn carry(&mut self) {
        let now_ns = (self.clock)();
        let (client, server) = (&mut self.client, &mut self.server);
        client.stack.poll(now_ns, &mut client.link);
        while let Some(frame) = client.link.0.pop_front() {
            server.take(now_ns, &frame);
        }
        server.stack.poll(now_ns, &mut server.link);
        while let Some(frame) = server.link.0.pop_front() {
            client.take(now_ns, &frame);
        }
    }

    /// Connections that have opened are written on, once a turn each.
    fn write(&mut self, start_ns: u64) {
        let now_ns = (self.clock)();
        while let Some(id) = self.client.stack.tcp_next_changed() {
            let open = self.client.stack.tcp_state(id) == Some(State::Established);
            if open && self.answered.insert(id) {
                self.writing.push_back((id, 0));
            }
        }
        if self.answered.len() as u32 == self.settings.connections && self.report.setup_ns == 0 {
            self.report.setup_ns = (now_ns - start_ns).max(1);
            let (client, server) = (&self.client.table, &self.server.table);
            self.report.examined_setup = client.examined() + server.examined();
        }
        for _ in 0..self.writing.len() {
            let Some((id, written)) = self.writing.pop_front() else {
                return;
            };
            let bytes = [written as u8; WRITE_BYTES];
            match self.client.stack.tcp_write(id, &bytes) {
                Ok(WRITE_BYTES) if written + 1 == WRITES => {}
                Ok(WRITE_BYTES) => self.writing.push_back((id, written + 1)),
                _ => self.writing.push_back((id, written)),
            }
        }
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        while let Some(id) = self.server.stack.tcp_next_changed() {
            while let Ok(count) = self.server.stack.tcp_read(id, &mut bytes) {
                if count == 0 {
                    break;
                }
                self.bytes += count as u64;
            }
        }
    }
}
