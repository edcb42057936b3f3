//! Several processes that share the frames of one filter.

#[path = "common/brokered.rs"]
mod brokered;
mod common;
#[path = "common/live.rs"]
mod live;

use brokered::Brokered;
use live::{Net, Running, net};
use std::time::{Duration, Instant};
use weir_lab::net::Signal;

const POLICY: &str = r#"
[[grant]]
users = [65534]
interfaces = ["eth0"]
ports_max = 8
memory_max = "32 MiB"
take = true
"#;

/// Flows of each round, and frames of each.
const FLOWS: u64 = 40;
const FRAMES: u64 = 3;

fn brokered(name: &str) -> Option<Brokered> {
    brokered::brokered(name, POLICY)
}

fn send_flows(net: &Net) {
    // Each call has a socket of its own.
    (0..FLOWS).for_each(|_| net.send(5000, FRAMES as u32));
}

impl Brokered {
    fn listen(&self, fanout: &str) -> Running {
        let listen = ["listen", "eth0", "udp dst port 5000", "--take", "--json"];
        let more = ["--quiet", "--socket", &self.socket, "--fanout", fanout];
        self.net.weir_as_nobody(&[&listen[..], &more].concat())
    }

    /// What each port got, once that is this many frames in all: the kernel may pass frames of a busy
    /// machine on later.
    fn until_delivered(&self, frames: u64) -> Vec<u64> {
        let began = Instant::now();
        loop {
            let ports = self.ports();
            let ports = ports.as_array().unwrap().iter();
            let counts = ports.map(|port| port["delivered"].as_u64().unwrap());
            let counts: Vec<u64> = counts.collect();
            let sum = counts.iter().sum::<u64>();
            assert!(sum <= frames, "{counts:?} are more than {frames}");
            if sum == frames {
                return counts;
            }
            assert!(
                began.elapsed() < live::WAIT_MAX,
                "{counts:?} are not {frames}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Four listeners get each frame once; of a killed one's share the others get all.
#[test]
fn listeners_of_a_group_share_its_frames() {
    let Some(brokered) = brokered("fanout-group") else {
        return;
    };
    // One after the other, so that a listener's number is its member's.
    let listen = |number| {
        let listener = brokered.listen("workers");
        brokered.until_ports(number);
        listener
    };
    let mut listeners: Vec<Running> = (1..=4).map(listen).collect();
    let shown = brokered.until_ports(4);
    for (member, port) in (0..).zip(shown.as_array().unwrap()) {
        let expected = serde_json::json!({"group": "workers", "member": member, "members": 4});
        assert_eq!(port["fanout"], expected);
    }
    let table = brokered
        .net
        .weir(&["ports", "--socket", &brokered.socket])
        .end();
    for shown in ["fan-out", "workers:0/4", "workers:3/4"] {
        assert!(table.stdout.contains(shown), "{table:?}");
    }
    send_flows(&brokered.net);
    let before = brokered.until_delivered(FLOWS * FRAMES);
    assert!(
        before.iter().all(|count| count % FRAMES == 0 && *count > 0),
        "{before:?}"
    );

    drop(listeners.remove(1));
    let left = brokered.until_ports(3);
    assert_eq!(left[2]["fanout"]["member"], 2);
    send_flows(&brokered.net);
    let rest = before[0] + before[2] + before[3];
    brokered.until_delivered(rest + FLOWS * FRAMES);

    let _newcomer = brokered.listen("workers");
    brokered.until_ports(4);
    send_flows(&brokered.net);
    let now = brokered.until_delivered(rest + 2 * FLOWS * FRAMES);
    assert!(now[3] > 0, "a newcomer gets a share: {now:?}");

    let mut frames = 0;
    for listener in listeners {
        listener.signal(Signal::TERM);
        let ended = listener.end();
        frames += ended.json()["frames"].as_u64().unwrap();
    }
    assert_eq!(frames, now[..3].iter().sum::<u64>(), "read as delivered");
}

#[test]
fn a_group_by_a_number_has_so_many_members() {
    let Some(brokered) = brokered("fanout-number") else {
        return;
    };
    let _members = [brokered.listen("2"), brokered.listen("2")];
    brokered.until_ports(2);
    let refused = brokered.listen("2").end();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("`2` of this filter has 2 members"),
        "{refused:?}"
    );
}

/// Fixed shares need no broker, and a group needs one.
#[test]
fn shares_of_processes_without_a_broker() {
    let Some(net) = net() else { return };
    let listen = |fanout: &str| {
        let listen = [
            "listen",
            "eth0",
            "udp dst port 5000",
            "--json",
            "--fanout",
            fanout,
        ];
        net.weir(&[&listen[..], &["-q"]].concat())
    };
    let refused = listen("workers").end();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for words in ["--fanout workers", "weir broker", "such as 0/4"] {
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    let running = |share: &str| {
        let listen = [
            "listen",
            "eth0",
            "udp dst port 5000",
            "--json",
            "--fanout",
            share,
        ];
        net.weir(&listen).until("weir: port")
    };
    let shares = ["0/2", "1/2"].map(running);
    send_flows(&net);
    let counts = shares.map(|share| {
        // Frames are read within moments.
        std::thread::sleep(Duration::from_millis(300));
        share.signal(Signal::TERM);
        share.end().json()["frames"].as_u64().unwrap()
    });
    assert_eq!(counts.iter().sum::<u64>(), FLOWS * FRAMES, "{counts:?}");
    assert!(
        counts.iter().all(|count| count % FRAMES == 0 && *count > 0),
        "{counts:?}"
    );
}
