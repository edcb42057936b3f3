use super::*;
use crate::radius::packet::request;

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
/// A time in seconds.
const T: i64 = 1_700_000_000;

/// An Accounting-Request, with attributes as they are on the wire.
fn read(status: u32, attributes: &[(u8, &[u8])]) -> Request {
    let status = status.to_be_bytes();
    let mut all: Vec<(u8, &[u8])> = vec![(attribute::ACCT_STATUS_TYPE, &status)];
    all.extend_from_slice(attributes);
    let bytes = request(1, &all, b"s");
    let packet = Packet::new(&bytes).unwrap();
    Request::read(&packet, "nas", SERVER, T * SECOND_NS, false).unwrap()
}

/// A request of alice's session 1 that happened at `T + at` seconds, after `lasted` seconds.
fn at(status: u32, at: i64, lasted: u32) -> Request {
    let time = u32::try_from(T + at).unwrap().to_be_bytes();
    let lasted = lasted.to_be_bytes();
    let attributes: [(u8, &[u8]); 5] = [
        (attribute::USER_NAME, b"alice"),
        (attribute::ACCT_SESSION_ID, b"1"),
        (attribute::FRAMED_IP_ADDRESS, &[192, 0, 2, 1]),
        (attribute::EVENT_TIMESTAMP, &time),
        (attribute::ACCT_SESSION_TIME, &lasted),
    ];
    read(status, &attributes)
}

/// A time on the monotonic clock.
fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Which events the requests make: `+` and `-` with the start of the session in seconds after `T`.
fn run(requests: &[Request]) -> Vec<String> {
    let mut accounting = Accounting::default();
    let mut events = Vec::new();
    for (number, request) in requests.iter().enumerate() {
        let received = seconds(1000 + number as u64);
        events.extend(accounting.events(request, received).unwrap());
    }
    let start = |info: &SessionInfo| {
        let start = info.id.rsplit('/').next().unwrap();
        start.parse::<i64>().unwrap() - T
    };
    let written = events.iter().map(|event| match event {
        SessionEventKind::Up(info) => format!("+{}", start(info)),
        SessionEventKind::Down(info) => format!("-{}", start(info)),
        SessionEventKind::AllDown { server } => format!("all of {server}"),
    });
    written.collect()
}

const START: u32 = 1;
const STOP: u32 = 2;
const INTERIM: u32 = 3;
const ON: u32 = 7;

#[test]
fn each_order_of_requests_has_its_rule() {
    let on = |seconds: i64| {
        let time = u32::try_from(T + seconds).unwrap().to_be_bytes();
        read(ON, &[(attribute::EVENT_TIMESTAMP, &time)])
    };
    for (what, requests, events) in [
        (
            "in order",
            vec![at(START, 0, 0), at(INTERIM, 60, 60), at(STOP, 90, 90)],
            vec!["+0", "-0"],
        ),
        (
            "retransmitted",
            vec![
                at(START, 0, 0),
                at(START, 0, 0),
                at(STOP, 9, 9),
                at(STOP, 9, 9),
            ],
            vec!["+0", "-0"],
        ),
        (
            "Start lost",
            vec![at(INTERIM, 60, 60), at(STOP, 90, 90)],
            vec!["+0", "-0"],
        ),
        (
            "Start late",
            vec![at(INTERIM, 60, 60), at(START, 0, 0)],
            vec!["+0"],
        ),
        (
            "Stop before Start",
            vec![at(STOP, 90, 90), at(START, 0, 0)],
            vec!["-0"],
        ),
        (
            "Interim after Stop",
            vec![at(START, 0, 0), at(STOP, 90, 90), at(INTERIM, 60, 60)],
            vec!["+0", "-0"],
        ),
        (
            "late Interim after Stop",
            vec![at(START, 0, 0), at(STOP, 90, 90), at(INTERIM, 95, 95)],
            vec!["+0", "-0"],
        ),
        (
            "the identifier again, later",
            vec![
                at(START, 0, 0),
                at(STOP, 90, 90),
                at(START, 200, 0),
                at(STOP, 300, 100),
            ],
            vec!["+0", "-0", "+200", "-200"],
        ),
        (
            "the identifier again, without a Stop",
            vec![at(START, 0, 0), at(START, 200, 0), at(STOP, 300, 100)],
            vec!["+0", "-0", "+200", "-200"],
        ),
        (
            "the Stop of the former session, late",
            vec![at(START, 0, 0), at(START, 200, 0), at(STOP, 90, 90)],
            vec!["+0", "-0", "+200"],
        ),
        (
            "restart",
            vec![at(START, 0, 0), on(100), at(START, 200, 0)],
            vec!["+0", "all of radius/nas/203.0.113.1/", "+200"],
        ),
        (
            "restart, late",
            vec![at(START, 200, 0), on(100)],
            vec!["+200"],
        ),
    ] {
        assert_eq!(run(&requests), events, "{what}");
    }
}

