use super::*;
use crate::radius::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::Permissions;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use weir_ledger::SessionLog;
use weir_meter::SessionInfo;
use weir_meter::radius::packet::{ACCOUNTING_RESPONSE, attribute, request};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("weir-radius-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let secret = folder.join("secret");
        std::fs::write(&secret, "s3cret\n").unwrap();
        std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn server(folder: &Folder) -> Server {
    let secret = folder.0.join("secret");
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let client = Client::new(local, 32, &secret, false).unwrap();
    let accounting = Accounting::new(["slow".to_owned(), "fast".to_owned()]);
    let clients = Clients::new(vec![client]);
    Server::bind((local, 0).into(), clients, accounting, None).unwrap()
}

fn start(identifier: u8, session: &[u8], secret: &[u8]) -> Vec<u8> {
    let attributes: [(u8, &[u8]); 3] = [
        (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, 1]),
        (attribute::ACCT_SESSION_ID, session),
        (attribute::FRAMED_IP_ADDRESS, &[192, 0, 2, 1]),
    ];
    request(identifier, &attributes, secret)
}

const WAIT: Duration = Duration::from_secs(5);

/// The events of requests that come within [`WAIT`].
fn receive(server: &mut Server) -> Vec<SessionEvent> {
    let wait = Timespec::try_from(WAIT).unwrap();
    poll(
        &mut [PollFd::new(&server.socket, PollFlags::IN)],
        Some(&wait),
    )
    .unwrap();
    let mut batch = Vec::new();
    server.receive(&mut batch).unwrap();
    batch
}

#[test]
fn an_answer_comes_after_the_event_is_durable_and_never_without() {
    let folder = Folder::new("durable");
    let mut server = server(&folder);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server.address().unwrap()).unwrap();
    client.set_nonblocking(true).unwrap();
    let mut bytes = [0; 4096];
    client.send(&start(1, b"one", b"s3cret")).unwrap();
    // The disk is full: no answer.
    let mut events = receive(&mut server);
    assert_eq!(events.len(), 1);
    server.not_durable();
    server.answer();
    assert!(client.recv(&mut bytes).is_err());
    let mut log = SessionLog::beside(&folder.0.join("spool")).unwrap();
    log.append(&mut events).unwrap();
    // The client sends it again: nothing new, and an answer.
    client.send(&start(2, b"one", b"s3cret")).unwrap();
    assert_eq!(receive(&mut server), []);
    assert!(client.recv(&mut bytes).is_err());
    server.answer();
    let length = client.recv(&mut bytes).unwrap();
    assert_eq!((length, bytes[0], bytes[1]), (20, ACCOUNTING_RESPONSE, 2));
    let stats = server.stats();
    assert_eq!(
        (stats.answered, stats.without_event, stats.not_durable),
        (1, 1, 1)
    );
    assert_eq!(log.events(0, 10).unwrap().len(), 1);
}

/// A server with dynamic authorization, on which session `one` of alice runs, and its client.
struct Dynamic {
    server: Server,
    asks: UdpSocket,
    up: SessionInfo,
    _folder: Folder,
}

const NAS: (u8, &[u8]) = (attribute::NAS_IDENTIFIER, b"nas");

