//! Tests of persistent gates.

use super::pin_dir;
use super::*;
use weir_lab::net::Lab;
use weir_lab::testenv;

#[test]
fn what_stayed_is_taken_off_for_one_that_does_not_stay() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (device, _) = lab.link(&a, &b).connect().unwrap();
    a.run(|| {
        let interface = Interface::numbered(device.index()).unwrap();
        drop(Gate::attach(&[&interface], Bypass::Wire, true).unwrap());
        let gate = Gate::attach(&[&interface], Bypass::Kernel, false).unwrap();
        assert!(!gate.is_adopted());
        // A pin directory without stale programs.
        let second = Gate::attach(&[&interface], Bypass::Kernel, false);
        let second = second.unwrap_err();
        assert!(matches!(second, GateError::Taken { .. }), "{second:?}");
        let by = format!("by process {} (", std::process::id());
        assert!(second.to_string().contains(&by), "{second}");
        drop(gate);
        assert!(!Gate::clean_stale(&[&interface]).unwrap(), "nothing stays");
        let gate = Gate::attach(&[&interface], Bypass::Wire, true).unwrap();
        assert!(!gate.is_adopted());
        gate.end().unwrap();
    });
}

#[test]
fn what_stayed_goes_when_its_interfaces_are_gone() {
    if !testenv::root() {
        return;
    }
    let net = || {
        let lab = Lab::new();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (device, _) = lab.link(&a, &b).connect().unwrap();
        (lab, a, b, device)
    };
    let leave = |host: &weir_lab::net::Host, index: u32| {
        host.run(|| {
            let interface = Interface::numbered(index).unwrap();
            drop(Gate::attach(&[&interface], Bypass::Wire, true).unwrap());
            pin_dir::name(&[index]).unwrap()
        })
    };
    let (stays, goes, last) = (net(), net(), net());
    let stayed = leave(&stays.1, stays.3.index());
    let gone = leave(&goes.1, goes.3.index());
    drop(goes);
    let began = std::time::Instant::now();
    loop {
        // The next caller sweeps; the kernel needs some time to remove the
        // namespace.
        let mine = leave(&last.1, last.3.index());
        let taps = pin_dir::parent().unwrap();
        let (_, folders) = taps.list().unwrap();
        assert!(folders.contains(&stayed) && folders.contains(&mine));
        if !folders.contains(&gone) {
            break;
        }
        assert!(began.elapsed().as_secs() < 60, "{gone} stays");
        drop(taps);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for net in [&stays, &last] {
        net.1.run(|| {
            let interface = Interface::numbered(net.3.index()).unwrap();
            assert!(Gate::clean_stale(&[&interface]).unwrap());
        });
    }
}

#[test]
fn what_stayed_goes_when_one_of_two_interfaces_is_gone() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let link = || lab.link(&a, &b).connect().unwrap().0;
    let (stays, goes, other) = (link(), link(), link());
    a.run(|| {
        let of = |index| Interface::numbered(index).unwrap();
        let left = Gate::attach(&[&of(stays.index()), &of(goes.index())], Bypass::Drop, true);
        drop(left.unwrap());
        let (stays, other) = (of(stays.index()), of(other.index()));
        // Both interfaces exist: the pair is left alone by processes that want
        // other interfaces.
        assert!(!Gate::clean_stale(&[&stays, &other]).unwrap());
        assert!(of(stays.index).xdp.is_some());
        goes.delete().unwrap();
        assert!(
            !Gate::clean_stale(&[&other]).unwrap(),
            "of another interface"
        );
        assert!(Gate::clean_stale(&[&stays, &other]).unwrap());
        let now = of(stays.index);
        assert!(now.xdp.is_none(), "{now:?}");
        let gate = Gate::attach(&[&other, &stays], Bypass::Wire, true).unwrap();
        gate.end().unwrap();
    });
}