#[test]
fn an_interim_update_renews_what_it_says_and_keeps_the_rest() {
    let mut accounting = Accounting::default();
    accounting.events(&at(START, 0, 0), seconds(0)).unwrap();
    let time = u32::try_from(T + 60).unwrap().to_be_bytes();
    let update = read(
        INTERIM,
        &[
            (attribute::USER_NAME, b"alice"),
            (attribute::ACCT_SESSION_ID, b"1"),
            (attribute::EVENT_TIMESTAMP, &time),
            (attribute::ACCT_INPUT_OCTETS, &[0, 0, 0, 5]),
            (attribute::ACCT_INPUT_GIGAWORDS, &[0, 0, 0, 2]),
            (attribute::ACCT_OUTPUT_OCTETS, &[0xff; 4]),
            (attribute::ACCT_OUTPUT_PACKETS, &[0, 0, 0, 9]),
        ],
    );
    let events = accounting.events(&update, seconds(60)).unwrap();
    let [SessionEventKind::Up(info)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(info.keys, [Key::Ipv4([192, 0, 2, 1].into())]);
    assert_eq!(info.reported, Some([(2 << 32) + 5, 0xffff_ffff, 0, 9]));
    assert!(accounting.events(&update, seconds(61)).unwrap().is_empty());
    assert!(accounting.silent(seconds(3661), seconds(3600)).is_empty());
    let silent = accounting.silent(seconds(3662), seconds(3600));
    assert!(
        matches!(&silent[..], [SessionEventKind::Down(_)]),
        "{silent:?}"
    );
    assert_eq!(accounting.running(), 0);
}

#[test]
fn all_kinds_of_addresses_are_keys() {
    let mut delegated = [0_u8; 9];
    delegated[..8].copy_from_slice(&[0, 56, 0x20, 1, 0xd, 0xb8, 0, 1]);
    delegated[8] = 0xff;
    let v6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let request = read(
        START,
        &[
            (attribute::ACCT_SESSION_ID, b"1"),
            (attribute::FRAMED_IP_ADDRESS, &[255, 255, 255, 254]),
            (attribute::FRAMED_IP_ADDRESS, &[192, 0, 2, 1]),
            (attribute::FRAMED_ROUTE, b"198.51.100.77/26 192.0.2.1 1"),
            (attribute::FRAMED_ROUTE, b"198.51.100.1/99 192.0.2.1 1"),
            (attribute::FRAMED_ROUTE, b"\xff"),
            (attribute::DELEGATED_IPV6_PREFIX, &delegated),
            (attribute::FRAMED_IPV6_PREFIX, &[0, 129, 1]),
            (attribute::FRAMED_IPV6_ADDRESS, &v6),
            (attribute::FRAMED_ROUTE, b"192.0.2.1/32 192.0.2.1 1"),
            (attribute::FRAMED_ROUTE, b"198.51.100.9 192.0.2.1 1"),
            (attribute::FRAMED_ROUTE, b"0.0.0.0/0 192.0.2.1 1"),
            (attribute::FRAMED_IPV6_ROUTE, b"2001:db8:ffff::/0 :: 1"),
            (attribute::FRAMED_IPV6_ROUTE, b"2001:db8::2/128 :: 1"),
            (attribute::FRAMED_IPV6_PREFIX, &[0, 0]),
        ],
    );
    let written: Vec<String> = request.keys.iter().map(ToString::to_string).collect();
    assert_eq!(
        written,
        [
            "192.0.2.1",
            "198.51.100.64/26",
            "2001:db8:1:ff00::/56",
            "2001:db8::1",
            "198.51.100.9",
            "2001:db8::2"
        ]
    );
}

#[test]
fn directions_can_be_swapped_and_servers_are_named() {
    let octets: [(u8, &[u8]); 5] = [
        (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, 1]),
        (attribute::ACCT_SESSION_ID, b"1"),
        (attribute::ACCT_INPUT_OCTETS, &[0, 0, 0, 1]),
        (attribute::ACCT_OUTPUT_OCTETS, &[0, 0, 0, 2]),
        (attribute::NAS_IDENTIFIER, b"pop/1"),
    ];
    let bytes = request(1, &octets, b"s");
    let packet = Packet::new(&bytes).unwrap();
    let read = |swapped| Request::read(&packet, "nas", SERVER, 0, swapped).unwrap();
    assert_eq!(read(false).reported, Some([1, 2, 0, 0]));
    assert_eq!(read(true).reported, Some([2, 1, 0, 0]));
    let mut accounting = Accounting::default();
    let events = accounting.events(&read(false), seconds(0)).unwrap();
    let [SessionEventKind::Up(info)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(info.id, "radius/nas/pop%2F1/1/0");
    // From the log after a restart of the program: the same session.
    let mut restored = Accounting::default();
    restored.restore(&logged(events[0].clone()), seconds(9000));
    let again = restored.events(&read(false), seconds(9001)).unwrap();
    assert!(again.is_empty());
    assert_eq!(restored.running(), 1);
    // The time in which the program did not run is no silence.
    let hour = seconds(3600);
    assert!(restored.silent(seconds(9001) + hour, hour).is_empty());
    let all = SessionEventKind::AllDown {
        server: "radius/nas/pop%2F1/".to_owned(),
    };
    restored.restore(&logged(all), seconds(9002));
    assert_eq!(restored.running(), 0);
}

/// An event of the log.
fn logged(kind: SessionEventKind) -> SessionEvent {
    SessionEvent {
        number: 1,
        received_unix_ns: T * SECOND_NS,
        happened_unix_ns: None,
        source: SessionSource::Radius,
        lost: None,
        kind,
    }
}

#[test]
fn an_identity_that_begins_again_is_heard() {
    let mut accounting = Accounting::default();
    let mut restored = Accounting::default();
    let mut last = Vec::new();
    for request in [at(START, 0, 0), at(STOP, 90, 90), at(START, 200, 0)] {
        last = accounting.events(&request, seconds(0)).unwrap();
        for event in &last {
            restored.restore(&logged(event.clone()), seconds(0));
        }
    }
    let [SessionEventKind::Up(started)] = &last[..] else {
        panic!("{last:?}");
    };
    // Within the time for which the end of the former session is remembered: new keys, and a sign
    // of life.
    let mut update = at(INTERIM, 260, 60);
    update.keys.push(Key::Ipv4([192, 0, 2, 2].into()));
    for accounting in [&mut accounting, &mut restored] {
        let events = accounting.events(&update, seconds(60)).unwrap();
        let [SessionEventKind::Up(info)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!((&info.id, info.keys.len()), (&started.id, 2));
        assert!(accounting.silent(seconds(100), seconds(50)).is_empty());
    }
    // The first end is forgotten in its turn, and not the second one with it.
    accounting
        .events(&at(STOP, 300, 100), seconds(300))
        .unwrap();
    let late = |accounting: &mut Accounting, now| {
        let events = accounting.events(&at(START, 200, 0), seconds(now)).unwrap();
        events.len()
    };
    assert_eq!(late(&mut accounting, 700), 0);
    assert_eq!(late(&mut accounting, 901), 1);
}

#[test]
fn times_of_a_wrong_clock_are_not_used() {
    let happened = |timestamp: u32, delay: u32| {
        let attributes: [(u8, &[u8]); 3] = [
            (attribute::ACCT_SESSION_ID, b"1"),
            (attribute::EVENT_TIMESTAMP, &timestamp.to_be_bytes()),
            (attribute::ACCT_DELAY_TIME, &delay.to_be_bytes()),
        ];
        let request = read(START, &attributes);
        let after = request.happened_ns / SECOND_NS - T;
        (after, request.has_timestamp)
    };
    let now = u32::try_from(T).unwrap();
    assert_eq!(happened(now - 3600, 0), (-3600, true));
    assert_eq!(happened(now - 3601, 0), (0, false));
    assert_eq!(happened(now + 3601, 0), (0, false));
    assert_eq!(happened(0, 5), (-5, false));
    assert_eq!(happened(u32::MAX, 5), (-5, false));
    // It waited for long: its delay says so.
    assert_eq!(happened(now - 9000, 9000), (-9000, true));
    // A session that has lasted longer than any clock says: no overflow.
    let mut accounting = Accounting::default();
    let mut request = at(INTERIM, 0, u32::MAX);
    request.happened_ns = i64::MIN + 1;
    accounting.events(&request, seconds(0)).unwrap();
    request.status = Status::Start;
    request.happened_ns = i64::MAX;
    let events = accounting.events(&request, seconds(0)).unwrap();
    assert_eq!(events.len(), 2);
    // A restart that a wrong clock dates into the past ends what runs.
    let mut accounting = Accounting::default();
    accounting.events(&at(START, 0, 0), seconds(0)).unwrap();
    let on = read(ON, &[(attribute::EVENT_TIMESTAMP, &[0; 4])]);
    let events = accounting.events(&on, seconds(1)).unwrap();
    assert!(matches!(&events[..], [SessionEventKind::AllDown { .. }]));
    assert_eq!(accounting.running(), 0);
}

#[test]
fn a_client_does_not_end_sessions_of_another() {
    let by = |client: &str, status| {
        let mut request = at(status, 0, 0);
        (request.client, request.server) = (client.to_owned(), "pop".to_owned());
        request
    };
    let mut accounting = Accounting::default();
    accounting
        .events(&by("192.0.2.1", START), seconds(0))
        .unwrap();
    for status in [Status::Restart, Status::Stop] {
        let mut forged = by("192.0.2.2", STOP);
        forged.status = status;
        let events = accounting.events(&forged, seconds(1)).unwrap();
        let id = match &events[..] {
            [SessionEventKind::AllDown { server }] => server,
            [SessionEventKind::Down(info)] => &info.id,
            other => panic!("{other:?}"),
        };
        assert!(id.starts_with("radius/192.0.2.2/pop/"), "{id}");
    }
    assert_eq!(accounting.running(), 1);
}

#[test]
fn a_session_has_no_more_keys_than_records_take() {
    let addresses: Vec<[u8; 4]> = (0..300_u16)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            [10, 0, high, low]
        })
        .collect();
    let mut attributes: Vec<(u8, &[u8])> = vec![(attribute::ACCT_SESSION_ID, b"1")];
    attributes.extend(
        addresses
            .iter()
            .map(|it| (attribute::FRAMED_IP_ADDRESS, &it[..])),
    );
    assert_eq!(read(START, &attributes).keys.len(), KEYS_MAX);
}

