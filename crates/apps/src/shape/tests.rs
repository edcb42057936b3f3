//! Configurations, classes and flows, and that queues are bounded.

use super::config::{FlowBy, LinkConfig, ShapeConfig};
use super::{Next, Shaper};
use weir_filter::lang::expr::NoNames;
use weir_lab::seeds::seeds;
use weir_sched::{Discipline, Order};
use weir_wire::rng::SplitMix64;

const HEAD: &str = "links = [\"a\", \"b\"]\n[[scheduler]]\nlink = \"b\"\n";

fn parse(rest: &str) -> Result<ShapeConfig, weir_chain::config::ConfigError> {
    ShapeConfig::parse(&format!("{HEAD}{rest}"), &NoNames)
}

fn link(rest: &str) -> LinkConfig {
    let [a, b] = parse(rest).unwrap().schedulers;
    assert!(a.is_none(), "without a scheduler");
    b.unwrap()
}

/// A UDP datagram in a frame of `len` bytes.
fn datagram(src: [u8; 4], src_port: u16, tos: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[6] = 2;
    frame[12] = 8;
    (frame[14], frame[15], frame[22], frame[23]) = (0x45, tos, 64, 17);
    frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    frame[26..30].copy_from_slice(&src);
    frame[30..34].copy_from_slice(&[192, 0, 2, 1]);
    frame[34..36].copy_from_slice(&src_port.to_be_bytes());
    frame[38..40].copy_from_slice(&((len - 34) as u16).to_be_bytes());
    let sum = weir_wire::checksum::internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn what_is_left_out_has_a_default() {
    let link = link("rate = \"100M\"");
    assert_eq!(link.scheduler.rate, 12_500_000);
    assert_eq!(link.scheduler.burst, 50_000, "4 ms");
    assert_eq!(link.scheduler.order, Order::Drr);
    assert_eq!(
        (link.classes.len(), link.rest, link.chunks_max),
        (1, 0, 10_240)
    );
    assert_eq!(link.classes[0].by, FlowBy::Flow);
    let Discipline::FqCodel(fq) = link.scheduler.classes[0].discipline else {
        panic!("{:?}", link.scheduler.classes);
    };
    assert_eq!(
        (fq.codel.target, fq.codel.interval),
        (5_000_000, 100_000_000)
    );
    assert!(fq.codel.is_ecn);
}

/// `box.toml` has the same tables, for any of its links.
#[test]
fn a_chain_reads_schedulers_as_a_shaper_does() {
    let tables = "[[scheduler]]\nlink = \"b\"\nrate = \"100M\"\norder = \"priority\"\noverhead = 24\n\
         [[scheduler.class]]\nname = \"calls\"\nmatch = \"udp port 5060\"\nqueue = \"fifo\"\n\
         [[scheduler.class]]\nby = \"source\"\n";
    let of_box = format!(
        "outside = \"b\"\n[[link]]\nname = \"a\"\n[[link]]\nname = \"b\"\n[[link]]\nname = \"c\"\n{tables}"
    );
    let of_box = crate::chain::BoxConfig::parse(&of_box, &NoNames).unwrap();
    let of_shape = ShapeConfig::parse(&format!("links = [\"a\", \"b\"]\n{tables}"), &NoNames);
    let seen = |link: &LinkConfig| {
        let classes = link.classes.iter();
        let classes: Vec<_> = classes.map(|it| (it.name.clone(), it.by)).collect();
        let scheduler = format!("{:?}", link.scheduler);
        (
            scheduler,
            classes,
            link.rest,
            link.overhead,
            link.chunks_max,
        )
    };
    let scheduled: Vec<_> = of_box
        .scheduled()
        .map(|(name, it)| (name, seen(it)))
        .collect();
    let expected = seen(of_shape.unwrap().schedulers[1].as_ref().unwrap());
    assert_eq!(of_box.chunks_max(), expected.4);
    assert_eq!(scheduled, [("b", expected)]);
    let shapers = of_box.shapers::<Vec<u8>>(1).unwrap();
    let has: Vec<bool> = shapers.iter().map(Option::is_some).collect();
    assert_eq!(has, [false, true, false]);
}

/// A frame of 1,514 bytes takes 121 ms at 100 kb/s.
#[test]
fn a_slow_link_has_a_target_above_the_time_of_a_frame() {
    let link = link("rate = \"100k\"");
    let Discipline::FqCodel(fq) = link.scheduler.classes[0].discipline else {
        panic!("{:?}", link.scheduler.classes);
    };
    assert_eq!(fq.codel.target, 121_120_000);
    assert!(fq.codel.interval > fq.codel.target);
    assert_eq!(link.scheduler.burst, 3_028);
}

#[test]
fn queues_and_classes_are_as_written() {
    let link = link(
        "rate = \"1G\"\nburst = \"64k\"\noverhead = 24\norder = \"wfq\"\n\
         [[scheduler.class]]\nname = \"calls\"\nmatch = \"udp port 5060\"\nweight = 4\nrate = \"10M\"\n\
         queue = \"fifo\"\nlimit = 100\n\
         [[scheduler.class]]\nqueue = \"red\"\nmin = \"30k\"\nprobability = 0.1\necn = false\n\
         [[scheduler.class]]\nmatch = \"tcp\"\ntarget = \"2ms\"\n",
    );
    assert_eq!((link.rest, link.overhead), (1, 24));
    let [calls, rest, tcp] = &link.scheduler.classes[..] else {
        panic!("{:?}", link.scheduler.classes);
    };
    assert_eq!((calls.weight, link.classes[0].name.as_str()), (4, "calls"));
    assert_eq!(calls.ceiling.map(|it| it.rate), Some(1_250_000));
    assert!(matches!(calls.discipline, Discipline::Fifo(limit) if limit.frames == 100));
    assert!(matches!(
        rest.discipline,
        Discipline::Red(red) if (red.min, red.max, red.is_ecn) == (30_000, 90_000, false)
    ));
    assert!(matches!(tcp.discipline, Discipline::CoDel(codel) if codel.target == 2_000_000));
}

#[test]
fn a_mistake_is_named_with_its_remedy() {
    for (rest, words) in [
        ("rate = \"fast\"", &["fast", "100M"][..]),
        ("rate = 5", &["rate = 5", "8000"]),
        ("", &["rate"]),
        ("rate = \"1M\"\norder = \"random\"", &["random", "drr"]),
        ("rate = \"1M\"\nspeed = 3", &["speed"]),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nqueue = \"sfq\"",
            &["sfq", "fq-codel"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nmatch = \"tcp port\"",
            &["match"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nmatch = \"tcp\"",
            &["without"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\n[[scheduler.class]]\n",
            &["two classes", "match"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nqueue = \"fifo\"\ntarget = \"5ms\"",
            &["target", "fifo", "codel"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\ntarget = \"5\"",
            &["target = \"5\"", "ms"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\ntarget = \"200ms\"\ninterval = \"100ms\"",
            &["interval", "above the target"],
        ),
        (
            "rate = \"1M\"\norder = \"wfq\"\n[[scheduler.class]]\nqueue = \"fq-codel\"",
            &["fq-codel", "wfq", "codel"],
        ),
        (
            "rate = \"1M\"\norder = \"priority\"\n[[scheduler.class]]\nweight = 2",
            &["weight", "drr"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nweight = 0",
            &["weight = 0", "65536"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nlimit = 65537",
            &["65537", "65536"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nburst = 9",
            &["burst", "rate"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nqueue = \"red\"\nmin = 9\nmax = 9",
            &["max = 9", "min"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nqueue = \"red\"\nprobability = 2.0",
            &["probability = 2", "0.02"],
        ),
        (
            "rate = \"1M\"\n[[scheduler]]\nlink = \"b\"\nrate = \"1M\"",
            &["\"b\"", "already"],
        ),
        (
            "rate = \"1M\"\n[[scheduler]]\nlink = \"c\"\nrate = \"1M\"",
            &["\"c\"", "a, b"],
        ),
        (
            "rate = \"1M\"\n[[scheduler.class]]\nname = \"x\"\n[[scheduler.class]]\nname = \"x\"\nmatch = \"tcp\"",
            &["\"x\"", "another class"],
        ),
    ] {
        let error = parse(rest).expect_err(rest);
        assert!(error.at.is_some(), "{rest}: no place");
        for word in words {
            assert!(
                error.message.contains(word),
                "{rest}: no `{word}` in: {}",
                error.message
            );
        }
    }
    for (text, word) in [
        ("links = [\"a\"]", "two"),
        ("links = [\"a\", \"a\"]", "different"),
        ("links = [\"a\", \"b\"]", "[[scheduler]]"),
        ("links = [\"a\", \"b\"]\nscheduler = 3", "[[scheduler]]"),
    ] {
        let error = ShapeConfig::parse(text, &NoNames).expect_err(text);
        assert!(error.message.contains(word), "{text}: {}", error.message);
    }
}

/// The frames that leave, in order, with all the time there is.
fn all(shaper: &mut Shaper<Vec<u8>>) -> Vec<Vec<u8>> {
    let (mut now, mut left) = (0, Vec::new());
    loop {
        match shaper.dequeue(now) {
            Next::Frame(frame) => left.push(frame),
            Next::At(at) => now = at,
            Next::Empty => return left,
        }
    }
}

#[test]
fn the_first_class_that_matches_gets_a_frame() {
    let link = link(
        "rate = \"1M\"\norder = \"priority\"\n\
         [[scheduler.class]]\nmatch = \"udp src port 7\"\nqueue = \"fifo\"\n\
         [[scheduler.class]]\nqueue = \"fifo\"\n\
         [[scheduler.class]]\nmatch = \"udp src port 7 or 9\"\nqueue = \"fifo\"\n",
    );
    let mut shaper = Shaper::new(&link, 1).unwrap();
    for port in [9, 8, 7] {
        shaper.enqueue(0, datagram([10, 0, 0, 1], port, 0, 100));
    }
    // Not IP, and too short for a header: the class without a filter.
    shaper.enqueue(0, vec![0xff; 60]);
    shaper.enqueue(0, vec![0; 5]);
    let frames: Vec<u32> = shaper.classes().map(|(_, counts)| counts.waiting).collect();
    assert_eq!(frames, [1, 3, 1]);
    let ports: Vec<u8> = all(&mut shaper)
        .iter()
        .filter_map(|frame| frame.get(35).copied())
        .collect();
    assert_eq!(ports, [7, 8, 0xff, 9]);
}

/// Frames of each of two senders that are next to leave.
fn of_senders(by: &str, sends: [(u8, u16); 2]) -> [usize; 2] {
    let text = format!("rate = \"10M\"\n[[scheduler.class]]\nby = \"{by}\"\n");
    let mut shaper = Shaper::new(&link(&text), 1).unwrap();
    let mut random = SplitMix64::new(3);
    // The second sends three times as much.
    for number in 0..400 {
        let (host, ports) = sends[usize::from(number % 4 > 0)];
        let port = 1_000 + (random.bits() % u64::from(ports)) as u16;
        shaper.enqueue(0, datagram([10, 0, 0, host], port, 0, 1_000));
    }
    let left = all(&mut shaper);
    let first = &left[..100];
    let of = |host| first.iter().filter(|frame| frame[29] == host).count();
    sends.map(|(host, _)| of(host))
}

#[test]
fn flows_are_told_apart_by_what_the_class_says() {
    let [one, many] = of_senders("source", [(1, 1), (2, 30)]);
    assert!(one.abs_diff(many) <= 4, "by source: {one} and {many}");
    let [one, many] = of_senders("flow", [(1, 1), (2, 30)]);
    assert!(many > 10 * one, "30 flows and one: {one} and {many}");
    let [one, many] = of_senders("destination", [(1, 1), (2, 30)]);
    assert!(many > 2 * one, "one queue: {one} and {many}");
}

#[test]
fn a_marked_frame_has_a_right_checksum() {
    let link = link(
        "rate = \"100M\"\n[[scheduler.class]]\nqueue = \"red\"\nmin = 1\nmax = 1000000\naverage = 1.0\n\
         probability = 1.0\n",
    );
    let mut shaper = Shaper::new(&link, 1).unwrap();
    for number in 0..400 {
        // ECT(0) of every second.
        let frame = datagram([10, 0, 0, 1], number, 0xb8 | (number as u8 & 1) << 1, 1_000);
        shaper.enqueue(0, frame);
    }
    let counts = shaper.classes().next().unwrap().1;
    let left = all(&mut shaper);
    let marked = left.iter().filter(|frame| frame[15] == 0xbb).count() as u64;
    assert!(counts.marked > 10 && counts.dropped > 10, "{counts:?}");
    assert_eq!(marked, counts.marked);
    for frame in &left {
        assert!([0xb8, 0xba, 0xbb].contains(&frame[15]));
        assert_eq!(weir_wire::checksum::internet_checksum(&frame[14..34]), 0);
    }
}

/// A frame of several chunks.
struct Long(Vec<u8>, u32);

impl super::Shaped for Long {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn frame_len(&self) -> usize {
        self.0.len() * self.1 as usize
    }

    fn chunks(&self) -> u32 {
        self.1
    }
}

#[test]
fn memory_is_bounded_whatever_comes() {
    for seed in seeds(20) {
        println!("seed {seed}");
        let mut random = SplitMix64::new(seed);
        let mut random = |end: u64| random.bits() % end;
        let link = link(
            "rate = \"10M\"\n[[scheduler.class]]\nlimit = 40\n\
             [[scheduler.class]]\nmatch = \"udp[0:2] < 20\"\nqueue = \"fifo\"\nlimit = 30\n\
             [[scheduler.class]]\nmatch = \"udp[0:2] > 40\"\nqueue = \"codel\"\nlimit = 30\n",
        );
        assert_eq!(link.chunks_max, 100);
        let mut shaper = Shaper::new(&link, seed).unwrap();
        let (mut now, mut came, mut left) = (0, 0, 0);
        for _ in 0..3_000 {
            now += random(2_000_000);
            let frame = datagram([10, 0, 0, random(3) as u8], random(60) as u16, 0, 200);
            shaper.enqueue(now, Long(frame, 1 + random(20) as u32));
            came += 1;
            assert!(shaper.chunks() <= 100, "seed {seed}");
            if let Next::Frame(_) = shaper.dequeue(now) {
                left += 1;
            }
        }
        shaper.flush();
        assert_eq!((shaper.chunks(), shaper.waiting()), (0, 0));
        let dropped: u64 = shaper.classes().map(|(_, counts)| counts.dropped).sum();
        assert!(dropped > 100 && left > 100, "seed {seed}");
        assert_eq!(came, left + dropped + shaper.flushed(), "seed {seed}");
    }
}

#[test]
fn the_example_is_accepted() {
    let text = include_str!("../../../../examples/shape.toml");
    let config = ShapeConfig::parse(text, &NoNames).unwrap();
    let [inside, outside] = config.schedulers.map(Option::unwrap);
    assert_eq!((inside.classes.len(), outside.classes.len()), (1, 3));
    assert!(Shaper::<Vec<u8>>::new(&outside, 1).is_ok());
}