/// Numbers of network namespaces and interfaces are reused.
#[test]
fn what_another_version_left_at_interfaces_that_are_gone_is_nothing() {
    if !testenv::root() || !testenv::programs(&["ip"]) {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (device, _) = lab.link(&a, &b).connect().unwrap();
    let (name, index) = (device.name(), device.index());
    let ip = |words: String| {
        let mut ip = testenv::program("ip").expect("the test has asked for it");
        let done = ip.args(words.split_whitespace()).status().unwrap();
        assert!(done.success(), "{words}");
    };
    let attach = || {
        let interface = Interface::numbered(index).unwrap();
        Gate::attach(&[&interface], Bypass::Wire, true)
    };
    a.run(|| {
        let left = attach().unwrap();
        let version = left.page.atomic_u64(at::VERSION);
        version.store(1, Ordering::Release);
        drop(left);
        let refused = attach();
        assert!(
            matches!(refused, Err(GateError::OtherVersion)),
            "{refused:?}"
        );
        ip(format!("link del {name}"));
        ip(format!(
            "link add {name} index {index} type veth peer name other index 9999"
        ));
        let gate = attach().unwrap();
        assert!(!gate.is_adopted());
        gate.end().unwrap();
    });
}

/// Not ready yet, or shut after a hang: the owner lives.
#[test]
fn an_owned_link_has_no_second_owner() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let link = || lab.link(&a, &b).connect().unwrap().0;
    let (first, second, third) = (link(), link(), link());
    a.run(|| {
        let of = |index| Interface::numbered(index).unwrap();
        let (first, second) = (of(first.index()), of(second.index()));
        let third = of(third.index());
        let attach = |all: &[&Interface], outlive| Gate::attach(all, Bypass::Drop, outlive);
        let gate = attach(&[&first, &second], true).unwrap();
        let refused = |with: Result<(), GateError>, names: &[&Interface]| {
            let names: Vec<&str> = names.iter().map(|one| &*one.name).collect();
            let error = with.unwrap_err();
            let GateError::InUse { interfaces, by } = &error else {
                panic!("{error}");
            };
            assert_eq!(*interfaces, names);
            let by = by.as_ref().expect("the kernel tells");
            assert_eq!(by.process, std::process::id());
            let said = error.to_string();
            assert!(names.iter().all(|name| said.contains(name)), "{said}");
            assert!(said.contains(&format!("process {}", by.process)), "{said}");
        };
        let both = [&second, &first];
        refused(Gate::clean_stale(&both).map(drop), &both);
        gate.page.open(1);
        refused(attach(&both, false).map(drop), &both);
        for outlive in [true, false] {
            refused(attach(&[&second, &third], outlive).map(drop), &[&second]);
        }
        gate.page.shut();
        refused(attach(&both, true).map(drop), &both);
        assert!(gate.is_attached(0).unwrap() && gate.is_attached(1).unwrap());
        drop(gate);
        let gate = attach(&[&first, &second], true).unwrap();
        assert!(gate.is_adopted());
        gate.end().unwrap();
    });
}

/// Another process removed the folder between the two steps.
#[test]
fn cleaning_creates_no_folder() {
    if !testenv::root() {
        return;
    }
    let taps = pin_dir::parent().unwrap();
    let name = format!("{}-1", pin_dir::name(&[]).unwrap());
    assert!(!Gate::clean_dir(&taps, &name, &[]).unwrap().found);
    assert!(!taps.list().unwrap().1.contains(&name));
    let there = taps.folder(&name).unwrap();
    assert_eq!(taps.existing(&name).unwrap().unwrap().path(), there.path());
    assert!(taps.remove_folder(&name).unwrap());
    assert!(!there.is_there().unwrap());
}

/// Where the interfaces of a stale gate are.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Moved {
    /// Both in the other namespace.
    Both,
    /// One in a namespace with a process.
    ToProcess,
    /// One in a namespace that only a descriptor holds.
    ToNone,
}

