//! TCP Fast Open (RFC 7413) between two stacks: a cookie is asked for, then
//! bytes go in the SYN, and whatever is not taken goes again.

use weir_stack::tcp::{FastOpenServer, ListenerId, State, TcpId};
use weir_stack::{Config, Stack};
use weir_wire::ethernet::Address;

const SERVER: FastOpenServer = FastOpenServer {
    pending_max: 2,
    key: [7; 16],
    without_cookie: false,
};

struct Pair {
    now_ns: u64,
    client: Stack,
    server: Stack,
    listener: ListenerId,
    /// Segments of the server's that are lost.
    mute: bool,
}

impl Pair {
    fn new(fast_open: Option<FastOpenServer>) -> Pair {
        let host = |last: u8, address: &str| {
            let config = Config::new(Address([2, 0, 0, 0, 0, last]));
            let config = config.address(address.parse().unwrap());
            Stack::new(&config, last.into()).unwrap()
        };
        let (client, mut server) = (host(1, "192.0.2.1/24"), host(2, "192.0.2.2/24"));
        let local = "192.0.2.2:80".parse().unwrap();
        let listener = server.tcp_listen(local, 8).unwrap();
        server.tcp_set_fast_open(listener, fast_open).unwrap();
        Pair {
            now_ns: 1_000_000_000,
            client,
            server,
            listener,
            mute: false,
        }
    }

    /// Frames go back and forth until nothing moves; gives how many went.
    fn settle(&mut self) -> usize {
        let mut went = 0;
        loop {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            self.client.poll(self.now_ns, &mut there);
            self.server.poll(self.now_ns, &mut back);
            if there.is_empty() && back.is_empty() {
                return went;
            }
            went += there.len() + back.len();
            for frame in there {
                self.server.receive(self.now_ns, &frame);
            }
            for frame in back {
                let is_arp = frame[12..14] == [8, 6];
                if is_arp || !self.mute {
                    self.client.receive(self.now_ns, &frame);
                }
            }
            self.now_ns += 1_000_000;
        }
    }

    fn connect(&mut self, bytes: &[u8]) -> (TcpId, usize) {
        let remote = "192.0.2.2:80".parse().unwrap();
        let opened = self
            .client
            .tcp_connect_fast(self.now_ns, None, remote, bytes, false);
        opened.unwrap()
    }

    fn accept(&mut self) -> Option<TcpId> {
        self.server.tcp_accept(self.now_ns, self.listener).ok()
    }

    fn read(&mut self, id: TcpId) -> Vec<u8> {
        let mut bytes = [0; 4096];
        let count = self.server.tcp_read(id, &mut bytes).unwrap_or(0);
        bytes[..count].to_vec()
    }

    fn learn_cookie(&mut self) {
        let (id, went) = self.connect(b"too early");
        assert_eq!(went, 0, "no cookie yet");
        self.settle();
        assert_eq!(self.client.tcp_state(id), Some(State::Established));
        assert!(self.client.tcp_has_cookie("192.0.2.2".parse().unwrap()));
        assert!(self.accept().is_some());
    }
}

#[test]
fn bytes_are_read_before_the_handshake_ends() {
    let mut pair = Pair::new(Some(SERVER));
    pair.learn_cookie();
    // The server's answers are lost: it has the bytes all the same.
    pair.mute = true;
    let (client, went) = pair.connect(b"hello");
    assert_eq!(went, 5);
    pair.settle();
    let server = pair.accept().expect("taken at once");
    assert_eq!(pair.server.tcp_state(server), Some(State::SynReceived));
    assert_eq!(pair.read(server), b"hello");
    assert_eq!(pair.server.tcp_write(server, b"early"), Ok(5));
    pair.mute = false;
    for _ in 0..8 {
        pair.now_ns += 500_000_000;
        pair.settle();
    }
    assert_eq!(pair.client.tcp_state(client), Some(State::Established));
    let mut bytes = [0; 16];
    assert_eq!(pair.client.tcp_read(client, &mut bytes), Ok(5));
    assert_eq!(&bytes[..5], b"early");
    // Once, though the SYN came more than once.
    assert_eq!(pair.read(server), b"");
    let info = pair.server.tcp_info(pair.now_ns, server).unwrap();
    assert!(info.syn_data_acked);
}

#[test]
fn what_a_server_does_not_take_goes_again() {
    let mut pair = Pair::new(Some(SERVER));
    pair.learn_cookie();
    // Another key: the cookie is wrong now, and a right one comes.
    let server = FastOpenServer {
        key: [8; 16],
        ..SERVER
    };
    pair.server
        .tcp_set_fast_open(pair.listener, Some(server))
        .unwrap();
    for expected in [false, true] {
        let (client, went) = pair.connect(&[5; 1000]);
        assert_eq!(went, 1000);
        pair.settle();
        let id = pair.accept().unwrap();
        assert_eq!(pair.read(id), [5; 1000]);
        let info = pair.client.tcp_info(pair.now_ns, client).unwrap();
        assert_eq!(info.syn_data_acked, expected);
    }
}

#[test]
fn a_listener_takes_so_many_at_once_and_no_more() {
    let mut pair = Pair::new(Some(SERVER));
    pair.learn_cookie();
    pair.mute = true;
    for _ in 0..5 {
        pair.connect(b"bytes");
        pair.settle();
    }
    let early = (0..5).filter(|_| pair.accept().is_some()).count();
    assert_eq!(early, SERVER.pending_max);
}

#[test]
fn without_it_all_is_as_before() {
    let mut pair = Pair::new(None);
    for _ in 0..2 {
        let (client, went) = pair.connect(b"bytes");
        assert_eq!(went, 0, "nobody gives cookies here");
        pair.client.tcp_write(client, b"bytes").unwrap();
        pair.settle();
        let id = pair.accept().unwrap();
        assert_eq!(pair.read(id), b"bytes");
    }
}
