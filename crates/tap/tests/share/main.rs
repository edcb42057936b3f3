//! Several processes on one tap, and the tap after their deaths.
//!
//! The thousand kills: `WEIR_KILLS=1000 cargo test -p weir-tap --test share
//! killed -- --nocapture`.

#[path = "../bridge/net.rs"]
#[allow(dead_code, reason = "the bridge's tests use the rest")]
mod net;
mod numbered;
mod processes;

use net::Net;
use numbered::{Numbered, Report};
use processes::{Other, forward};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use weir_lab::net::Signal;
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_tap::{Bypass, Config, Tap, TapError};

/// Long enough for anything that ought to happen, on any machine.
const SOON: Duration = Duration::from_secs(60);

/// A path of this test alone; removed with this value.
struct Meeting(PathBuf);

impl Meeting {
    fn new() -> Meeting {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-share-{}-{count}", std::process::id());
        Meeting(std::env::temp_dir().join(name))
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn config() -> Config {
    Config {
        chunks: 4096,
        ring: 1024,
        hang_max: Some(Duration::from_secs(10)),
        bypass: Bypass::Drop,
        ..Config::default()
    }
}

/// A tap between the two links of the middle, shared; in the middle.
fn shared(path: &Path) -> Tap {
    let mut tap = Tap::map(config()).unwrap();
    tap.tap("left").unwrap();
    tap.tap("right").unwrap();
    tap.share(path).unwrap();
    tap
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn two_processes_forward_what_comes() {
    if !testenv::root() {
        return;
    }
    let (net, meeting) = (Net::new(), Meeting::new());
    let report = net.middle.run(|| {
        let mut tap = shared(&meeting.0);
        let mut other = Other::begin(&net.middle, "join", &meeting.0);
        until("it joins", || {
            forward(&mut tap, Duration::from_millis(5)).unwrap();
            tap.members() == 2
        });
        other.hear("ready");
        let mut numbered = Numbered::start(&net, 4_000.0);
        let left = tap.links().next().unwrap();
        until("it sends, and some come here", || {
            forward(&mut tap, Duration::from_millis(20)).unwrap();
            numbered.sent() >= 1_500 && tap.link_counts(left).rx_frames > 0
        });
        // Those that are not waited for here are the other's.
        let sent = numbered.sent();
        until("it goes on sending", || numbered.sent() >= sent + 200);
        numbered.stop();
        let end = Instant::now() + Duration::from_millis(200);
        while Instant::now() < end {
            forward(&mut tap, Duration::from_millis(20)).unwrap();
        }
        let ours = tap.link_counts(left).rx_frames;
        let theirs = other.end();
        assert!(ours > 0 && theirs > 0, "{ours} here, {theirs} there");
        until("it leaves", || {
            forward(&mut tap, Duration::from_millis(5)).unwrap();
            tap.members() == 1
        });
        let census = tap.unmap().unwrap();
        assert_eq!((census.free, census.total()), (4096, 4096), "{census:?}");
        assert!(!meeting.0.exists(), "the last removes the path");
        numbered.report()
    });
    println!("{report:?}");
    assert_eq!(report.twice, 0);
    assert!(report.sent > 1000 && report.arrived > 0, "{report:?}");
    assert!(
        report.arrived + report.dropped + report.sent / 20 > report.sent,
        "{report:?}"
    );
    assert_eq!(net.attached(), [false, false]);
}

#[test]
fn the_founder_dies_and_the_others_go_on_until_the_last() {
    if !testenv::root() {
        return;
    }
    let (net, meeting) = (Net::new(), Meeting::new());
    net.middle.run(|| {
        let founder = Other::found(&net.middle, &meeting.0);
        let second = Other::join(&net.middle, &meeting.0);
        let third = Other::join(&net.middle, &meeting.0);
        let passes = || Numbered::burst(&net);
        assert!(passes().arrived > 0);
        founder.kill();
        let report = passes();
        assert!(report.arrived > 0, "{report:?}");
        // Who comes later meets those that are left.
        let fourth = Other::join(&net.middle, &meeting.0);
        second.kill();
        third.kill();
        let report = passes();
        assert!(report.arrived > 0, "{report:?}");
        assert_eq!(net.attached(), [true, true]);
        fourth.kill();
        assert_eq!(passes().arrived, 0, "nobody has it any more");
    });
    until("the interfaces are the host's", || {
        net.attached() == [false, false]
    });
    // And the path can be had again.
    net.middle.run(|| {
        let refused = Tap::join(&meeting.0, Config::default()).unwrap_err();
        assert!(matches!(refused, TapError::NotShared { .. }), "{refused}");
        shared(&meeting.0).unmap().unwrap();
    });
}

/// The gate counts deaths of the last only, and links stay joined then.
#[test]
fn the_bypass_comes_with_the_last_death() {
    if !testenv::root() {
        return;
    }
    let (net, meeting) = (Net::new(), Meeting::new());
    net.middle.run(|| {
        let founder = Other::between(&net.middle, &meeting.0);
        let mut second = Other::join(&net.middle, &meeting.0);
        let passes = || Numbered::burst(&net);
        assert!(passes().arrived > 0);
        founder.kill();
        let seen = second.taken();
        assert!(passes().arrived > 0);
        until("the second takes all", || second.taken() > seen);
        second.kill();
        let report = passes();
        assert!(
            (report.arrived + report.dropped) * 10 > report.sent * 9,
            "by the wire: {report:?}"
        );
        // One that takes it over, and one that joins and leaves last.
        let founder = Other::between(&net.middle, &meeting.0);
        let second = Other::join(&net.middle, &meeting.0);
        founder.end();
        assert!(passes().arrived > 0);
        second.end();
        assert!(passes().arrived > 0, "it stays as chosen");
        assert!(Tap::clean(&["left", "right"]).unwrap());
    });
    assert_eq!(net.attached(), [false, false]);
}

/// One that stops leaves its frames to the others; when all have, frames take
/// the bypass until one goes on.
#[test]
fn stopped_processes_do_not_stop_the_frames() {
    if !testenv::root() {
        return;
    }
    let (net, meeting) = (Net::new(), Meeting::new());
    net.middle.run(|| {
        let founder = Other::begin(&net.middle, "impatient", &meeting.0).ready();
        let second = Other::join(&net.middle, &meeting.0);
        let passes = |who: &str| {
            let report = Numbered::burst(&net);
            assert_eq!(report.twice, 0, "{who}: {report:?}");
            assert!(
                (report.arrived + report.dropped) * 2 > report.sent,
                "{who}: {report:?}"
            );
        };
        passes("both");
        founder.signal(Signal::STOP);
        passes("the second");
        second.signal(Signal::STOP);
        passes("nobody, by the wire");
        founder.signal(Signal::CONT);
        passes("the first again");
        second.signal(Signal::CONT);
        passes("both again");
        second.end();
        founder.end();
        assert!(Tap::clean(&["left", "right"]).unwrap());
    });
}

#[test]
fn what_cannot_be_shared_is_refused() {
    if !testenv::root() {
        return;
    }
    let (net, meeting) = (Net::new(), Meeting::new());
    net.middle.run(|| {
        let nobody = Tap::join(&meeting.0, Config::default()).unwrap_err();
        assert!(nobody.to_string().contains("start the process"), "{nobody}");
        let mut tap = shared(&meeting.0);
        let twice = tap.share(&meeting.0).unwrap_err();
        assert!(matches!(twice, TapError::IsShared), "{twice}");
        let mut other = Tap::map(config()).unwrap();
        let taken = other.share(&meeting.0).unwrap_err();
        assert!(matches!(taken, TapError::CannotShare { .. }), "{taken}");
        assert!(matches!(tap.tap("lo"), Err(TapError::IsShared)));
        let file = meeting.0.with_extension("txt");
        std::fs::write(&file, "of somebody's").unwrap();
        let kept = other.share(&file).unwrap_err();
        assert!(kept.to_string().contains("not a socket"), "{kept}");
        assert_eq!(std::fs::read(&file).unwrap(), b"of somebody's");
        std::fs::remove_file(&file).unwrap();
        other.unmap().unwrap();
        tap.unmap().unwrap();
    });
}

/// A process killed at any instant harms no other: no frame arrives twice,
/// no chunk is missing, and frames go on.
#[test]
fn killed_at_random_instants_it_harms_no_other_process() {
    if !testenv::root() {
        return;
    }
    let kills: u32 = std::env::var("WEIR_KILLS").map_or(15, |n| n.parse().unwrap());
    const SEED: u64 = 0x5eed_2000;
    println!("seed {SEED:#x}, {kills} kills");
    let mut rng = Rng::new(SEED);
    let (net, meeting) = (Net::new(), Meeting::new());
    let (report, census, reclaimed) = net.middle.run(|| {
        let (stop, asked) = std::sync::mpsc::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (path, host) = (&meeting, net.middle.clone());
        std::thread::scope(|scope| {
            // Who stays, and whose frames are to go on.
            let stays = scope.spawn(move || {
                host.enter().unwrap();
                let mut tap = shared(&path.0);
                ready.send(()).unwrap();
                while asked.try_recv().is_err() {
                    forward(&mut tap, Duration::from_millis(20)).unwrap();
                }
                let end = Instant::now() + Duration::from_millis(300);
                while Instant::now() < end {
                    forward(&mut tap, Duration::from_millis(20)).unwrap();
                }
                let reclaimed = tap.counts().reclaimed;
                (tap.unmap().unwrap(), reclaimed)
            });
            is_ready.recv().unwrap();
            let mut numbered = Numbered::start(&net, 5_000.0);
            let mut others = [
                Other::join(&net.middle, &path.0),
                Other::join(&net.middle, &path.0),
            ];
            for _ in 0..kills {
                std::thread::sleep(Duration::from_micros(rng.below(20_000) as u64));
                let which = rng.below(2);
                let next = Other::join(&net.middle, &path.0);
                std::mem::replace(&mut others[which], next).kill();
                numbered.until_one_passes();
            }
            for other in others {
                other.kill();
            }
            numbered.stop();
            stop.send(()).unwrap();
            let (census, reclaimed) = stays.join().unwrap();
            (numbered.report(), census, reclaimed)
        })
    });
    let gap = report.gap_max;
    println!("{report:?}; {reclaimed} chunks taken back; lost in a row: {gap:?}");
    check_unharmed(&report, kills);
    assert_eq!((census.free, census.total()), (4096, 4096), "{census:?}");
    assert!(reclaimed > 0);
}

fn check_unharmed(report: &Report, kills: u32) {
    assert_eq!(report.twice, 0, "{report:?}");
    // A process that dies takes with it what it held.
    let lost = report.sent - report.arrived - report.dropped;
    let held = 64 * u64::from(kills + 2);
    assert!(lost < held + report.sent / 20, "{report:?}");
    assert!(report.arrived > 0, "{report:?}");
}
