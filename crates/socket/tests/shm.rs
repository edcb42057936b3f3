//! Hosts on a link in shared memory, which may as well be of several processes: weir/tests/exec/shared.rs.

use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_ring::shared_link::STATIONS_MAX;
use weir_socket::link::{BATCH, Link, Shm};
use weir_socket::{Net, TcpListener, TcpStream, UdpSocket};
use weir_stack::{Config, TxSink};
use weir_wire::ethernet::Address;

/// Long enough for anything that ought to happen.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A name that no other test has.
fn name(test: &str) -> String {
    format!("test-{test}-{}", std::process::id())
}

fn mac(host: u8) -> Address {
    Address([2, 0, 0, 0, 0, host])
}

/// The host at 192.0.2.HOST.
fn net(link: &str, host: u8) -> Net {
    let address = format!("192.0.2.{host}/24").parse().unwrap();
    let config = Config::new(mac(host)).address(address);
    Net::new(Shm::join(link, mac(host)).unwrap(), &config).unwrap()
}

fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], port))
}

/// Where the files of a link are.
fn folder(link: &str) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let all = [
        "/run/weir-link".to_owned(),
        format!("/run/user/{uid}/weir-link"),
        format!("/dev/shm/weir-link-{uid}"),
    ];
    let mut all = all.iter().map(|folder| PathBuf::from(folder).join(link));
    all.find(|folder| folder.exists())
        .expect("the link is there")
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.bits() as u8).collect()
}

/// Sends the bytes from one host to another, which must get the same.
fn carry(from: &Net, to: &Net, port: u16, host: u8, sent: &[u8]) {
    let listener = TcpListener::bind(to, at(host, port)).unwrap();
    let mut stream = TcpStream::connect(from, at(host, port)).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            stream.write_all(sent).unwrap();
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received).unwrap();
        assert!(received == sent, "other bytes");
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the end");
    });
}

#[test]
fn three_hosts_find_each_other_and_carry_tcp_and_udp_whole() {
    let link = name("three");
    let nets = [1, 2, 3].map(|host| (host, net(&link, host)));
    let sent = bytes(3, 4 << 20);
    for (from, one) in &nets {
        for (to, other) in nets.iter().filter(|(to, _)| to != from) {
            let port = 7000 + u16::from(from * 10 + to);
            carry(one, other, port, *to, &sent);
            let receiver = UdpSocket::bind(other, at(*to, port)).unwrap();
            receiver.set_read_timeout(Some(WAIT_MAX)).unwrap();
            let sender = UdpSocket::bind(one, at(*from, port)).unwrap();
            for len in [0, 1, 1472, 1473, 60_000] {
                sender.send_to(&sent[..len], at(*to, port)).unwrap();
                let mut received = vec![0; 65_536];
                let (count, by) = receiver.recv_from(&mut received).unwrap();
                assert_eq!((count, by), (len, at(*from, port)));
                assert!(received[..len] == sent[..len]);
            }
        }
    }
    drop(nets);
}

#[test]
fn the_last_station_leaves_no_files() {
    let link = name("files");
    let first = Shm::join(&link, mac(1)).unwrap();
    let files = folder(&link);
    let second = Shm::join(&link, mac(2)).unwrap();
    drop(first);
    assert!(files.exists());
    drop(second);
    assert!(!files.exists());
}

#[test]
fn places_and_addresses_are_bounded_and_come_back() {
    let link = name("places");
    let join = |host| Shm::join(&link, mac(host));
    let mut stations: Vec<Shm> = (1..=STATIONS_MAX as u8)
        .map(|host| join(host).unwrap())
        .collect();
    let full = join(100).unwrap_err().to_string();
    assert!(full.contains("16 stations"), "{full}");
    let left = stations.remove(5);
    let taken = join(3).unwrap_err().to_string();
    assert!(taken.contains("MAC address"), "{taken}");
    drop(left);
    assert_eq!(join(3).map(|_| ()).unwrap_err().to_string(), taken);
    join(100).unwrap();
}

/// The last station removes the folder, perhaps just as another joins.
#[test]
fn stations_join_while_the_last_one_leaves() {
    let link = name("churn");
    thread::scope(|scope| {
        for host in 1..=4 {
            let link = &link;
            scope.spawn(move || {
                for _ in 0..200 {
                    drop(Shm::join(link, mac(host)).unwrap());
                }
            });
        }
    });
}

#[test]
fn a_process_that_is_stopped_as_it_joins_does_not_hold_one_that_leaves_up() {
    let link = name("leave");
    let station = Shm::join(&link, mac(1)).unwrap();
    let files = folder(&link);
    let locked = fs::File::open(&files).unwrap();
    flock(&locked, FlockOperation::LockExclusive).unwrap();
    let began = Instant::now();
    drop(station);
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    drop(locked);
    // The next station removes what was left.
    drop(Shm::join(&link, mac(1)).unwrap());
    assert!(!files.exists());
}

