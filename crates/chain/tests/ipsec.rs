//! The stage `ipsec` in a chain: what leaves is the router's to send, what enters
//! goes on, and nothing of it is cached.

use weir_chain::ipsec::{Ipsec, Reload};
use weir_chain::{Batch, Chain, Direction, Fate, Packet, SentFrame};
use weir_esp::Config;
use weir_filter::lang::expr::NoNames;

fn config(which: usize, key: u8) -> Config {
    let ends = ["192.0.2.1", "198.51.100.1"];
    let nets = ["10.1.0.0/16", "10.2.0.0/16"];
    let mut text = format!(
        "[[tunnel]]\nname = \"t\"\nlocal = \"{}\"\nremote = \"{}\"\n\
         [[policy]]\nmatch = \"src net {} and dst net {}\"\naction = \"protect\"\ntunnel = \"t\"\n\
         [[policy]]\nmatch = \"udp port 53\"\naction = \"bypass\"\n",
        ends[which],
        ends[1 - which],
        nets[which],
        nets[1 - which]
    );
    for side in 0..2 {
        let direction = if side == which { "out" } else { "in" };
        let key = format!("{:02x}", key + side as u8).repeat(20);
        text += &format!(
            "[[sa]]\ntunnel = \"t\"\ndirection = \"{direction}\"\nspi = {}\n\
             algorithm = \"aes128gcm\"\nkey = \"{key}\"\n",
            300 + side
        );
    }
    Config::parse(&text, &NoNames, 1500).unwrap()
}

fn chain(which: usize, reload: &Reload) -> Chain {
    chain_of(&config(which, 1), reload)
}

fn chain_of(config: &Config, reload: &Reload) -> Chain {
    let stage = Ipsec::new(config, reload.clone(), 4).unwrap();
    Chain::new(vec![(Box::new(stage), None)], 1).unwrap()
}

