use super::*;
use crate::radius::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::Permissions;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use weir_ledger::SessionLog;
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
    Server::bind((local, 0).into(), Clients::new(vec![client]), None).unwrap()
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

#[test]
fn a_disconnect_request_ends_its_clients_session_and_no_other() {
    let folder = Folder::new("disconnect");
    let mut server = server(&folder);
    server
        .listen_dynamic("127.0.0.1:0".parse().unwrap())
        .unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server.address().unwrap()).unwrap();
    let nas: (u8, &[u8]) = (attribute::NAS_IDENTIFIER, b"nas");
    let attributes: [(u8, &[u8]); 3] = [
        (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, 1]),
        (attribute::ACCT_SESSION_ID, b"one"),
        nas,
    ];
    client.send(&request(1, &attributes, b"s3cret")).unwrap();
    let up = receive(&mut server);
    server.answer();
    assert!(matches!(&up[0].kind, SessionEventKind::Up(_)), "{up:?}");
    let policy = UdpSocket::bind("127.0.0.1:0").unwrap();
    let dynamic = server.dynamic.as_ref().unwrap().socket();
    policy.connect(dynamic.local_addr().unwrap()).unwrap();
    policy.set_read_timeout(Some(WAIT)).unwrap();
    let ask = |server: &mut Server, bytes: &[u8]| {
        policy.send(bytes).unwrap();
        let wait = Timespec::try_from(WAIT).unwrap();
        let socket = server.dynamic.as_ref().unwrap().socket();
        poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&wait)).unwrap();
        let mut batch = Vec::new();
        server.receive(&mut batch).unwrap();
        server.answer();
        batch
    };
    let answer = || {
        let mut answer = [0; 4096];
        let length = policy.recv(&mut answer).unwrap();
        answer[..length].to_vec()
    };
    let code_and_cause = |asked: &[u8]| {
        let answer = answer();
        let packet = Packet::new(&answer).unwrap();
        let asked = asked[4..20].first_chunk().unwrap();
        assert_eq!(packet.verify_response(asked, b"s3cret"), Ok(()));
        assert_eq!(packet.verify_message(asked, b"s3cret"), Ok(()));
        (packet.code(), packet.number(attribute::ERROR_CAUSE))
    };
    let session = |id: &'static [u8]| [(attribute::ACCT_SESSION_ID, id), nas];
    let signed = |code, id, attributes: &[(u8, &[u8])]| {
        packet::signed_request(code, id, attributes, b"s3cret")
    };
    let other = signed(packet::DISCONNECT_REQUEST, 1, &session(b"two"));
    assert_eq!(ask(&mut server, &other), []);
    assert_eq!(code_and_cause(&other), (42, Some(503)));
    let nothing = signed(packet::DISCONNECT_REQUEST, 2, &[nas]);
    assert_eq!(ask(&mut server, &nothing), []);
    assert_eq!(code_and_cause(&nothing), (42, Some(402)));
    let change = signed(packet::COA_REQUEST, 3, &session(b"one"));
    assert_eq!(ask(&mut server, &change), []);
    assert_eq!(code_and_cause(&change), (45, Some(401)));
    // Without Message-Authenticator, and with another secret: no answer.
    let mut unsigned = request(4, &session(b"one"), b"s3cret");
    unsigned[0] = packet::DISCONNECT_REQUEST;
    let forged = packet::signed_request(packet::DISCONNECT_REQUEST, 5, &session(b"one"), b"x");
    for bytes in [unsigned, forged] {
        assert_eq!(ask(&mut server, &bytes), []);
    }
    let ends = signed(packet::DISCONNECT_REQUEST, 6, &session(b"one"));
    let down = ask(&mut server, &ends);
    let [
        SessionEvent {
            kind: SessionEventKind::Down(info),
            ..
        },
    ] = &down[..]
    else {
        panic!("{down:?}")
    };
    assert!(info.id.starts_with("radius/127.0.0.1/nas/one/"), "{info:?}");
    assert_eq!(code_and_cause(&ends), (41, None));
    // The same packet again: the same answer.
    assert_eq!(ask(&mut server, &ends), []);
    assert_eq!(code_and_cause(&ends), (41, None));
    let stats = server.stats().dynamic.unwrap();
    let counts = (stats.disconnected, stats.refused, stats.ignored);
    assert_eq!(counts, (1, 3, 2));
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
