//! A log of sessions that is shortened while events are appended comes to the same sessions, after each
//! step.

mod common;

use common::Folder;
use std::collections::BTreeMap;
use weir_lab::rng::Rng;
use weir_lab::seeds;
use weir_ledger::{SessionLog, Shortening};
use weir_meter::sessions::Sessions;
use weir_meter::{Key, KeyKind, SessionEvent, SessionEventKind, SessionInfo, SessionSource};

const STEPS: i64 = 150;
const IDS: usize = 8;
const ADDRESSES: u8 = 6;

fn key(number: u8) -> Key {
    Key::Ipv4([192, 0, 2, number].into())
}

/// Sessions begin, change, take each other's addresses, and end.
fn random(rng: &mut Rng, at: i64) -> SessionEvent {
    let id = rng.below(IDS);
    let keys = (0..ADDRESSES).filter(|_| rng.chance(30)).map(key).collect();
    let info = SessionInfo {
        id: format!("nas{}/{id}", id % 2),
        subscriber: format!("u{id}"),
        keys,
        reported: Some([at.cast_unsigned(), 0, 0, 0]),
        ..SessionInfo::default()
    };
    let kind = match rng.below(20) {
        0 => SessionEventKind::AllDown {
            server: format!("nas{}/", id % 2),
        },
        1..6 => SessionEventKind::Down(info),
        _ => SessionEventKind::Up(info),
    };
    SessionEvent {
        number: 0,
        received_unix_ns: at,
        happened_unix_ns: None,
        source: SessionSource::Radius,
        lost: None,
        kind,
    }
}

fn sessions() -> Sessions {
    Sessions::new(100, &[KeyKind::Ipv4], 1)
}

/// What runs, since when, and whose each address is.
type State<'a> = (
    BTreeMap<&'a str, (&'a SessionInfo, i64)>,
    Vec<Option<&'a str>>,
);

fn state(sessions: &Sessions) -> State<'_> {
    let running = sessions.iter().map(|(_, session)| session);
    let running = running.filter(|session| !session.has_ended);
    let running = running.map(|it| (&*it.info.id, (&it.info, it.started_unix_ns)));
    let owners = (0..ADDRESSES).map(|number| {
        let slot = sessions.of_key(&key(number))?;
        Some(&*sessions.get(slot)?.info.id)
    });
    (running.collect(), owners.collect())
}

fn replayed(log: &SessionLog) -> (Sessions, usize) {
    let mut sessions = sessions();
    let events = log.events(0, 100_000).unwrap();
    for event in &events {
        sessions.apply(event).unwrap();
    }
    (sessions, events.len())
}

#[test]
fn a_log_comes_to_the_same_after_each_step_of_its_shortening() {
    for seed in seeds::seeds(8) {
        let mut rng = Rng::new(seed);
        let folder = Folder::new(&format!("shorten-{seed}"));
        let mut log = SessionLog::beside(&folder.at("spool")).unwrap();
        let mut live = sessions();
        let (mut shortening, mut last) = (None::<Shortening>, 0);
        let mut done = 0;
        for at in 0..STEPS {
            if rng.chance(60) {
                let mut event = random(&mut rng, at);
                let applied = live.apply(&event).unwrap();
                if matches!(event.kind, SessionEventKind::Up(_)) {
                    event.lost = applied.slot.map(|slot| live.lost(slot));
                }
                log.append(std::slice::from_mut(&mut event)).unwrap();
                last = event.number;
            }
            if rng.chance(5) {
                live.release_ended();
            }
            if shortening.is_none() && rng.chance(10) {
                shortening = Some(Shortening::new(last, &live));
            }
            if let Some(mut it) = shortening.take() {
                let events = it.events(&live, 3, at);
                it.step(&mut log, events, 5).unwrap();
                done += u32::from(it.is_done());
                // A process may end at any step: the next one begins anew.
                shortening = (!it.is_done() && !rng.chance(2)).then_some(it);
            }
            let (found, _) = replayed(&log);
            assert_eq!(state(&found), state(&live), "seed {seed}, step {at}");
            // Those that have ended are recorded yet: their events are there.
            for slot in live.ended() {
                let ended = &live.get(*slot).unwrap().info.id;
                assert!(
                    found.of_id(ended).is_some(),
                    "seed {seed}, step {at}: {ended}"
                );
            }
        }
        assert!(done > 0, "seed {seed}");
        // Without events, one for each session is left.
        live.release_ended();
        let events = log.events(0, 100_000).unwrap();
        let newest = events.last().map_or(0, |event| event.number);
        let mut rest = Shortening::new(newest, &live);
        while !rest.is_done() {
            let events = rest.events(&live, 100, STEPS);
            rest.step(&mut log, events, 100).unwrap();
        }
        let (found, events) = replayed(&log);
        assert_eq!(state(&found), state(&live), "seed {seed}");
        assert_eq!(events, live.len(), "seed {seed}");
    }
}
