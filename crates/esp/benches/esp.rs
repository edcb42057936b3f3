//! ESP on one core, against its algorithm alone: `cargo bench -p weir-esp --bench esp`.
//!
//! Both encrypt and decrypt 1,400 bytes with AES-256-GCM by the same library, in batches of 64
//! packets whose memory is used again, as a link's is. The algorithm works in place. ESP looks up
//! SA and policy, copies the packet behind its outer header or to the front, and counts.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::hint::black_box;
use std::time::{Duration, Instant};
use weir_esp::{Config, Gateway, Inner, Inward, Outward};
use weir_filter::lang::expr::NoNames;
use weir_lab::results::{Bar, Unit, recorder};

const BATCH: usize = 64;
const BATCHES: usize = 300;
const ROUNDS: usize = 15;
const LEN: usize = 1_400;
/// The header of the link.
const HEADROOM: usize = 14;

fn gateway(which: usize) -> Gateway {
    let ends = ["192.0.2.1", "198.51.100.1"];
    let nets = ["10.1.0.0/16", "10.2.0.0/16"];
    let sa = |number: usize| {
        let direction = if number == which { "out" } else { "in" };
        format!(
            "[[sa]]\ntunnel = \"t\"\ndirection = \"{direction}\"\nspi = {}\nesn = true\n\
             algorithm = \"aes256gcm\"\nkey = \"{}\"\n",
            1000 + number,
            format!("{:02x}", 3 + number).repeat(36)
        )
    };
    let text = format!(
        "[[tunnel]]\nname = \"t\"\nlocal = \"{}\"\nremote = \"{}\"\n{}{}\
         [[policy]]\nmatch = \"src net {} and dst net {}\"\naction = \"protect\"\ntunnel = \"t\"\n",
        ends[which],
        ends[1 - which],
        sa(0),
        sa(1),
        nets[which],
        nets[1 - which],
    );
    let config = Config::parse(&text, &NoNames, 1500).expect("the configuration is right");
    let gateway = Gateway::new(&config, 0, 7).expect("the configuration is right");
    gateway.with_headroom(HEADROOM)
}

fn packet() -> Vec<u8> {
    let mut packet = vec![0x5a; LEN];
    let header = weir_wire::ipv4::Repr {
        src: [10, 1, 0, 5].into(),
        dst: [10, 2, 0, 6].into(),
        protocol: weir_wire::Protocol::UDP,
        ttl: 64,
        traffic_class: 0,
        identification: 1,
        dont_fragment: true,
        payload_len: LEN - 20,
    };
    header.emit(&mut packet);
    packet
}

/// Time of packets.
fn ns_a_packet(time: Duration) -> f64 {
    time.as_nanos() as f64 / (BATCH * BATCHES) as f64
}

/// ns a packet of the algorithm alone, which encrypts it, and which decrypts it.
fn raw() -> [f64; 2] {
    let key = UnboundKey::new(&AES_256_GCM, &[3; 32]).expect("32 bytes are a key");
    let key = LessSafeKey::new(key);
    let mut texts = vec![packet(); BATCH];
    let mut tags = Vec::with_capacity(BATCH);
    let [mut sealing, mut opening] = [Duration::ZERO; 2];
    for batch in 0..BATCHES {
        let nonce = |number: usize| {
            let mut nonce = [1; 12];
            nonce[4..].copy_from_slice(&((batch * BATCH + number) as u64).to_be_bytes());
            Nonce::assume_unique_for_key(nonce)
        };
        let start = Instant::now();
        for (number, text) in texts.iter_mut().enumerate() {
            let tag = key.seal_in_place_separate_tag(nonce(number), Aad::from([0; 12]), text);
            tags.push(tag.expect("it is short"));
        }
        sealing += start.elapsed();
        let start = Instant::now();
        for (number, (text, tag)) in texts.iter_mut().zip(tags.drain(..)).enumerate() {
            let aad = Aad::from([0; 12]);
            let opened = key.open_in_place_separate_tag(nonce(number), aad, tag.as_ref(), text);
            black_box(opened.expect("as it was sealed"));
        }
        opening += start.elapsed();
    }
    [sealing, opening].map(ns_a_packet)
}

/// ns a packet that leaves, and one that enters.
fn esp() -> [f64; 2] {
    let (mut a, mut b) = (gateway(0), gateway(1));
    let mut packets = vec![packet(); BATCH];
    let mut sealed = Vec::with_capacity(BATCH);
    let [mut outward, mut inward] = [Duration::ZERO; 2];
    for _ in 0..BATCHES {
        let start = Instant::now();
        for packet in &mut packets {
            match a.outward(0, black_box(packet)) {
                Outward::Protected(made) => sealed.extend(made),
                other => panic!("{other:?}"),
            }
        }
        outward += start.elapsed();
        let start = Instant::now();
        for esp in &mut sealed {
            let inner = b.inward(0, black_box(&mut esp[HEADROOM..]));
            assert_eq!(inner, Inward::Opened(Inner::InPlace(LEN)));
        }
        inward += start.elapsed();
        let start = Instant::now();
        sealed.drain(..).for_each(|frame| a.recycle(frame));
        outward += start.elapsed();
    }
    [outward, inward].map(ns_a_packet)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let results = recorder!();
    let mut rounds = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let [[sealing, opening], [outward, inward]] = [raw(), esp()];
        for (round, ns) in rounds.iter_mut().zip([sealing, opening, outward, inward]) {
            round.push(ns);
        }
    }
    let [sealing, opening, outward, inward] = rounds.map(median);
    for (name, alone, ns) in [("out", sealing, outward), ("in", opening, inward)] {
        let ratio = alone / ns;
        println!(
            "ns a packet of {LEN} bytes, {name}: AES-256-GCM alone {alone:.0}, ESP {ns:.0}: {ratio:.2}"
        );
        let name = format!("ESP of 1,400 B on one core, {name}");
        results.record(
            &name,
            ratio,
            Unit::RateOf("AES-256-GCM alone"),
            Bar::AtLeast(0.5),
        );
    }
}