#[test]
fn what_stands_for_no_session_is_refused() {
    let refused = |attributes: &[(u8, &[u8])]| {
        let bytes = request(1, attributes, b"s");
        let packet = Packet::new(&bytes).unwrap();
        Request::read(&packet, "nas", SERVER, 0, false).unwrap_err()
    };
    let status: (u8, &[u8]) = (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, 1]);
    assert_eq!(refused(&[]), RequestError::Status(None));
    assert_eq!(
        refused(&[(attribute::ACCT_STATUS_TYPE, &[0, 0, 0, 9])]),
        RequestError::Status(Some(9))
    );
    assert_eq!(
        refused(&[(attribute::ACCT_STATUS_TYPE, &[1])]),
        RequestError::Status(None)
    );
    assert_eq!(refused(&[status]), RequestError::Session);
}

#[test]
fn a_policy_is_the_one_named_last_and_a_name_repeated_undoes_no_change() {
    let mut accounting = Accounting::new(["slow", "fast", "gold"].map(str::to_owned));
    let request = |status, filters: &[&str], class: &[&[u8]]| {
        let mut request = at(status, 0, 0);
        request.filters = filters.iter().map(|name| (*name).to_owned()).collect();
        request.class = class.iter().map(|value| value.to_vec()).collect();
        request
    };
    let policy = |events: Vec<SessionEventKind>| match events.into_iter().next()? {
        SessionEventKind::Up(info) | SessionEventKind::Down(info) => info.policy,
        SessionEventKind::AllDown { .. } => None,
    };
    let mut now = Duration::ZERO;
    let mut named = |accounting: &mut Accounting, status, filters: &[&str], class: &[&[u8]]| {
        now += Duration::from_secs(1);
        let events = accounting.events(&request(status, filters, class), now);
        policy(events.unwrap())
    };
    let change = |accounting: &mut Accounting, policy: &str| {
        let changed = accounting.change("nas", "203.0.113.1", "1", Some(policy.to_owned()), vec![]);
        changed.map(|info| info.policy.unwrap())
    };
    // No policy: the session has the counter's default, and goes on with it.
    assert_eq!(
        named(&mut accounting, START, &["acl-7.in"], &[b"\xff"]),
        None
    );
    assert_eq!(accounting.unknown_policies(), (1, "acl-7.in"));
    assert_eq!(
        named(&mut accounting, INTERIM, &["acl-7.in"], &[b"x"]),
        None
    );
    // Filter-Id before Class, whatever stands first.
    let found = named(&mut accounting, INTERIM, &["acl-7.in", "slow"], &[b"gold"]);
    assert_eq!(found.as_deref(), Some("slow"));
    let changed = change(&mut accounting, "fast");
    assert_eq!(changed.as_deref(), Some("fast"));
    assert_eq!(change(&mut accounting, "fast"), None);
    // What accounting says again, or leaves out, does not undo that, after a restart neither.
    let found = accounting.find("nas", "203.0.113.1", "1").unwrap().clone();
    let logged = SessionEvent {
        number: 1,
        received_unix_ns: 0,
        happened_unix_ns: None,
        source: SessionSource::Radius,
        lost: None,
        kind: SessionEventKind::Up(found),
    };
    accounting = Accounting::new(["slow", "fast", "gold"].map(str::to_owned));
    accounting.restore(&logged, Duration::ZERO);
    for filters in [&["slow"][..], &[]] {
        let found = named(&mut accounting, INTERIM, filters, &[b"y"]);
        assert!(found.is_none_or(|policy| policy == "fast"));
    }
    // Another name does; so does Class, without Filter-Id.
    let found = named(&mut accounting, INTERIM, &[], &[b"gold"]);
    assert_eq!(found.as_deref(), Some("gold"));
    // A name that is no policy changes nothing.
    let found = named(&mut accounting, INTERIM, &["platinum"], &[b"z"]);
    assert_eq!(found.as_deref(), Some("gold"));
    assert_eq!(accounting.unknown_policies(), (1, "platinum"));
    let found = named(&mut accounting, STOP, &[], &[]);
    assert_eq!(found.as_deref(), Some("gold"));
    assert_eq!(change(&mut accounting, "slow"), None);
    // Without policies, Filter-Id is of filters of the access server alone.
    let mut plain = Accounting::default();
    assert_eq!(named(&mut plain, START, &["slow"], &[]), None);
    assert_eq!(plain.unknown_policies(), (0, ""));
}