#[test]
fn names_are_checked() {
    for name in ["", ".", "..", "a/b", "a b", "\u{e9}", &"x".repeat(65)] {
        let error = Shm::join(name, mac(1)).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::InvalidInput,
            "{name}: {error}"
        );
    }
}

/// A folder or a file that another user has made, or may use, is not trusted.
#[test]
fn what_another_user_has_made_or_may_use_is_refused() {
    if !testenv::root() {
        return;
    }
    let link = name("others");
    drop(Shm::join(&link, mac(1)).unwrap());
    let probe = Shm::join(&name("probe"), mac(1)).unwrap();
    let links = folder(&name("probe")).parent().unwrap().to_owned();
    drop(probe);
    let path = links.join(&link);
    let refused = || {
        let error = Shm::join(&link, mac(1)).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied,
            "{error}"
        );
    };
    fs::create_dir(&path).unwrap();
    // Otherwise a process that joins another link may remove the folder.
    fs::write(path.join("keep"), "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    refused();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
    refused();
    std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    // Without a live station the memory is made anew, whatever is in its place.
    std::os::unix::fs::symlink("/etc/passwd", path.join("memory")).unwrap();
    let joined = Shm::join(&link, mac(1)).unwrap();
    assert!(fs::symlink_metadata(path.join("memory")).unwrap().is_file());
    // With one, it is not trusted if others may write to it.
    fs::set_permissions(path.join("memory"), fs::Permissions::from_mode(0o666)).unwrap();
    let error = Shm::join(&link, mac(2)).unwrap_err();
    assert_eq!(
        error.kind(),
        std::io::ErrorKind::PermissionDenied,
        "{error}"
    );
    fs::remove_file(path.join("keep")).unwrap();
    drop(joined);
    assert!(!path.exists());
}

#[test]
fn stations_come_and_go_beside_a_connection() {
    let link = name("joins");
    let (one, other) = (net(&link, 1), net(&link, 2));
    let sent = bytes(5, 8 << 20);
    let began = Instant::now();
    thread::scope(|scope| {
        let joins = scope.spawn(|| {
            let mut count = 0;
            while count < 5_000 && began.elapsed() < Duration::from_secs(3) {
                drop(Shm::join(&link, mac(9)).unwrap());
                count += 1;
            }
            count
        });
        carry(&one, &other, 7, 2, &sent);
        assert!(joins.join().unwrap() > 0);
    });
    carry(&other, &one, 8, 1, &sent);
}

/// Sends a frame of this length, of bytes that are the number of the host, as soon as there is room.
fn send(sender: &mut Shm, to: u8, len: usize) {
    let began = Instant::now();
    let room = loop {
        match sender.reserve(len) {
            Some(room) => break room,
            None => assert!(began.elapsed() < WAIT_MAX, "it waits for ever"),
        }
        thread::sleep(Duration::from_millis(1));
    };
    room.fill(to);
    room[..6].copy_from_slice(&mac(to).0);
    sender.submit();
    sender.flush();
}

/// Lengths of the frames that one call receives.
fn receive(station: &mut Shm) -> Vec<usize> {
    let mut lens = Vec::new();
    station
        .receive(&mut |frame, _| lens.push(frame.len()))
        .unwrap();
    lens
}

#[test]
fn a_sender_that_fills_its_ring_again_and_again_does_not_keep_others_from_their_turn() {
    let link = name("turns");
    let [mut busy, mut other, mut receiver] =
        [1, 2, 3].map(|host| Shm::join(&link, mac(host)).unwrap());
    send(&mut other, 3, 1000);
    let came = (0..16).any(|_| {
        (0..BATCH).for_each(|_| send(&mut busy, 3, 60));
        receive(&mut receiver).contains(&1000)
    });
    assert!(came);
}

#[test]
fn a_frame_does_not_wait_for_a_station_that_has_left() {
    let link = name("left");
    let mut sender = Shm::join(&link, mac(1)).unwrap();
    let receiver = Shm::join(&link, mac(2)).unwrap();
    while !sender.is_full() {
        send(&mut sender, 2, 60_000);
    }
    assert!(sender.arm());
    drop(receiver);
    let mut woken = [0_u8];
    assert_eq!(rustix::io::read(sender.fd(), &mut woken).unwrap(), 1);
    sender.flush();
    assert!(!sender.is_full());
}