/// Into a namespace without a weir process, with the old number or another one.
#[test]
fn what_stayed_goes_when_an_interface_was_moved_away() {
    if !testenv::root() {
        return;
    }
    for case in [Moved::Both, Moved::ToProcess, Moved::ToNone] {
        let lab = Lab::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| lab.host(name).unwrap());
        let link = || lab.link(&a, &b).connect().unwrap().0.index();
        let (stays, moves) = (link(), link());
        let move_away = |name: &str| {
            a.device(name).unwrap().move_to(&c).unwrap();
        };
        let _process = (case == Moved::ToProcess).then(|| asleep(&c));
        let of = |index| Interface::numbered(index).unwrap();
        let moved = a.run(|| {
            let (stays, moves) = (of(stays), of(moves));
            let gate = Gate::attach(&[&stays, &moves], Bypass::Drop, true).unwrap();
            let [first, all] = [1, 2].map(|count| gate.attachment_check(0..count).unwrap());
            assert!(gate.is_attached(1).unwrap() && all.are_attached().unwrap());
            move_away(&moves.name);
            assert!(!gate.is_attached(1).unwrap(), "not from here");
            assert!(!all.are_attached().unwrap(), "not from here");
            assert!(gate.is_attached(0).unwrap() && first.are_attached().unwrap());
            drop((first, all));
            assert!(!Gate::clean_stale(&[&stays]).unwrap(), "it has an owner");
            drop(gate);
            if case == Moved::Both {
                move_away(&stays.name);
            }
            moves.name
        });
        let is_promiscuous = || c.device(&moved).unwrap().is_promiscuous().unwrap();
        assert!(is_promiscuous(), "{case:?}");
        // Where the interfaces are now, if both exist.
        let host = if case == Moved::Both { &c } else { &a };
        host.run(|| {
            let all = crate::net::interfaces().unwrap();
            let tapped: Vec<&Interface> = all.iter().filter(|one| one.xdp.is_some()).collect();
            assert_eq!(tapped.len(), if case == Moved::Both { 2 } else { 1 });
            let cleaned = Gate::clean_stale(&tapped);
            if case == Moved::ToNone {
                let error = cleaned.unwrap_err().to_string();
                assert!(
                    error.contains("ip link set dev NAME promisc off"),
                    "{error}"
                );
            } else {
                assert!(cleaned.unwrap(), "{case:?}");
            }
            assert!(tapped.iter().all(|one| of(one.index).xdp.is_none()));
            assert!(!Gate::clean_stale(&tapped).unwrap(), "nothing is left");
        });
        c.run(|| assert!(Interface::named(&moved).unwrap().xdp.is_none()));
        assert_eq!(is_promiscuous(), case == Moved::ToNone, "{case:?}");
    }
}

/// Starts a process in a host.
fn asleep(host: &weir_lab::net::Host) -> weir_lab::net::Process {
    let mut sleep = testenv::program("sleep").unwrap();
    sleep.arg("1000");
    host.spawn(sleep).unwrap()
}

/// By the next start at an interface that stayed.
#[test]
fn what_an_operator_made_promiscuous_stays_so_where_it_was_moved() {
    if !testenv::root() {
        return;
    }
    for outlive in [true, false] {
        let lab = Lab::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| lab.host(name).unwrap());
        let link = || lab.link(&a, &b).connect().unwrap().0;
        let (stays, ours, operators, other) = (link(), link(), link(), link());
        operators.set_promiscuous(true).unwrap();
        let process = asleep(&c);
        let start = |devices: &[&weir_lab::net::Device], outlive| {
            let all = devices.iter().map(|one| Interface::numbered(one.index()));
            let all: Vec<Interface> = all.collect::<Result<_, _>>().unwrap();
            let all: Vec<&Interface> = all.iter().collect();
            Gate::attach(&all, Bypass::Wire, outlive).unwrap()
        };
        a.run(|| drop(start(&[&stays, &ours, &operators], true)));
        let moved = [&ours, &operators].map(|device| {
            let name = device.name().to_owned();
            device.move_to(&c).unwrap();
            c.device(&name).unwrap()
        });
        let promiscuous =
            || [&moved[0], &moved[1], &stays].map(|device| device.is_promiscuous().unwrap());
        assert_eq!(promiscuous(), [true, true, true]);
        a.run(|| {
            let gate = start(&[&stays, &other], outlive);
            assert!(!gate.is_adopted() && gate.still_promiscuous().is_none());
            assert_eq!(promiscuous(), [false, true, true]);
            gate.end().unwrap();
        });
        assert_eq!(promiscuous(), [false, true, false]);

        // A start goes on where the interface cannot be found, and says so.
        a.run(|| drop(start(&[&stays, &other], true)));
        let name = other.name().to_owned();
        other.move_to(&c).unwrap();
        drop(process);
        a.run(|| {
            let gate = start(&[&stays], outlive);
            let said = gate.still_promiscuous().map(ToString::to_string);
            let said = said.unwrap_or_default();
            assert!(said.contains("stays promiscuous"), "{said:?}");
            gate.end().unwrap();
        });
        assert!(c.device(&name).unwrap().is_promiscuous().unwrap());
    }
}
