//! Interfaces and their monitors, in a network namespace of the test.

use std::time::Duration;
use weir_lab::net::{Device, Host, Lab, unprivileged};
use weir_lab::testenv;
use weir_link::net::{
    Event, Interface, InterfaceError, InterfaceMonitor, NeighbourUpdate, Neighbours, drops,
    interfaces,
};
use weir_wire::LinkType;

/// Runs a test on a host with a link to itself; skips the test without root.
fn on_a_link(test: impl FnOnce(&Host, &Device, &Device) + Send) {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let host = lab.host("here").unwrap();
    let link = lab.link(&host, &host);
    let (a, b) = link
        .addresses([10, 1, 2, 3], [10, 1, 2, 4], 24)
        .connect()
        .unwrap();
    host.run(|| test(&host, &a, &b));
}

#[test]
fn an_interface_says_what_it_is() {
    on_a_link(|_, a, b| {
        let facts = Interface::named(a.name()).unwrap();
        assert_eq!(facts.index, a.index());
        assert_eq!(facts.linktype, Some(LinkType::EN10MB));
        assert_eq!(facts.address, a.mac().0);
        assert_eq!(facts.broadcast, [0xff; 6]);
        assert_eq!(
            (facts.mtu, facts.header_bytes(), facts.frame_bytes_max()),
            (1500, 14, 1514)
        );
        assert!(facts.up && facts.running);
        let addresses: Vec<String> = facts.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.1.2.3/24"]);
        assert_eq!(facts.xdp, None);
        assert_eq!(Interface::numbered(a.index()).unwrap(), facts);
        b.down().unwrap();
        let facts = Interface::named(a.name()).unwrap();
        assert!(facts.up && !facts.running);
        let loopback = Interface::named("lo").unwrap();
        assert_eq!(loopback.linktype, Some(LinkType::EN10MB));
        assert_eq!(interfaces().unwrap().len(), 3);
    });
}

