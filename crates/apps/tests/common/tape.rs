//! A tape of any bytes as a router's life: frames, times, routes, links. Made
//! for the fuzz target `route` and the random test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_apps::router::engine::{
    LinkSettings, Origin, Reason, Router, RouterConfig, Target, Verdict,
};
use weir_stack::Prefix;
use weir_wire::ethernet::Address;
use weir_wire::{checksum, ipv4};

const LINKS: u16 = 3;
const MTU: [usize; 3] = [1500, 1280, 576];

fn router() -> Router {
    let link = |number: u8| LinkSettings {
        name: format!("eth{number}"),
        hardware: Address([2, 0, 0, 0, 0, number]),
        mtu: MTU[usize::from(number)],
        addresses: vec![
            Prefix::new(Ipv4Addr::new(10, number, 0, 1).into(), 16).unwrap(),
            Prefix::new(
                Ipv6Addr::new(0xfd00, number.into(), 0, 0, 0, 0, 0, 1).into(),
                64,
            )
            .unwrap(),
        ],
    };
    let settings = RouterConfig {
        links: (0..LINKS as u8).map(link).collect(),
        neighbours: (0..LINKS)
            .map(|link| {
                let ip = Ipv4Addr::new(10, link as u8, 0, 2);
                (link, ip.into(), Address([2, 0, 0, 0, 1, link as u8]))
            })
            .collect(),
        neighbours_max: 16,
        ..RouterConfig::default()
    };
    Router::new(&settings, 7).expect("three links fit")
}

/// What is left of the tape.
struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Lives through a tape, and asserts what must hold.
pub fn play(tape: &[u8]) {
    let mut tape = Tape(tape);
    let mut router = router();
    let mut now_ns = 0u64;
    let mut frames = 0;
    while let Some(step) = tape.byte() {
        match step % 8 {
            0 => now_ns += u64::from(tape.byte().unwrap_or(0)) * 100_000_000,
            1 => route(&mut router, &mut tape),
            2 => router.set_link_up(u16::from(step >> 3) % LINKS, step & 0x80 == 0),
            3 => router.poll(now_ns),
            _ => {
                let len = usize::from(tape.byte().unwrap_or(0)) * 6;
                let link = u16::from(step >> 3) % LINKS;
                frame(&mut router, now_ns, link, tape.bytes(len), step & 0x40 != 0);
                frames += 1;
            }
        }
        own(&mut router);
    }
    let counters = router.counters();
    let received: u64 = counters.links.iter().map(|link| link.rx_frames).sum();
    assert_eq!(received, frames);
    assert!(router.neighbours() <= 16 + LINKS as usize);
}

fn route(router: &mut Router, tape: &mut Tape<'_>) {
    let [kind, len] = [(); 2].map(|()| tape.byte().unwrap_or(0));
    let mut bytes = [0; 16];
    let taken = tape.bytes(4);
    bytes[..taken.len()].copy_from_slice(taken);
    let address: IpAddr = match kind & 1 {
        0 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
        _ => Ipv6Addr::from(bytes).into(),
    };
    let bits = if address.is_ipv4() { 33 } else { 129 };
    let prefix = Prefix::new(address, len % bits).expect("as many bits as there are");
    let target = match kind >> 1 & 7 {
        0 => return router.routes_mut().remove(prefix, Origin::Configured),
        1 => Target::Unreachable,
        2 => Target::Prohibit,
        3 => Target::Blackhole,
        4 => Target::to(u16::from(kind >> 4) % LINKS, None),
        _ => Target::to(0, Some(Ipv4Addr::new(10, 0, 0, 2).into())),
    };
    let inserted = router
        .routes_mut()
        .insert(prefix, Origin::Configured, target);
    inserted.expect("a tape's routes fit");
}

fn frame(router: &mut Router, now_ns: u64, link: u16, bytes: &[u8], whole: bool) {
    let mut frame = bytes.to_vec();
    if whole && frame.len() >= 34 {
        // To us, with a checksum that holds: it gets further.
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, link as u8]);
        let len = (usize::from(frame[14] & 0xf) * 4).clamp(20, frame.len() - 14);
        if frame[12..14] == [8, 0] {
            frame[24..26].fill(0);
            let sum = checksum::internet_checksum(&frame[14..14 + len]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
    }
    let before = frame.clone();
    let dropped = |router: &Router| router.counters().drops().map(|(_, n)| n).sum::<u64>();
    let drops = dropped(router);
    let mut verdicts = Vec::new();
    router.process(now_ns, link, &mut [&mut frame[..]], &mut verdicts);
    match verdicts[..] {
        [Verdict::Forward { link, len }] => {
            assert!(link < LINKS && len <= before.len() && len <= MTU[usize::from(link)] + 14);
            check(link, &frame[..len]);
        }
        [Verdict::Done] => {
            let did = dropped(router) > drops || router.counters().fragmented > 0;
            let kept = router.counters().neighbours_asked > 0;
            let answered = router.counters().neighbours_answered > 0;
            assert!(did || kept || answered, "a frame is gone without a reason");
        }
        _ => panic!("{verdicts:?} for one frame"),
    }
    assert!(router.counters().dropped(Reason::LinkFull) == 0);
}

/// What the router itself sends is whole.
fn own(router: &mut Router) {
    while let Some((link, frame)) = router.next_output() {
        assert!(
            frame.len() <= MTU[usize::from(link)] + 14,
            "{}",
            frame.len()
        );
        check(link, &frame);
    }
}

fn check(link: u16, frame: &[u8]) {
    assert_eq!(frame[6..12], [2, 0, 0, 0, 0, link as u8], "from us");
    if frame[12..14] == [8, 0] {
        let packet = ipv4::Packet::new(&frame[14..]).expect("a packet");
        assert!(packet.checksum_is_right() && packet.ttl() > 0);
        assert_eq!(packet.total_len() + 14, frame.len());
    }
}
