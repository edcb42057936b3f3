//! State that a process of a shared tap finds after another process has ended.

use super::*;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use weir_lab::net::{Linear, Offloads};
use weir_lab::testenv;
use weir_link::xdp::{Bypass, XskSpec};
use weir_ring::Frame;

use crate::tap::Pull;

fn meeting() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("weir-share-unit-{}-{count}", std::process::id()))
}

fn config() -> Config {
    Config {
        chunks: 1024,
        ring: 64,
        hang_max: None,
        bypass: Bypass::Drop,
        ..Config::default()
    }
}

/// A shared tap of the two links in the middle of a line, in the calling
/// thread's namespace.
fn shared(path: &Path) -> Tap {
    let mut tap = Tap::map(config()).unwrap();
    tap.tap("left").unwrap();
    tap.tap("right").unwrap();
    tap.share(path).unwrap();
    tap.ready().unwrap();
    tap
}

/// Runs `each` in the middle host of a line, on a new thread.
fn in_the_middle(each: impl FnOnce(&Linear) + Send) {
    if !testenv::root() {
        return;
    }
    let line = Linear::new(Offloads::OFF).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            line.middle.enter().unwrap();
            each(&line);
        });
    });
}

fn frame(tap: &Tap) -> Frame {
    let mut frame = tap.alloc().unwrap();
    assert!(frame.set(&[0xff; 60]));
    frame
}

/// A link is returned with its last holder, although a process that died had
/// the number of a living one.
#[test]
fn a_number_given_anew_holds_no_link_of_its_predecessor() {
    in_the_middle(|line| {
        let path = meeting();
        let mut founder = shared(&path);
        let left = founder.links().next().unwrap();
        // As left by a process with the second number that dies: both links.
        for link in 0..2 {
            founder
                .pool
                .umem()
                .link_holders(link)
                .fetch_or(2, Ordering::AcqRel);
        }
        // Before any process has cleaned up after it.
        assert!(!founder.untap(left).unwrap(), "another one has it");
        let (host, at) = (line.middle.clone(), path.clone());
        let (joined, is_there) = mpsc::channel();
        let other = std::thread::spawn(move || {
            host.enter().unwrap();
            let tap = Tap::join(&at, Config::default()).unwrap();
            let links: Vec<_> = tap.links().collect();
            joined.send(links.len()).unwrap();
            let holders = tap.pool.umem().link_holders(0).load(Ordering::Acquire);
            tap.unmap().unwrap();
            holders
        });
        let until = Instant::now() + Duration::from_secs(5);
        while !other.is_finished() && Instant::now() < until {
            founder.pull(Pull::Frame(Duration::from_millis(2))).unwrap();
        }
        assert_eq!(is_there.try_recv(), Ok(1), "it has the other link only");
        assert_eq!(other.join().unwrap(), 0, "nobody holds the first");
        let is_taken = || Interface::named("left").unwrap().xdp.is_some();
        while is_taken() {
            assert!(Instant::now() < until, "it is not the host's again");
            founder.pull(Pull::Frame(Duration::from_millis(2))).unwrap();
        }
        founder.unmap().unwrap();
    });
}