/// Size of the small file system, for the half of the next test.
const SMALL: &str = "WEIR_TEST_SMALL_FILE_SYSTEM";

/// Half of the next test, in a process of its own, which a mistake would end by SIGBUS.
#[test]
fn on_a_small_file_system() {
    let Ok(size) = std::env::var(SMALL) else {
        return;
    };
    if size == "16k" {
        let error = Shm::join("small", mac(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        return;
    }
    let [mut one, mut other] = [1, 2].map(|host| Shm::join("small", mac(host)).unwrap());
    (0..8).for_each(|_| send(&mut one, 2, 60_000));
    // A call hands over about four.
    let lens = [receive(&mut other), receive(&mut other)].concat();
    assert_eq!(lens, [60_000; 8]);
    // There is no room for a second ring.
    (0..8).for_each(|_| send(&mut other, 1, 60_000));
    assert!(!other.is_full() && receive(&mut one).is_empty());
    send(&mut one, 2, 60);
    assert_eq!(receive(&mut other), [60]);
}

#[test]
fn a_full_file_system_loses_frames_and_ends_no_process() {
    if !testenv::root() || !testenv::programs(&["unshare", "mount", "sh"]) {
        return;
    }
    // That of root's links, in a mount namespace that goes with the process.
    let script = "mkdir -p -m 700 /run/weir-link && \
                  mount -t tmpfs -o size=$0,mode=700 weir-test /run/weir-link && exec \"$@\"";
    for size in ["16k", "640k"] {
        let run = testenv::program("unshare")
            .unwrap()
            .args(["--mount", "sh", "-c", script, size])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "on_a_small_file_system", "--nocapture"])
            .env(SMALL, size)
            .output()
            .unwrap();
        assert!(run.status.success(), "{size}: {run:?}");
    }
}

/// Without a receiver that takes frames, a sender waits for a bounded time and then loses frames; other
/// stations get theirs.
#[test]
fn a_station_that_takes_nothing_does_not_hold_others_up_for_long() {
    let link = name("stopped");
    let (mut sender, stopped) = (
        Shm::join(&link, mac(1)).unwrap(),
        Shm::join(&link, mac(2)).unwrap(),
    );
    let mut other = Shm::join(&link, mac(3)).unwrap();
    let began = Instant::now();
    for _ in 0..500 {
        send(&mut sender, 2, 60_000);
        // These find room.
        send(&mut sender, 2, 60);
    }
    // One wait, not one for each frame.
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    for _ in 0..100 {
        send(&mut sender, 3, 60_000);
        let mut count = 0;
        other
            .receive(&mut |frame, _| {
                assert!(frame.len() == 60_000 && frame[6..].iter().all(|byte| *byte == 3));
                count += 1;
            })
            .unwrap();
        assert_eq!(count, 1);
    }
    drop(stopped);
}

/// While another process writes random words over the memory, hosts neither crash nor hang; once it ends,
/// they go on.
#[test]
fn a_process_that_writes_anything_does_not_end_the_hosts() {
    let link = name("wild");
    let (one, other) = (net(&link, 1), net(&link, 2));
    let memory = fs::File::options()
        .write(true)
        .open(folder(&link).join("memory"))
        .unwrap();
    // Connections may fail meanwhile, in any way.
    let talk = |port: u16| {
        let listener = TcpListener::bind(&other, at(2, port)).unwrap();
        let connected = TcpStream::connect_timeout(&one, &at(2, port), Duration::from_millis(200));
        let Ok(mut stream) = connected else {
            return;
        };
        stream
            .set_write_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let _ = stream.write_all(&[7; 200_000]);
        drop((listener, stream));
    };
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(11);
            while began.elapsed() < Duration::from_secs(2) {
                for _ in 0..100 {
                    let at = match rng.below(4) {
                        0 => 64 + rng.below(152) * 8,
                        1 => 4096 + rng.below(512) * 8,
                        _ => 36_864 + rng.below(16 << 17) * 8,
                    };
                    let word = rng.bits() >> rng.below(64);
                    memory.write_all_at(&word.to_ne_bytes(), at as u64).unwrap();
                }
                thread::sleep(Duration::from_micros(200));
            }
        });
        for port in 1000.. {
            if began.elapsed() >= Duration::from_secs(2) {
                break;
            }
            talk(port);
        }
    });
    // What was asked for an address meanwhile may still fail.
    let listener = TcpListener::bind(&other, at(2, 8)).unwrap();
    let began = Instant::now();
    while TcpStream::connect(&one, at(2, 8)).is_err() {
        assert!(began.elapsed() < WAIT_MAX, "no connection");
    }
    drop(listener);
    carry(&one, &other, 9, 2, &bytes(1, 1 << 20));
}
