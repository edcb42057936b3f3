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
    poll(&mut [PollFd::new(&*server, PollFlags::IN)], Some(&wait)).unwrap();
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
