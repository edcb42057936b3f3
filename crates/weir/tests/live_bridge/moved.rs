//! `weir bridge` when an interface is moved to another network namespace.

use crate::live::Running;
use crate::{Net, net};
use weir_lab::net::{Device, Process, Signal};
use weir_lab::testenv;
use weir_link::net::Interface;

const OPTIONS: [&str; 4] = ["--bypass", "wire", "--hang-ms", "10000"];

impl Net {
    /// Moves `right` to `b`, where a process lives.
    fn move_right(&self) -> (Device, Process) {
        let mut sleep = testenv::program("sleep").unwrap();
        sleep.arg("1000");
        let process = self.b.spawn(sleep).unwrap();
        self.right.move_to(&self.b).unwrap();
        (self.b.device("right").unwrap(), process)
    }

    /// A bridge that was killed.
    fn killed(&self) {
        let bridge: Running = self.bridge(&OPTIONS).until("ready");
        bridge.signal(Signal::KILL);
        assert_eq!(bridge.end().code, None);
        assert_eq!(self.attached(), [true, true]);
    }
}

fn has_xdp(device: &Device) -> bool {
    let found = device.host().run(|| Interface::numbered(device.index()));
    found.unwrap().xdp.is_some()
}

#[test]
fn an_interface_that_was_moved_away_is_gone() {
    let Some(net) = net() else { return };
    let bridge = net.bridge(&OPTIONS).until("ready");
    let (right, _process) = net.move_right();
    let ended = bridge.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("`right` is gone"), "{ended:?}");
    assert!(net.attached()[0], "the bypass stays");
    assert!(right.is_promiscuous().unwrap());
    let cleaned = net.clean();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert!(!net.attached()[0]);
    assert!(!right.is_promiscuous().unwrap());
    let again = net.clean();
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(
        again.stderr.contains("there is no interface `right`"),
        "{again:?}"
    );
}

#[test]
fn killed_what_was_moved_away_is_cleaned_there() {
    let Some(net) = net() else { return };
    net.killed();
    let (right, _process) = net.move_right();
    assert!(net.is_promiscuous() && right.is_promiscuous().unwrap());
    assert!(has_xdp(&right));
    let cleaned = net.clean();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert!(!net.is_promiscuous() && !right.is_promiscuous().unwrap());
    assert!(!net.attached()[0] && !has_xdp(&right));
}

#[test]
fn killed_what_the_operator_made_promiscuous_stays_so_where_it_was_moved() {
    let Some(net) = net() else { return };
    net.right.set_promiscuous(true).unwrap();
    net.killed();
    let (right, _process) = net.move_right();
    let cleaned = net.clean();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert!(!net.is_promiscuous() && right.is_promiscuous().unwrap());
    assert!(!has_xdp(&right));
}

/// A namespace that only a descriptor holds.
#[test]
fn killed_what_cannot_be_found_is_named_with_a_remedy() {
    let Some(net) = net() else { return };
    net.killed();
    net.right.move_to(&net.b).unwrap();
    let right = net.b.device("right").unwrap();
    let cleaned = net.clean();
    assert_eq!(cleaned.code, Some(1), "{cleaned:?}");
    let said = "in another network namespace, stays promiscuous: no namespace with a process";
    assert!(cleaned.stderr.contains(said), "{cleaned:?}");
    assert!(
        cleaned.stderr.contains("ip link set dev NAME promisc off"),
        "{cleaned:?}"
    );
    assert!(right.is_promiscuous().unwrap());
    assert!(!net.attached()[0] && !has_xdp(&right));
}
