use super::*;
use crate::SessionSource;
use crate::parse::Transport;
use std::net::{Ipv4Addr, Ipv6Addr};

fn info(id: &str, keys: &[&str]) -> SessionInfo {
    SessionInfo {
        id: id.into(),
        subscriber: format!("subscriber of {id}"),
        keys: keys.iter().map(|key| key.parse().unwrap()).collect(),
        ..SessionInfo::default()
    }
}

fn frame() -> Headers {
    Headers {
        src_mac: Some([2, 0, 0, 0, 0, 1]),
        dst_mac: Some([2, 0, 0, 0, 0, 2]),
        vlan: Some((7, Some(12))),
        pppoe: Some(17),
        addresses: Some(Addresses::V4(
            Ipv4Addr::new(192, 0, 2, 1),
            Ipv4Addr::new(198, 51, 100, 1),
        )),
        transport: Transport::NotIp,
        ip_bytes: 0,
        wire_bytes: 0,
    }
}

#[test]
fn keys_of_lower_layers_and_longer_prefixes_come_first() {
    let order = [
        "0.0.0.0/0",
        "192.0.2.0/24",
        "192.0.2.0/30",
        "192.0.2.1",
        "mac:02:00:00:00:00:01",
        "vlan:7",
        "vlan:7.12",
        "pppoe:17",
    ];
    let mut sessions = Sessions::new(100, &KeyKind::ALL, 1);
    assert_eq!(sessions.owner(&frame(), Direction::Up), None);
    for key in order {
        let slot = sessions.up(&info(key, &[key]), 0).unwrap().slot;
        assert_eq!(sessions.owner(&frame(), Direction::Up), slot, "{key}");
    }
    for key in order.iter().rev() {
        let slot = sessions.of_key(&key.parse().unwrap());
        assert_eq!(sessions.owner(&frame(), Direction::Up), slot, "{key}");
        assert_eq!(sessions.down(key).ended, 1);
    }
    assert_eq!(sessions.owner(&frame(), Direction::Up), None);
}

#[test]
fn the_direction_says_whose_address_it_is() {
    let mut sessions = Sessions::new(100, &KeyKind::ALL, 1);
    let slot = sessions.up(&info("a", &["198.51.100.1"]), 0).unwrap().slot;
    assert_eq!(sessions.owner(&frame(), Direction::Up), None);
    assert_eq!(sessions.owner(&frame(), Direction::Down), slot);
    let v6 = Headers {
        addresses: Some(Addresses::V6(
            "2001:db8:0:1::5".parse::<Ipv6Addr>().unwrap(),
            Ipv6Addr::LOCALHOST,
        )),
        ..frame()
    };
    let slot = sessions.up(&info("b", &["2001:db8::/56"]), 0).unwrap().slot;
    assert_eq!(sessions.owner(&v6, Direction::Up), slot);
    assert_eq!(sessions.owner(&v6, Direction::Down), None);
}

#[test]
fn a_key_that_passes_to_another_session_has_one_owner() {
    let mut sessions = Sessions::new(100, &KeyKind::ALL, 1);
    let a = sessions
        .up(&info("a", &["192.0.2.1", "vlan:9"]), 0)
        .unwrap();
    let b = sessions.up(&info("b", &["192.0.2.1"]), 0).unwrap();
    assert_eq!(b.gained, ["192.0.2.1".parse().unwrap()]);
    assert_eq!(sessions.owner(&frame(), Direction::Up), b.slot);
    // The old session's interim update does not take it back, nor does its end take it away.
    let again = sessions
        .up(&info("a", &["192.0.2.1", "vlan:9"]), 0)
        .unwrap();
    assert_eq!((again.slot, again.gained), (a.slot, vec![]));
    assert_eq!(sessions.owner(&frame(), Direction::Up), b.slot);
    assert_eq!(sessions.down("a").lost, ["vlan:9".parse().unwrap()]);
    assert_eq!(sessions.owner(&frame(), Direction::Up), b.slot);
    assert_eq!(sessions.down("b").ended, 1);
    assert_eq!(sessions.owner(&frame(), Direction::Up), None);
}

#[test]
fn an_update_replaces_the_keys() {
    let mut sessions = Sessions::new(100, &[KeyKind::Ipv4], 1);
    sessions.up(&info("a", &["192.0.2.1"]), 0).unwrap();
    let applied = sessions
        .up(&info("a", &["192.0.2.2", "vlan:7"]), 0)
        .unwrap();
    assert_eq!(applied.gained, ["192.0.2.2".parse().unwrap()]);
    assert_eq!(applied.lost, ["192.0.2.1".parse().unwrap()]);
    assert_eq!(applied.unused, ["vlan:7".parse().unwrap()]);
    assert_eq!(sessions.owner(&frame(), Direction::Up), None);
}

#[test]
fn ended_sessions_hold_their_slot_until_their_records_are_made() {
    let mut sessions = Sessions::new(2, &KeyKind::ALL, 1);
    let event = |kind| SessionEvent {
        number: 1,
        received_unix_ns: 5,
        happened_unix_ns: Some(4),
        source: SessionSource::Radius,
        lost: None,
        kind,
    };
    let up = event(SessionEventKind::Up(info("nas1/a", &["192.0.2.1"])));
    let slot = sessions.apply(&up).unwrap().slot.unwrap();
    assert_eq!(sessions.get(slot).unwrap().started_unix_ns, 4);
    sessions.up(&info("nas2/b", &["192.0.2.2"]), 0).unwrap();
    let server = "nas1/".into();
    let applied = sessions
        .apply(&event(SessionEventKind::AllDown { server }))
        .unwrap();
    assert_eq!((applied.ended, sessions.len()), (1, 1));
    assert!(sessions.get(slot).unwrap().has_ended);
    let full = sessions.up(&info("c", &[]), 0).unwrap_err().to_string();
    assert!(full.contains("`c`") && full.contains("capacity"), "{full}");
    sessions.release_ended();
    assert!(sessions.get(slot).is_none());
    assert_eq!(sessions.up(&info("c", &[]), 0).unwrap().slot, Some(slot));
    // It comes back before its slot is free: the same one.
    sessions.down("c");
    assert_eq!(
        sessions.up(&info("c", &["192.0.2.1"]), 0).unwrap().slot,
        Some(slot)
    );
    sessions.release_ended();
    assert_eq!(sessions.owner(&frame(), Direction::Up), Some(slot));
    assert_eq!(sessions.down("unknown"), Applied::default());
    let keys = vec!["192.0.2.1"; KEYS_MAX + 1];
    assert!(sessions.up(&info("d", &keys), 0).is_err());
}

#[test]
fn of_sessions_that_ended_some_are_released() {
    let mut sessions = Sessions::new(3, &KeyKind::ALL, 1);
    for id in ["a", "b", "c"] {
        sessions.up(&info(id, &[]), 0).unwrap();
        sessions.down(id);
    }
    let ended = sessions.ended().to_vec();
    sessions.release_ended_if(1, |_, session| session.info.id != "b");
    assert_eq!(sessions.ended(), &ended[..2]);
    let ids: Vec<&str> = sessions
        .iter()
        .map(|(_, session)| session.info.id.as_str())
        .collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(
        sessions.up(&info("d", &[]), 0).unwrap().slot,
        Some(ended[2])
    );
    assert_eq!(sessions.len(), 1);
}