impl Dynamic {
    fn new(name: &str) -> Dynamic {
        let folder = Folder::new(name);
        let mut server = server(&folder);
        let local = "127.0.0.1:0".parse().unwrap();
        server.listen_dynamic(local).unwrap();
        let client = UdpSocket::bind(local).unwrap();
        client.connect(server.address().unwrap()).unwrap();
        let attributes: [(u8, &[u8]); 5] = [
            (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, 1]),
            (attribute::ACCT_SESSION_ID, b"one"),
            (attribute::USER_NAME, b"alice"),
            (attribute::FRAMED_IP_ADDRESS, &[192, 0, 2, 1]),
            NAS,
        ];
        client.send(&request(1, &attributes, b"s3cret")).unwrap();
        let events = receive(&mut server);
        server.answer();
        let [SessionEventKind::Up(up)] = &events.iter().map(|it| &it.kind).collect::<Vec<_>>()[..]
        else {
            panic!("{events:?}")
        };
        let up = SessionInfo::clone(up);
        let asks = UdpSocket::bind(local).unwrap();
        let dynamic = server.dynamic.as_ref().unwrap().socket();
        asks.connect(dynamic.local_addr().unwrap()).unwrap();
        asks.set_read_timeout(Some(WAIT)).unwrap();
        Dynamic {
            server,
            asks,
            up,
            _folder: folder,
        }
    }

    /// The events of a packet, which are not durable yet.
    fn events(&mut self, bytes: &[u8]) -> Vec<SessionEventKind> {
        self.asks.send(bytes).unwrap();
        let wait = Timespec::try_from(WAIT).unwrap();
        let socket = self.server.dynamic.as_ref().unwrap().socket();
        poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&wait)).unwrap();
        let mut batch = Vec::new();
        self.server.receive(&mut batch).unwrap();
        batch.into_iter().map(|event| event.kind).collect()
    }

    /// Code and Error-Cause of the answer.
    fn answer(&mut self, asked: &[u8]) -> (u8, Option<u32>) {
        self.server.answer();
        let mut answer = [0; 4096];
        let length = self.asks.recv(&mut answer).unwrap();
        let packet = Packet::new(&answer[..length]).unwrap();
        let asked = asked[4..20].first_chunk().unwrap();
        assert_eq!(packet.verify_response(asked, b"s3cret"), Ok(()));
        assert_eq!(packet.verify_message(asked, b"s3cret"), Ok(()));
        (packet.code(), packet.number(attribute::ERROR_CAUSE))
    }

    fn counts(&self) -> [u64; 4] {
        let stats = self.server.stats().dynamic.unwrap();
        [
            stats.disconnected,
            stats.changed,
            stats.refused,
            stats.ignored,
        ]
    }
}

fn signed(code: u8, identifier: u8, attributes: &[(u8, &[u8])]) -> Vec<u8> {
    packet::signed_request(code, identifier, attributes, b"s3cret")
}

const ONE: (u8, &[u8]) = (attribute::ACCT_SESSION_ID, b"one");

#[test]
fn a_disconnect_request_ends_its_clients_session_and_no_other() {
    let mut dynamic = Dynamic::new("disconnect");
    let two: (u8, &[u8]) = (attribute::ACCT_SESSION_ID, b"two");
    let bob: (u8, &[u8]) = (attribute::USER_NAME, b"bob");
    let address: (u8, &[u8]) = (attribute::FRAMED_IP_ADDRESS, &[192, 0, 2, 2]);
    for (identifier, attributes, cause) in [
        (1, &[two, NAS][..], 503),
        (2, &[NAS], 402),
        (3, &[ONE], 402),
        (4, &[ONE, NAS, bob], 503),
        (5, &[ONE, NAS, address], 503),
    ] {
        let asked = signed(packet::DISCONNECT_REQUEST, identifier, attributes);
        assert_eq!(dynamic.events(&asked), []);
        assert_eq!(dynamic.answer(&asked), (42, Some(cause)), "{identifier}");
    }
    // Without Message-Authenticator, and with another secret: no answer.
    let mut unsigned = request(6, &[ONE, NAS], b"s3cret");
    unsigned[0] = packet::DISCONNECT_REQUEST;
    let forged = packet::signed_request(packet::DISCONNECT_REQUEST, 7, &[ONE, NAS], b"x");
    for bytes in [unsigned, forged] {
        assert_eq!(dynamic.events(&bytes), []);
    }
    let ends = signed(packet::DISCONNECT_REQUEST, 8, &[ONE, NAS]);
    let down = SessionEventKind::Down(dynamic.up.clone());
    assert_eq!(dynamic.events(&ends), [down]);
    assert_eq!(dynamic.answer(&ends), (41, None));
    // The same packet again: the same answer.
    assert_eq!(dynamic.events(&ends), []);
    assert_eq!(dynamic.answer(&ends), (41, None));
    assert!(dynamic.up.id.starts_with("radius/127.0.0.1/nas/one/"));
    assert_eq!(dynamic.counts(), [1, 0, 5, 2]);
}

