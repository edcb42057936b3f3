//! Reaction times to signals, as the service manager is notified.

use super::{Background, LOADS, Net};
use crate::common::{until_it_hears, weir};
use crate::live::{Running, WAIT_MAX};
use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};
use weir_lab::net::Signal;

/// What a busy machine leaves of the bound of 5 ms, in two runs.
const SOON: Duration = Duration::from_millis(20);

/// Waits until a notification contains these words.
fn told(manager: &UnixDatagram, words: &str) {
    let mut buffer = [0; 256];
    loop {
        let len = manager.recv(&mut buffer).expect(words);
        if String::from_utf8_lossy(&buffer[..len]).contains(words) {
            return;
        }
    }
}

fn stops(name: &str, arguments: &[&str]) {
    let Some(net) = Net::new(name) else { return };
    let path = net.folder.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let _other = net.hears(&net.b, "198.51.100.9", 9);
    if arguments[0] == "bridge" {
        // Forwards frames for b unchanged.
        let b = net.b.device("eth0").unwrap().mac();
        let gateway: IpAddr = "192.0.2.1".parse().unwrap();
        let a = net.a.device("eth0").unwrap();
        a.add_neighbour(gateway, b).unwrap();
    }
    for load in LOADS {
        let (mut acted, mut ended) = (Vec::new(), Vec::new());
        // A busy machine has more runs; what waits for frames or time never is soon.
        while acted.len() < 5 || acted[1] >= SOON && acted.len() < 20 {
            let mut command = weir([]);
            command.env("NOTIFY_SOCKET", &path);
            let running = Running::start(&net.r, command, arguments).until("ready");
            told(&manager, "READY=1");
            until_it_hears(running.id());
            let _background = Background::of(load, net.sends("198.51.100.9", 9));
            std::thread::sleep(Duration::from_millis(130));
            let began = Instant::now();
            running.signal(Signal::TERM);
            told(&manager, "STOPPING=1");
            acted.push(began.elapsed());
            assert_eq!(running.end().code, Some(0));
            ended.push(began.elapsed());
            acted.sort();
        }
        ended.sort();
        println!("{arguments:?}, {load:?}: acted upon after {acted:?}, ended after {ended:?}");
        assert!(acted[1] < SOON, "{load:?}: {acted:?}");
    }
}

#[test]
fn a_router_ends_soon() {
    stops(
        "stop-route",
        &["route", "eth0", "eth1", "--hang-ms", "2000"],
    );
}

#[test]
fn a_bridge_ends_soon() {
    stops(
        "stop-bridge",
        &["bridge", "eth0", "eth1", "--hang-ms", "2000"],
    );
}
