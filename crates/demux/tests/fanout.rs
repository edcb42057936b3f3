//! Shares and groups as text, and the buckets of flows.

mod common;

use common::flows::both_ways;
use common::{ip_frame, ip6_frame};
use weir_demux::fanout::{BUCKETS, Fanout, Layout, MEMBERS_MAX, Share, bucket};
use weir_lab::program::Tape;
use weir_wire::LinkType;

fn of(frame: &[u8]) -> usize {
    bucket(frame, Layout::ETHERNET)
}

#[test]
fn both_directions_of_a_flow_have_one_bucket() {
    let mut plain = 0;
    for seed in 0..2_000 {
        let mut tape = Tape::seeded(seed, 400);
        let flow = both_ways(&mut tape);
        let there = of(&flow.there);
        assert!(there < BUCKETS);
        assert_eq!(there, of(&flow.back), "seed {seed}: {:02x?}", flow.there);
        plain += usize::from(flow.is_plain);
    }
    assert!(plain > 100, "{plain} of 2000 frames are plain TCP or UDP");
}

/// Each field of a flow matters, and nothing else does.
#[test]
fn a_flow_is_addresses_ports_and_protocol() {
    let base = ip_frame(6, 0x0a00_0001, 0x0a00_0002, (4_000, 80), 5);
    let bucket_of = of(&base);
    // One change may hit the same bucket by chance, but not most of many.
    let mut same = 0;
    for number in 1..100_u32 {
        let port = 4_000 + number as u16;
        for other in [
            ip_frame(6, 0x0a00_0001 + number, 0x0a00_0002, (4_000, 80), 5),
            ip_frame(6, 0x0a00_0001, 0x0a00_0002, (port, 80), 5),
            ip_frame(6, 0x0a00_0001, 0x0a00_0002, (4_000, port), 5),
            ip6_frame(6, port),
        ] {
            same += usize::from(of(&other) == bucket_of);
        }
    }
    assert!(same < 10, "{same} of 396 other flows in the bucket");
    let udp = ip_frame(17, 0x0a00_0001, 0x0a00_0002, (4_000, 80), 5);
    assert_ne!(of(&udp), bucket_of);
    for unrelated in [0, 5, 6, 11, 15, 18, 22, 24, 40] {
        let mut other = base.clone();
        other[unrelated] ^= 0x55;
        assert_eq!(of(&other), bucket_of, "byte {unrelated} is not the flow's");
    }
    let (macs, packet) = base.split_at(12);
    let tagged = [macs, &[0x81, 0, 0x20, 7], packet].concat();
    assert_eq!(of(&tagged), bucket_of, "in a VLAN");
    let twice = [macs, &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2], packet].concat();
    assert_eq!(of(&twice), bucket_of, "in a VLAN in a VLAN");
}

/// All fragments of a datagram go one way, the first one too.
#[test]
fn fragments_go_by_addresses_alone() {
    let whole = ip_frame(17, 1, 2, (1_000, 2_000), 5);
    let fragment = |flags: u8, offset: u8, ports: (u16, u16)| {
        let mut frame = ip_frame(17, 1, 2, ports, 5);
        (frame[20], frame[21]) = (flags, offset);
        of(&frame)
    };
    let first = fragment(0x20, 0, (1_000, 2_000));
    assert_eq!(first, fragment(0x20, 9, (7, 9)));
    assert_eq!(first, fragment(0, 18, (70, 90)));
    assert_eq!(first, fragment(0x20, 0, (5, 6)), "ports do not count");
    assert_ne!(
        first,
        of(&whole),
        "not with the whole datagrams of its flow"
    );
    assert_eq!(
        of(&whole),
        fragment(0x40, 0, (1_000, 2_000)),
        "unfragmented"
    );
}