#[test]
fn a_coa_request_changes_its_clients_session_when_that_is_durable() {
    let mut dynamic = Dynamic::new("coa");
    let filter = |name: &'static str| -> (u8, &[u8]) { (attribute::FILTER_ID, name.as_bytes()) };
    let other: (u8, &[u8]) = (attribute::ACCT_SESSION_ID, b"two");
    let timeout: (u8, &[u8]) = (27, &[0, 0, 0, 9]);
    let service: (u8, &[u8]) = (attribute::SERVICE_TYPE, &[0, 0, 0, 17]);
    for (identifier, attributes, cause) in [
        (1, &[ONE, NAS][..], 402),
        (2, &[NAS, filter("slow")], 402),
        (3, &[other, NAS, filter("slow")], 503),
        (4, &[ONE, NAS, filter("none")], 407),
        (5, &[ONE, NAS, filter("slow"), timeout], 401),
        (6, &[ONE, NAS, service], 405),
    ] {
        let asked = signed(packet::COA_REQUEST, identifier, attributes);
        assert_eq!(dynamic.events(&asked), []);
        assert_eq!(dynamic.answer(&asked), (45, Some(cause)), "{identifier}");
    }
    let mut unsigned = request(7, &[ONE, NAS, filter("slow")], b"s3cret");
    unsigned[0] = packet::COA_REQUEST;
    assert_eq!(dynamic.events(&unsigned), []);
    let asked = signed(packet::COA_REQUEST, 8, &[ONE, NAS, filter("slow")]);
    let with = |dynamic: &Dynamic, policy: &str, class: &[&[u8]]| {
        SessionEventKind::Up(SessionInfo {
            policy: Some(policy.to_owned()),
            class: class.iter().map(|value| value.to_vec()).collect(),
            ..dynamic.up.clone()
        })
    };
    assert_eq!(dynamic.events(&asked), [with(&dynamic, "slow", &[])]);
    // The disk is full: no answer, and none to the packet that comes again.
    dynamic.server.not_durable();
    assert_eq!(dynamic.events(&asked), []);
    dynamic.asks.set_nonblocking(true).unwrap();
    assert!(dynamic.asks.recv(&mut [0; 1]).is_err());
    dynamic.asks.set_nonblocking(false).unwrap();
    assert_eq!(dynamic.answer(&asked), (44, None));
    // So it is already: nothing new, and an answer.
    let again = signed(packet::COA_REQUEST, 9, &[ONE, NAS, filter("slow")]);
    assert_eq!(dynamic.events(&again), []);
    assert_eq!(dynamic.answer(&again), (44, None));
    // By Class, which records have from then on; one that names no policy changes these alone.
    for (identifier, class) in [(10, &b"fast"[..]), (11, b"contract-7")] {
        let attributes = [ONE, NAS, (attribute::CLASS, class)];
        let asked = signed(packet::COA_REQUEST, identifier, &attributes);
        assert_eq!(dynamic.events(&asked), [with(&dynamic, "fast", &[class])]);
        assert_eq!(dynamic.answer(&asked), (44, None));
    }
    assert_eq!(dynamic.counts(), [0, 4, 6, 1]);
}

#[test]
fn what_proves_nothing_is_counted_and_not_answered() {
    let folder = Folder::new("refused");
    let mut server = server(&folder);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server.address().unwrap()).unwrap();
    client.send(&start(1, b"one", b"guessed")).unwrap();
    client.send(b"junk").unwrap();
    client.send(&request(3, &[], b"s3cret")).unwrap();
    let other = UdpSocket::bind("127.0.0.2:0").unwrap();
    other
        .send_to(&start(1, b"one", b"s3cret"), server.address().unwrap())
        .unwrap();
    let began = std::time::Instant::now();
    loop {
        assert_eq!(receive(&mut server), []);
        let stats = server.stats();
        let seen = stats.bad_authenticators + stats.malformed + stats.unknown_clients;
        if seen == 4 {
            assert_eq!((stats.bad_authenticators, stats.malformed), (1, 2));
            assert_eq!(stats.answered, 0);
            break;
        }
        assert!(began.elapsed() < WAIT, "{stats:?}");
    }
}
