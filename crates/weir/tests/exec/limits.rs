//! Peers and processes that take more than their part of the relay.

use super::*;

const LIMITS: &str = include_str!("limits.py");

/// Starts `limits.py` in this manner.
fn limits(kernel: &Bench, manner: &str) -> Running {
    let script = kernel.folder.write("limits.py", LIMITS.as_bytes());
    let folder = kernel.folder.path("");
    exec(kernel, &[], &["python3", &script, manner, &folder])
}

/// The text of a file of the script, once it is there.
fn said(kernel: &Bench, name: &str) -> String {
    let path = kernel.folder.path(name);
    wait::until("a file of the script", || std::fs::exists(&path).unwrap());
    std::fs::read_to_string(path).unwrap()
}

/// The processor time that a process takes in one second (`/proc/PID/stat`, in ticks of 10 ms).
fn busy(process: u32) -> Duration {
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let fields = fields.split(' ').skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum()
    };
    let before = ticks();
    thread::sleep(Duration::from_secs(1));
    Duration::from_millis(10 * (ticks() - before))
}

/// Most processor time of a relay at rest, in one second.
const REST: Duration = Duration::from_millis(300);

/// All processes have closed the connection, and its peer takes nothing for a while: the relay waits
/// at rest, and the peer gets all that was written.
#[test]
fn a_peer_that_does_not_read_does_not_keep_the_owner_busy() {
    let Some(kernel) = bench("exec-unread", &["python3"]) else {
        return;
    };
    let server = limits(&kernel, "unread");
    let mut stream = connect(&kernel, 4000);
    said(&kernel, "left");
    let busy = busy(server.id());
    assert!(busy < REST, "{busy:?} of a second");
    let count: usize = said(&kernel, "count").parse().unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), count);
    let mut wrong = got.iter().enumerate();
    assert!(wrong.all(|(at, byte)| usize::from(*byte) == at % 251));
    server.signal_at_once(Signal::KILL);
    assert_eq!(server.end().stderr, "");
}