/// Random flows, and the flows of many clients in a row, spread evenly.
#[test]
fn flows_spread_evenly() {
    const FLOWS: u32 = 1 << 16;
    let mut tape = Tape::seeded(11, 10 * FLOWS as usize);
    let random = (0..FLOWS).map(|_| {
        let ports = tape.word();
        let ports = (ports as u16, (ports >> 16) as u16);
        ip_frame(6, tape.word(), 0xc0a8_0001, ports, 5)
    });
    let random: Vec<usize> = random.map(|frame| of(&frame)).collect();
    let in_a_row = (0..FLOWS).map(|number| {
        let client = 0x0a00_0000 + number / 256;
        ip_frame(
            6,
            client,
            0xc0a8_0001,
            (32_768 + number as u16 % 256, 443),
            5,
        )
    });
    let in_a_row: Vec<usize> = in_a_row.map(|frame| of(&frame)).collect();
    let addresses = (0..FLOWS).map(|number| ip_frame(1, 0x0a00_0000 + number, 1, (0, 0), 5));
    let addresses: Vec<usize> = addresses.map(|frame| of(&frame)).collect();
    for (what, buckets) in [
        ("random", random),
        ("in a row", in_a_row),
        ("addresses", addresses),
    ] {
        for shares in [2, 3, 4, 8, MEMBERS_MAX] {
            let mut counts = vec![0_u32; shares as usize];
            for bucket in &buckets {
                let at = (0..shares).find(|at| Share::new(*at, shares).unwrap().has(*bucket));
                counts[at.expect("each bucket has one share") as usize] += 1;
            }
            let most = f64::from(*counts.iter().max().unwrap());
            let ratio = most * f64::from(shares) / f64::from(FLOWS);
            println!("{what}: {shares} shares, the largest has {ratio:.3} of the mean");
            let bound = if shares <= 8 { 1.05 } else { 1.2 };
            assert!(ratio < bound, "{what}: {counts:?}");
        }
    }
}

#[test]
fn each_bucket_has_one_share_and_shares_differ_by_one_bucket() {
    for of in 1..=MEMBERS_MAX {
        let shares: Vec<Share> = (0..of).filter_map(|at| Share::new(at, of)).collect();
        for bucket in 0..BUCKETS {
            assert_eq!(shares.iter().filter(|one| one.has(bucket)).count(), 1);
        }
        let sizes = shares
            .iter()
            .map(|one| (0..BUCKETS).filter(|bucket| one.has(*bucket)).count());
        let sizes: Vec<usize> = sizes.collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(most - least <= 1, "{of}: {sizes:?}");
    }
}

#[test]
fn texts_of_shares_and_groups() {
    for text in [
        "0/1", "0/4", "3/4", "63/64", "4", "64", "web", "a.b-c_d", "7x",
    ] {
        let fanout: Fanout = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fanout.to_string(), text);
    }
    let most = |text: &str| match text.parse() {
        Ok(Fanout::Group(group)) => group.members_max(),
        other => panic!("{other:?}"),
    };
    assert_eq!((most("4"), most("web")), (4, MEMBERS_MAX));
    for (text, remedy) in [
        ("4/4", "I from 0 to N-1"),
        ("0/0", "N from 1 to 64"),
        ("0/65", "N from 1 to 64"),
        ("-1/4", "write I/N"),
        ("00/4", "write I/N"),
        ("+1/4", "write I/N"),
        ("1/", "write I/N"),
        ("1/2/3", "write I/N"),
        ("", "write a name"),
        ("a b", "write a name"),
        ("0", "from 1 to 64"),
        ("65", "from 1 to 64"),
        ("007", "from 1 to 64"),
        ("99999999999", "from 1 to 64"),
    ] {
        let error = text.parse::<Fanout>().unwrap_err().to_string();
        assert!(error.contains(&format!("`{text}`")), "{error}");
        assert!(error.contains(remedy), "{error}");
    }
    let long = "x".repeat(10_000);
    let error = long.parse::<Fanout>().unwrap_err().to_string();
    assert!(error.len() < 400, "{error}");
    assert!(
        "x".parse::<Share>()
            .unwrap_err()
            .to_string()
            .contains("`x`")
    );
}

/// The packet of one flow has one bucket behind any link-layer header.
#[test]
fn link_types_with_ip_have_flows() {
    let ethernet = ip_frame(6, 5, 6, (7, 8), 5);
    let packet = &ethernet[14..];
    let sll2 = [&[8, 0][..], &[0; 18], packet].concat();
    let sll = [&[0; 14][..], &[8, 0], packet].concat();
    let null = [&[2, 0, 0, 0][..], packet].concat();
    for (linktype, frame) in [
        (LinkType::RAW, packet),
        (LinkType::IPV4, packet),
        (LinkType::NULL, &null),
        (LinkType::LINUX_SLL, &sll),
        (LinkType::LINUX_SLL2, &sll2),
    ] {
        let layout = Layout::of(linktype).expect("it has flows");
        assert_eq!(bucket(frame, layout), of(&ethernet), "{linktype}");
    }
    assert_eq!(Layout::of(LinkType(147)), None);
}

#[test]
fn frames_of_any_length_have_a_bucket() {
    for linktype in [LinkType::EN10MB, LinkType::RAW, LinkType::LINUX_SLL2] {
        let layout = Layout::of(linktype).unwrap();
        for seed in 0..50 {
            let mut tape = Tape::seeded(seed, 400);
            let frame = both_ways(&mut tape).there;
            for len in 0..=frame.len() {
                assert!(bucket(&frame[..len], layout) < BUCKETS);
            }
        }
    }
}