#[test]
fn features_are_those_of_the_driver() {
    use weir_lab::net::Offloads;
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let host = lab.host("here").unwrap();
    for offloads in [Offloads::OFF, Offloads::VETH] {
        let (a, _b) = lab.link(&host, &host).offloads(offloads).connect().unwrap();
        let features = host.run(|| Interface::numbered(a.index()).unwrap().features());
        assert_eq!(features.tx_checksums, offloads.tx_checksums);
        assert_eq!(features.tcp_segmentation, offloads.tcp_segmentation);
        assert_eq!(features.generic_segmentation, offloads.generic_segmentation);
        assert_eq!(features.generic_receive, offloads.generic_receive);
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    on_a_link(|_, a, _| {
        let error = Interface::named("eth9").unwrap_err();
        assert!(matches!(error, InterfaceError::Missing { .. }));
        let text = error.to_string();
        assert!(text.contains("`eth9`") && text.contains(a.name()), "{text}");
    });
}

#[test]
fn user_nobody_may_ask() {
    on_a_link(|_, a, _| {
        let facts = unprivileged::run(|| Interface::named(a.name()).unwrap());
        assert_eq!(facts.index, a.index());
        unprivileged::run(|| InterfaceMonitor::open().map(drop).unwrap());
    });
}

/// Reads events until the last of `expected` arrives for `index`.
fn expect(monitor: &mut InterfaceMonitor, expected: &[Event]) {
    let mut found = Vec::new();
    while !found.contains(&expected[expected.len() - 1]) {
        match monitor.next_event(Some(Duration::from_secs(5))).unwrap() {
            Some(event) if event.index() == expected[0].index() => found.push(event),
            Some(_) => {}
            None => panic!("no more than {found:?}, expected {expected:?}"),
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn changes_of_an_interface_are_reported() {
    on_a_link(|_, a, b| {
        let mut monitor = InterfaceMonitor::open().unwrap();
        assert_eq!(monitor.next_event(Some(Duration::ZERO)).unwrap(), None);
        assert!(monitor.known().any(|i| i.name == a.name() && i.running));
        let (index, name) = (a.index(), a.name().to_owned());
        b.down().unwrap();
        expect(&mut monitor, &[Event::NotRunning { index }]);
        b.up().unwrap();
        expect(&mut monitor, &[Event::Running { index }]);
        a.set_mtu(900).unwrap();
        let (from, to) = (1500, 900);
        expect(&mut monitor, &[Event::MtuChanged { index, from, to }]);
        a.down().unwrap();
        expect(&mut monitor, &[Event::Down { index }]);
        let mut renamed = a.clone();
        renamed.rename("other").unwrap();
        let (from, to) = (name, "other".to_owned());
        expect(&mut monitor, &[Event::Renamed { index, from, to }]);
        a.up().unwrap();
        expect(
            &mut monitor,
            &[Event::Up { index }, Event::Running { index }],
        );
        b.clone().delete().unwrap();
        let name = "other".to_owned();
        let (removed, mut last) = (Some(Event::Removed { index, name }), None);
        loop {
            // The kernel takes its time to remove a device; nothing may follow.
            let time = if last == removed {
                Duration::from_millis(500)
            } else {
                Duration::from_secs(10)
            };
            let Some(event) = monitor.next_event(Some(time)).unwrap() else {
                break;
            };
            if event.index() == index {
                last = Some(event);
            }
        }
        assert_eq!(last, removed);
    });
}

#[test]
fn dropped_notifications_are_found_out() {
    on_a_link(|_, a, b| {
        let mut monitor = InterfaceMonitor::open().unwrap();
        // More than the socket's buffer holds (208 KiB, about 1 KiB for each).
        for round in 0..600 {
            a.set_mtu(1000 + round % 2).unwrap();
        }
        a.set_mtu(777).unwrap();
        b.set_mtu(778).unwrap();
        let mut told = 0;
        while monitor.next_event(Some(Duration::ZERO)).unwrap().is_some() {
            told += 1;
        }
        assert!(told < 600, "nothing was dropped: {told} events");
        let mtu = |index| monitor.known().find(|i| i.index == index).map(|i| i.mtu);
        assert_eq!((mtu(a.index()), mtu(b.index())), (Some(777), Some(778)));
    });
}

#[test]
fn an_interface_of_another_kind_has_its_own_link_type() {
    on_a_link(|host, _, _| {
        if !testenv::tun() {
            return;
        }
        host.tun("raw0").unwrap();
        let facts = Interface::named("raw0").unwrap();
        assert_eq!(
            (facts.linktype, facts.header_bytes()),
            (Some(LinkType::RAW), 0)
        );
        assert!(facts.address.is_empty() && !facts.up);
    });
}

#[test]
fn drops_are_those_that_the_kernel_counts() {
    on_a_link(|_, a, _| {
        let counted = |name: &str| -> u64 {
            let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let line = text
                .lines()
                .find_map(|line| line.trim_start().strip_prefix(&format!("{name}:")))
                .unwrap();
            line.split_whitespace().nth(3).unwrap().parse().unwrap()
        };
        assert_eq!(drops(a.index()).unwrap(), counted(a.name()));
        let error = drops(99).unwrap_err();
        assert!(matches!(error, InterfaceError::Missing { .. }), "{error}");
    });
}

#[test]
fn the_kernel_gets_the_neighbours_that_it_solicits() {
    on_a_link(|host, a, _| {
        if !testenv::programs(&["ip"]) {
            return;
        }
        let ip = |arguments: &str| {
            let mut command = testenv::program("ip").expect("it is there");
            command.args(arguments.split(' '));
            let output = host.output(command).unwrap();
            assert!(output.status.success(), "ip {arguments}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let name = a.name();
        let news = NeighbourUpdate {
            ifindex: a.index(),
            address: [10, 1, 2, 9].into(),
            hardware: [2, 0, 0, 0, 0, 9],
            solicited: true,
            replaces: true,
            router: false,
        };
        let shown = || ip(&format!("neigh show 10.1.2.9 dev {name}"));
        let mut kernel = Neighbours::open().unwrap();
        assert!(!kernel.confirm(&news).unwrap());
        assert_eq!(shown(), "", "nobody has asked");
        ip(&format!(
            "neigh add 10.1.2.9 dev {name} lladdr 2:0:0:0:0:1 nud stale"
        ));
        assert!(kernel.confirm(&news).unwrap());
        assert!(
            shown().contains("02:00:00:00:00:09 REACHABLE"),
            "{}",
            shown()
        );
        let other = NeighbourUpdate {
            hardware: [2, 0, 0, 0, 0, 7],
            replaces: false,
            ..news
        };
        kernel.confirm(&other).unwrap();
        assert!(shown().contains("02:00:00:00:00:09"), "{}", shown());
        ip(&format!(
            "neigh replace 10.1.2.9 dev {name} lladdr 2:0:0:0:0:1 nud permanent"
        ));
        assert!(!kernel.confirm(&news).unwrap());
        assert!(
            shown().contains("02:00:00:00:00:01 PERMANENT"),
            "{}",
            shown()
        );
        let nowhere = NeighbourUpdate {
            ifindex: 999,
            ..news
        };
        assert!(kernel.confirm(&nowhere).is_err());
    });
}