/// A UDP frame of 10.1.0.5 to 10.2.0.6, with this length and these flags.
fn frame(len: usize, flags: u8, port: u16) -> Vec<u8> {
    let mut frame = vec![0x66; 14 + len];
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut frame[14..];
    ip[..20].copy_from_slice(&[
        0x45,
        0,
        (len >> 8) as u8,
        len as u8,
        0,
        1,
        flags,
        0,
        64,
        17,
        0,
        0,
        10,
        1,
        0,
        5,
        10,
        2,
        0,
        6,
    ]);
    ip[22..24].copy_from_slice(&port.to_be_bytes());
    let checksum = weir_wire::checksum::internet_checksum(&ip[..20]);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// Runs one frame; its fate, whether it may be cached, and its bytes.
fn run(chain: &mut Chain, direction: Direction, frame: Vec<u8>) -> (Fate, bool, Vec<u8>) {
    let mut batch = Batch::new(vec![Packet::own(frame)]);
    chain.run(0, direction, &mut batch);
    let (mut bytes, trace) = batch.into_packets().remove(0).finish();
    (trace.fate(), trace.is_cacheable(), bytes.as_mut().to_vec())
}

fn routed(chain: &mut Chain) -> Vec<Vec<u8>> {
    let sent = chain.take_sent().into_iter();
    let frames = sent.filter_map(|sent| match sent.frame {
        SentFrame::Routed(frame) => Some(frame),
        _ => None,
    });
    frames.collect()
}

#[test]
fn what_leaves_is_routed_and_what_enters_goes_on() {
    let reload = Reload::default();
    let [mut a, mut b] = [0, 1].map(|which| chain(which, &reload));
    let plain = frame(300, 0, 7);
    let (fate, cacheable, _) = run(&mut a, Direction::Outward, plain.clone());
    assert_eq!((fate, cacheable), (Fate::Taken, false));
    let [mut esp] = <[_; 1]>::try_from(routed(&mut a)).unwrap();
    assert_eq!((&esp[12..14], esp[23]), (&[8, 0][..], 50));
    // It waited for a neighbour, and comes again.
    let (fate, ..) = run(&mut a, Direction::Outward, esp.clone());
    assert_eq!(fate, Fate::Pass);
    esp[..12].copy_from_slice(&[3; 12]);
    let (fate, cacheable, opened) = run(&mut b, Direction::Inward, esp.clone());
    assert_eq!((fate, cacheable), (Fate::Pass, false));
    assert_eq!((&opened[..12], &opened[12..]), (&[3; 12][..], &plain[12..]));
    let (fate, ..) = run(&mut b, Direction::Inward, esp);
    assert_eq!(fate, Fate::Drop("replayed"));
    let (fate, ..) = run(&mut b, Direction::Inward, plain);
    assert_eq!(fate, Fate::Drop("unprotected"));
}

/// The memory of frames that were sent has something else in it.
#[test]
fn memory_that_was_used_is_as_new() {
    let reload = Reload::default();
    let [mut fresh, mut a] = [0, 0].map(|which| chain(which, &reload));
    for len in [300, 101, 40] {
        for used in [vec![0xee; 2000], vec![0xee; 5], Vec::new()] {
            a.recycle(used);
        }
        let plain = frame(len, 0, 7);
        let made = [&mut fresh, &mut a].map(|chain| {
            run(chain, Direction::Outward, plain.clone());
            routed(chain)
        });
        assert_eq!((made[0].len(), &made[0][0][..12]), (1, &[0; 12][..]));
        assert_eq!(made[0], made[1]);
    }
}

/// An opened packet is moved behind an Ethernet header without a tag, of its own version of IP.
#[test]
fn an_opened_packet_leaves_a_tag_and_padding_behind() {
    let reload = Reload::default();
    let [mut a, mut b] = [0, 1].map(|which| chain(which, &reload));
    let plain = frame(300, 0, 7);
    run(&mut a, Direction::Outward, plain.clone());
    let esp = routed(&mut a).remove(0);
    let tagged = [&[3; 12], &[0x81, 0, 0, 7][..], &esp[12..], &[0xee; 40]].concat();
    let (fate, cacheable, opened) = run(&mut b, Direction::Inward, tagged);
    assert_eq!((fate, cacheable), (Fate::Pass, false));
    assert_eq!((&opened[..12], &opened[12..]), (&[3; 12][..], &plain[12..]));
}

#[test]
fn other_frames_pass_only_by_policy() {
    let mut a = chain(0, &Reload::default());
    let mut dns = frame(100, 0, 53);
    dns[30] = 11;
    let sum = weir_wire::checksum::internet_checksum(&[&dns[14..24], &dns[26..34]].concat());
    dns[24..26].copy_from_slice(&sum.to_be_bytes());
    for direction in [Direction::Outward, Direction::Inward] {
        let (fate, cacheable, bytes) = run(&mut a, direction, dns.clone());
        assert_eq!((fate, cacheable), (Fate::Pass, false));
        assert_eq!(bytes, dns);
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(run(&mut a, direction, arp).0, Fate::Pass);
        for other in [vec![0; 60], frame(100, 0, 53)[..60].to_vec(), vec![1; 5]] {
            let fate = run(&mut a, direction, other).0;
            assert!(matches!(fate, Fate::Drop(_)), "{fate:?}");
        }
    }
    assert!(!a.may_bypass());
}

#[test]
fn the_sender_of_a_packet_too_big_gets_an_error() {
    let mut a = chain(0, &Reload::default());
    let (fate, ..) = run(&mut a, Direction::Outward, frame(1500, 0x40, 7));
    assert_eq!(fate, Fate::Drop("too-big"));
    let sent = a.take_sent();
    assert_eq!((sent.len(), sent[0].direction), (1, Direction::Inward));
    let SentFrame::Made(error) = &sent[0].frame else {
        panic!("{sent:?}")
    };
    assert_eq!((error[23], error[34], error[35]), (1, 3, 4));
    assert_eq!(error[30..34], [10, 1, 0, 5]);
    // Without DF it goes in two.
    let (fate, ..) = run(&mut a, Direction::Outward, frame(1500, 0, 7));
    assert_eq!((fate, routed(&mut a).len()), (Fate::Taken, 2));
}

#[test]
fn a_new_configuration_is_taken_while_it_runs() {
    let reload = Reload::default();
    let mut a = chain(0, &reload);
    run(&mut a, Direction::Outward, frame(100, 0, 7));
    let before = routed(&mut a);
    reload.put(config(0, 9));
    let due = a.next_deadline().unwrap();
    a.poll(due);
    run(&mut a, Direction::Outward, frame(100, 0, 7));
    let after = routed(&mut a);
    assert_eq!(
        [before[0][41], after[0][41]],
        [1, 1],
        "a new key begins anew"
    );
    let mut b = chain(1, &reload);
    assert_eq!(
        run(&mut b, Direction::Inward, after[0].clone()).0,
        Fate::Drop("icv")
    );
    assert_eq!(
        run(&mut b, Direction::Inward, before[0].clone()).0,
        Fate::Pass
    );
}

/// A chain whose SAs are of a key exchange, with SPIs from this one on.
fn negotiated(which: usize, key: u8, spi: u32) -> Config {
    let mut config = config(which, key);
    config.is_negotiated = true;
    for number in 0..2 {
        config.sas[number].sa.spi = spi + number as u32;
    }
    config
}

/// A chain with a new SA of a key exchange, and its peer, which does not have it yet.
fn about_to_know(reload: &Reload) -> [Chain; 2] {
    [negotiated(0, 9, 500), negotiated(1, 1, 300)].map(|config| chain_of(&config, reload))
}

fn counter(chain: &Chain, wanted: &str) -> u64 {
    let mut found = 0;
    let (stage, _) = chain.stages().next().unwrap();
    stage.counters(&mut |name, value| {
        if name == wanted {
            found = value;
        }
    });
    found
}

/// An ESP frame in two fragments.
fn halves(frame: &[u8]) -> [Vec<u8>; 2] {
    [(34..194, [0x20, 0]), (194..frame.len(), [0, 20])].map(|(data, place)| {
        let mut piece = frame[..34].to_vec();
        piece.extend_from_slice(&frame[data]);
        let len = (piece.len() - 14) as u16;
        piece[16..18].copy_from_slice(&len.to_be_bytes());
        piece[20..22].copy_from_slice(&place);
        piece[24..26].fill(0);
        let checksum = weir_wire::checksum::internet_checksum(&piece[14..34]);
        piece[24..26].copy_from_slice(&checksum.to_be_bytes());
        piece
    })
}

#[test]
fn a_packet_in_fragments_waits_for_its_sa() {
    let reload = Reload::default();
    let [mut a, mut b] = about_to_know(&reload);
    let plain = frame(300, 0, 7);
    run(&mut a, Direction::Outward, plain.clone());
    for half in halves(&routed(&mut a)[0]) {
        assert_eq!(run(&mut b, Direction::Inward, half).0, Fate::Taken);
    }
    reload.put(negotiated(1, 9, 500));
    b.poll(b.next_deadline().unwrap());
    let sent = b.take_sent();
    let [SentFrame::Made(opened)] = [&sent[0].frame] else {
        panic!("{sent:?}")
    };
    assert_eq!(opened[12..], plain[12..]);
    assert_eq!(counter(&b, "waited"), 1);
    // Static keys: a whole packet and one in fragments are dropped by the same reason.
    let mut fixed = chain(1, &reload);
    run(&mut a, Direction::Outward, plain);
    let [first, last] = halves(&routed(&mut a)[0]);
    assert_eq!(run(&mut fixed, Direction::Inward, first).0, Fate::Taken);
    let fate = run(&mut fixed, Direction::Inward, last).0;
    assert_eq!(fate, Fate::Drop("no-sa"));
}

/// A peer may use an SA before its news have come: the packet waits, but not for long.
#[test]
fn a_packet_waits_for_the_sa_of_a_key_exchange() {
    let reload = Reload::default();
    let [mut a, mut b] = about_to_know(&reload);
    let plain = frame(100, 0, 7);
    let mut sealed = || {
        run(&mut a, Direction::Outward, plain.clone());
        routed(&mut a).remove(0)
    };
    let (first, late) = (sealed(), sealed());
    assert_eq!(run(&mut b, Direction::Inward, first).0, Fate::Taken);
    b.poll(0);
    assert!(b.take_sent().is_empty());
    reload.put(negotiated(1, 9, 500));
    b.poll(b.next_deadline().unwrap());
    let sent = b.take_sent();
    let [sent] = &sent[..] else {
        panic!("{sent:?}")
    };
    let SentFrame::Made(opened) = &sent.frame else {
        panic!("{sent:?}")
    };
    assert_eq!(
        (sent.direction, &opened[12..]),
        (Direction::Inward, &plain[12..])
    );
    assert_eq!(
        (counter(&b, "waited"), counter(&b, "waited_in_vain")),
        (1, 0)
    );
    // Another one, whose SA never comes; and a flood.
    let mut c = chain_of(&negotiated(1, 1, 300), &reload);
    for _ in 0..400 {
        assert_eq!(run(&mut c, Direction::Inward, late.clone()).0, Fate::Taken);
    }
    assert_eq!(counter(&c, "waited_in_vain"), 400 - 256);
    c.poll(1_000_000_000);
    assert_eq!(counter(&c, "waited_in_vain"), 400);
    // Static keys: nothing is to be waited for.
    let mut fixed = chain(1, &reload);
    let unknown = sealed();
    assert_eq!(
        run(&mut fixed, Direction::Inward, unknown).0,
        Fate::Drop("no-sa")
    );
}
