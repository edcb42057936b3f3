use super::super::policies::Policies;
use super::super::rows::{Rows, Table};
use super::*;
use crate::radius::{Client, Clients};
use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use weir_lab::testenv;
use weir_link::names::SystemNames;
use weir_link::xdp::{Meter, MeterSpec};
use weir_meter::radius::accounting::Accounting;
use weir_meter::radius::packet::{attribute, request};
use weir_meter::services::Services;
use weir_meter::sessions::Sessions;
use weir_meter::{Key, KeyKind, SessionInfo, SessionSource};

/// Sessions that run, and events of each in the log.
const SESSIONS: u32 = 1000;
const EVENTS: u32 = 4;
/// Events beyond twice the sessions at which the log is shortened.
const SPARE: u64 = 1000;
/// Time limit of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("weir-feed-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An event of one of the sessions in the log; each is of an address of its own.
fn event(session: u32, round: u32) -> SessionEvent {
    SessionEvent {
        number: 0,
        received_unix_ns: 1,
        happened_unix_ns: None,
        source: SessionSource::Radius,
        lost: None,
        kind: SessionEventKind::Up(SessionInfo {
            id: format!("radius/127.0.0.1/old/{session}/0"),
            subscriber: format!("u{session}"),
            keys: vec![Key::Ipv4(Ipv4Addr::from_bits(0x0a00_0000 + session))],
            reported: Some([round.into(), 0, 0, 0]),
            ..SessionInfo::default()
        }),
    }
}

fn server(folder: &Folder) -> (Server, UdpSocket) {
    let secret = folder.0.join("secret");
    fs::write(&secret, "s3cret\n").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let client = Client::new(local, 32, &secret, false).unwrap();
    let clients = Clients::new(vec![client]);
    let server = Server::bind((local, 0).into(), clients, Accounting::default(), None).unwrap();
    let socket = UdpSocket::bind((local, 0)).unwrap();
    socket.connect(server.address().unwrap()).unwrap();
    socket.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
    (server, socket)
}

fn rows(log: &SessionLog) -> usize {
    log.events(0, u32::MAX >> 1).unwrap().len()
}

/// The replies of RADIUS go on while a long log is shortened: one after each step, which is short.
#[test]
fn replies_go_on_while_the_log_is_shortened() {
    if !testenv::root() {
        return;
    }
    let folder = Folder::new("shorten");
    let services = Services::new(Vec::new());
    let spec = MeterSpec {
        subscribers: 2 * SESSIONS,
        keys: 4 * SESSIONS,
        unknown: 0,
        services: &services,
        names: &SystemNames::new(),
        counts_ip: false,
        polices: false,
        measures: &[],
        adopts: false,
    };
    let capacity = 2 * SESSIONS as usize;
    let mut table = Table {
        rows: Rows::new(capacity, &[KeyKind::Ipv4], 0, Policies::default(), 1),
        meter: Meter::create(&spec).unwrap(),
    };
    let mut log = SessionLog::beside(&folder.0.join("spool")).unwrap();
    let rounds = 0..EVENTS;
    let events = rounds.flat_map(|round| (0..SESSIONS).map(move |it| event(it, round)));
    let mut events: Vec<SessionEvent> = events.collect();
    log.append(&mut events).unwrap();
    for event in &events {
        table.rows.replay(event).unwrap();
    }
    table.claim().unwrap();
    let (server, client) = server(&folder);
    let sources = Sources {
        server: Some(server),
        ..Sources::default()
    };
    let table = Arc::new(Mutex::new(table));
    let mut feed = Feed::new(
        sources,
        log,
        events.len() as u64,
        table.clone(),
        Clock::default(),
    );
    feed.spare = SPARE;
    let stop = Stop::new().unwrap();
    let mut answered = 0;
    let mut had = rows(&feed.log);
    loop {
        let number = answered.to_string();
        let attributes: [(u8, &[u8]); 3] = [
            (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, 1]),
            (attribute::ACCT_SESSION_ID, number.as_bytes()),
            (attribute::FRAMED_IP_ADDRESS, &[192, 0, 2, 1]),
        ];
        let sent = request(answered as u8, &attributes, b"s3cret");
        client.send(&sent).unwrap();
        while feed.batch.is_empty() {
            feed.wait(&stop);
            feed.receive();
        }
        assert!(feed.make_durable());
        // Its answer has been sent, whatever is left to do.
        let mut answer = [0; 64];
        client.recv(&mut answer).unwrap();
        assert_eq!(answer[1], answered as u8);
        answered += 1;
        let have = rows(&feed.log);
        let most = SHORTENED_AT_ONCE[0] as usize + 1;
        assert!(had.abs_diff(have) <= most, "{had} events, then {have}");
        had = have;
        if feed.shortening.is_none() {
            break;
        }
    }
    // Each session is appended once, and each earlier event deleted once.
    let steps = SESSIONS * (1 + EVENTS) / SHORTENED_AT_ONCE[0];
    assert!(answered >= steps, "{answered} answers");
    assert_eq!(had as u64, feed.logged);
    let most = (SESSIONS + 2 * answered) as usize;
    assert!((SESSIONS as usize..=most).contains(&had), "{had} events");
    // It comes to the same.
    let mut sessions = Sessions::new(capacity, &[KeyKind::Ipv4], 1);
    for event in feed.log.events(0, u32::MAX >> 1).unwrap() {
        sessions.apply(&event).unwrap();
    }
    assert_eq!(sessions.len(), (SESSIONS + answered) as usize);
    let live = locked(&table);
    for (slot, session) in live.rows.sessions().iter() {
        let found = sessions.of_id(&session.info.id).unwrap();
        let (info, lost) = (&sessions.get(found).unwrap().info, sessions.lost(found));
        assert_eq!(
            (info, lost),
            (&session.info, live.rows.sessions().lost(slot))
        );
    }
}
