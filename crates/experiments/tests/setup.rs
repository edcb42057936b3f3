//! Opening many connections at once: all are opened, all bytes are read, and
//! the tables examine what they should.

use std::num::NonZeroU32;
use weir_experiments::setup::{Report, Settings, SetupError, WRITE_BYTES, WRITES, run};
use weir_experiments::tpca::Algorithm;

fn settings(algorithm: Algorithm, connections: u32) -> Settings {
    Settings {
        connections,
        algorithm,
        chains: NonZeroU32::new(19).unwrap(),
        seed: 1992,
    }
}

/// A clock of which each look takes a microsecond.
fn result(settings: &Settings) -> Result<Report, SetupError> {
    let mut now_ns = 1_000_000_000;
    run(settings, &mut || {
        now_ns += 1000;
        now_ns
    })
}

#[test]
fn every_connection_opens_and_carries_its_bytes() {
    for algorithm in Algorithm::ALL {
        let connections = 200;
        let report = result(&settings(algorithm, connections)).unwrap();
        let bytes = u64::from(connections) * (WRITES * WRITE_BYTES) as u64;
        assert_eq!(report.bytes, bytes, "{algorithm:?}");
        assert!(report.setup_ns > 0 && report.setup_ns <= report.total_ns);
        // To the server a SYN, an ACK and the five writes, a segment each; a
        // SYN-ACK and an acknowledgment at the least to the client.
        let [client, server] = report.segments;
        assert_eq!(server, 7 * u64::from(connections));
        assert!(client >= 2 * u64::from(connections), "{client}");
        assert!(report.examined_setup <= report.examined.iter().sum());
    }
}

/// More than one address of the client has transport ports for, and more than
/// a listener keeps half open.
#[test]
fn as_many_connections_as_are_asked_for_open() {
    let connections = 17_000;
    let report = result(&settings(Algorithm::Weir, connections)).unwrap();
    assert_eq!(report.segments[1], 7 * u64::from(connections));
    let segments: u64 = report.segments.iter().sum();
    let each = report.examined.iter().sum::<u64>() as f64 / segments as f64;
    assert!(each <= 1.1, "{each}");
}

#[test]
fn lists_examine_more_the_longer_they_are_and_ours_does_not() {
    let each = |algorithm, connections| {
        let report = result(&settings(algorithm, connections)).unwrap();
        let examined: u64 = report.examined.iter().sum();
        examined as f64 / report.segments.iter().sum::<u64>() as f64
    };
    let (short, long) = (each(Algorithm::Bsd, 100), each(Algorithm::Bsd, 400));
    assert!(long > 2.5 * short, "{short} {long}");
    let chains = each(Algorithm::Sequent, 400);
    assert!(chains < long / 5.0, "{chains} {long}");
    let ours = each(Algorithm::Weir, 400);
    assert!(ours <= 1.1, "{ours}");
}

#[test]
fn what_would_take_too_long_is_refused() {
    let refused = |algorithm, connections| settings(algorithm, connections).check();
    assert_eq!(refused(Algorithm::Weir, 0), Err(SetupError::Connections(0)));
    assert_eq!(refused(Algorithm::Weir, 100_000), Ok(()));
    let lists = Err(SetupError::Lists(100_000, "bsd"));
    assert_eq!(refused(Algorithm::Bsd, 100_000), lists);
}