/// A process that learns of a link, and joins after the link's last holder has
/// released it, does not hold it: the link belongs to the host again.
#[test]
fn a_link_that_was_let_go_of_meanwhile_is_not_joined() {
    in_the_middle(|line| {
        let path = meeting();
        let founder = shared(&path);
        let (host, at) = (line.middle.clone(), path.clone());
        let other = std::thread::spawn(move || {
            host.enter().unwrap();
            let tap = Tap::join(&at, Config::default()).unwrap();
            let links: Vec<_> = tap.links().map(|link| link.number()).collect();
            let holders = |link| tap.pool.umem().link_holders(link).load(Ordering::Acquire);
            let seen = (links, holders(0), holders(1));
            tap.unmap().unwrap();
            seen
        });
        let listener = founder.members.as_ref().unwrap().listener.as_fd();
        let until = Instant::now() + Duration::from_secs(5);
        let peer = loop {
            assert!(Instant::now() < until, "nobody came");
            match fd_passing::accept(listener) {
                Some(peer) => break peer,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let holders = founder.pool.umem().link_holders(0);
        holders.store(0, Ordering::Release);
        founder.send_fds(&peer).unwrap();
        assert_eq!(other.join().unwrap(), (vec![1], 0, 0b11));
        founder.unmap().unwrap();
    });
}

/// A link that cannot be returned does not affect the others.
#[test]
fn one_that_died_holds_nothing_although_a_link_is_not_given_back() {
    in_the_middle(|_| {
        let path = meeting();
        let mut founder = shared(&path);
        let state_fd = founder.gate.fds().page.try_clone_to_owned().unwrap();
        // The third process dies, the last holder of the first link.
        std::thread::spawn(move || {
            let map = weir_link::bpf::Map::from_fd(state_fd).unwrap();
            let page = Rc::new(SharedPage::of(&map).unwrap());
            let word = page.lock_liveness(2).unwrap().unwrap();
            std::mem::forget((page, word));
        })
        .join()
        .unwrap();
        let umem = founder.pool.umem();
        umem.link_holders(0).store(0b100, Ordering::Release);
        umem.link_holders(1).fetch_or(0b100, Ordering::AcqRel);
        // A descriptor that is not an attachment cannot be detached.
        let no_attachment = std::fs::File::open("/dev/null").unwrap().into();
        let link_fds = LinkFds {
            ifindex: Interface::named("left").unwrap().index,
            hook: Hook::XdpNative,
            xdp: no_attachment,
            tc: None,
            promiscuous: None,
        };
        founder.gate.add_fds(0, link_fds).unwrap();
        assert!(founder.find_dead().is_err());
        let holders = founder.pool.umem().link_holders(1).load(Ordering::Acquire);
        assert_eq!(holders, 0b1);
        let _ = founder.unmap();
    });
}

/// Given frames are sent although their link is untapped before the push.
#[test]
fn what_was_given_to_a_link_leaves_it_when_it_is_untapped() {
    in_the_middle(|line| {
        let path = meeting();
        let mut tap = shared(&path);
        let links: Vec<_> = tap.links().collect();
        let before = line.right.counters().unwrap().tx_frames;
        let frame = frame(&tap);
        assert!(tap.give(links[1], frame).unwrap());
        assert!(tap.untap(links[1]).unwrap());
        assert_eq!(line.right.counters().unwrap().tx_frames, before + 1);
        assert_eq!(tap.counts().untapped, 0);
        tap.unmap().unwrap();
    });
}

/// Frames that another process kept from being sent are dropped after a hang,
/// and the process becomes ready again.
#[test]
fn it_is_well_again_when_what_it_could_not_send_is_dropped() {
    in_the_middle(|_| {
        let path = meeting();
        let mut tap = shared(&path);
        let links: Vec<_> = tap.links().collect();
        let frame = frame(&tap);
        assert!(tap.give(links[0], frame).unwrap());
        {
            let members = tap.members.as_mut().unwrap();
            let long_ago = 1;
            members.cannot_send_since(long_ago);
            assert!(!members.is_healthy(crate::clock::now()));
        }
        tap.drop_unsubmitted();
        let members = tap.members.as_ref().unwrap();
        assert!(members.is_healthy(crate::clock::now()));
        tap.unmap().unwrap();
    });
}

/// A member of a shared tap is trusted with frames, not with the integrity of
/// this process.
#[test]
fn a_link_of_more_queues_than_can_be_is_refused() {
    in_the_middle(|_| {
        let mut tap = Tap::map(config()).unwrap();
        let left = Interface::named("left").unwrap();
        let spec = XskSpec {
            ifindex: left.index,
            queue: 0,
            sizes: sizes(64),
            mode: CopyMode::Copy,
            frags: false,
            busy_poll: None,
        };
        let (socket, _rings) = weir_link::xdp::Xsk::bind(tap.pool.umem(), None, &spec).unwrap();
        let mut bytes = (u32::from(LINKS_MAX) - 1).to_ne_bytes().to_vec();
        bytes.extend(left.index.to_ne_bytes());
        bytes.extend([0; LINK_BYTES - 8]);
        bytes.extend(b"left");
        let fds: Vec<OwnedFd> = (0..=QUEUES_MAX + 1)
            .map(|_| socket.as_fd().try_clone_to_owned().unwrap())
            .collect();
        let config = Config {
            ring: 64,
            ..config()
        };
        let holders = tap.pool.umem().link_holders(LINKS_MAX - 1);
        holders.store(0b1, Ordering::Release);
        let (me, mut own) = (LockOwner::new(2, 0), Vec::new());
        let refused = joined(
            (bytes, fds),
            &config,
            &tap.pool,
            me,
            &mut tap.gate,
            &mut own,
        );
        assert!(
            matches!(refused, Err(TapError::OtherVersion)),
            "{refused:?}"
        );
        drop(own);
        tap.unmap().unwrap();
    });
}
