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

/// Connections that no process accepts wait in the stack, beyond those of the backlog: the owner has a
/// descriptor for each of the latter alone. All are served in the end.
#[test]
fn connections_beyond_the_backlog_take_none_of_the_owners_descriptors() {
    const CLIENTS: usize = 40;
    let Some(kernel) = bench("exec-backlog", &["python3"]) else {
        return;
    };
    let server = limits(&kernel, "backlog");
    said(&kernel, "ready");
    let address = (OURS[0], 4000);
    thread::scope(|scope| {
        let serve = || {
            let mut stream = kernel.host.run(|| TcpStream::connect(address)).unwrap();
            stream.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
            stream.write_all(b"abc").unwrap();
            let mut answer = [0; 3];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"cba");
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(serve)).collect();
        // Those that the stack has no room for try again after a second.
        thread::sleep(Duration::from_millis(1500));
        kernel.folder.write("count", b"");
        let taken: usize = said(&kernel, "taken").parse().unwrap();
        kernel.folder.write("go", b"");
        for client in clients {
            client.join().unwrap();
        }
        assert!((5..30).contains(&taken), "{taken} descriptors");
    });
    said(&kernel, "done");
    server.signal_at_once(Signal::KILL);
    assert_eq!(server.end().stderr, "");
}

/// The kernel passes no descriptors while too many of the user's are on their way: a child keeps what it
/// may ask for, and the relay waits at rest with a connection that it cannot pass.
#[test]
fn a_shortage_of_descriptors_in_flight_passes() {
    let Some(kernel) = bench("exec-inflight", &["python3"]) else {
        return;
    };
    let server = limits(&kernel, "inflight");
    assert_eq!(said(&kernel, "refused"), "ENETDOWN");
    said(&kernel, "drained");
    let serve = |stream: &mut TcpStream| {
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"cba");
    };
    let mut stream = connect(&kernel, 4000);
    stream.write_all(b"abc").unwrap();
    serve(&mut stream);
    kernel.folder.write("served", b"");
    said(&kernel, "full");
    let mut stream = connect(&kernel, 4000);
    stream.write_all(b"abc").unwrap();
    let busy = busy(server.id());
    assert!(busy < REST, "{busy:?} of a second");
    kernel.folder.write("drain", b"");
    serve(&mut stream);
    said(&kernel, "done");
    server.signal_at_once(Signal::KILL);
    server.end();
}

/// The owner would close them, which may take as long as the process likes.
#[test]
fn processes_pass_the_owner_no_descriptors() {
    let Some(kernel) = bench("exec-rights", &["python3"]) else {
        return;
    };
    let server = limits(&kernel, "rights");
    let mut stream = connect(&kernel, 4000);
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    let ended = server.end();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    match lines[..] {
        // With the library, and without it.
        ["EINVAL", "EPERM", "1"] => assert_eq!(got, b"done", "{ended:?}"),
        // A kernel without SO_PASSRIGHTS.
        ["EINVAL", "passed", "ENOPROTOOPT"] => {}
        _ => panic!("{ended:?}"),
    }
}

/// Else another user's process could choose the peer's address that a server sees.
#[test]
fn a_descriptor_that_no_owner_has_made_is_not_a_relayed_one() {
    let Some(kernel) = bench("exec-forged", &["python3"]) else {
        return;
    };
    let program = limits(&kernel, "forged");
    said(&kernel, "ready");
    let script = kernel.folder.path("limits.py");
    let folder = kernel.folder.path("");
    kernel.run(&format!("python3 {script} forger {folder}"));
    let ended = program.end();
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), "AF_UNIX\nAF_UNIX\n"),
        "{ended:?}"
    );
}

#[test]
fn a_second_descriptor_in_a_message_is_not_kept() {
    let Some(kernel) = bench("exec-twice", &["python3"]) else {
        return;
    };
    let ended = limits(&kernel, "twice").end();
    let expected = "EADDRINUSE\n".repeat(6) + "left: 0\n";
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), expected.as_str()),
        "{ended:?}"
    );
}
