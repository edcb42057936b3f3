//! ESP on one core, against its algorithm alone: `cargo bench -p weir-esp --bench esp`.
//!
//! Both encrypt 1,400 bytes with AES-256-GCM by the same library. ESP looks up
//! the policy, copies the packet behind its outer header, and counts.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::hint::black_box;
use std::time::Instant;
use weir_esp::{Config, Gateway, Inward, Outward};
use weir_filter::lang::expr::NoNames;
use weir_lab::results::{Bar, Unit, recorder};

const PACKETS: usize = 20_000;
const ROUNDS: usize = 15;
const LEN: usize = 1_400;

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
    Gateway::new(&config, 0, 7).expect("the configuration is right")
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

/// ns a packet of the algorithm alone.
fn raw() -> f64 {
    let key = UnboundKey::new(&AES_256_GCM, &[3; 32]).expect("32 bytes are a key");
    let key = LessSafeKey::new(key);
    let mut text = packet();
    let start = Instant::now();
    for number in 0..PACKETS as u64 {
        let mut nonce = [1; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from([0; 12]), &mut text);
        black_box(tag.is_ok());
    }
    start.elapsed().as_nanos() as f64 / PACKETS as f64
}

/// ns a packet that leaves, and one that enters.
fn esp() -> (f64, f64) {
    let (mut a, mut b) = (gateway(0), gateway(1));
    let mut packet = packet();
    let mut sealed = Vec::with_capacity(PACKETS);
    let start = Instant::now();
    for _ in 0..PACKETS {
        match a.outward(0, black_box(&mut packet)) {
            Outward::Protected(made) => sealed.extend(made),
            other => panic!("{other:?}"),
        }
    }
    let outward = start.elapsed().as_nanos() as f64 / PACKETS as f64;
    let start = Instant::now();
    for esp in &mut sealed {
        assert!(matches!(b.inward(0, black_box(esp)), Inward::Opened(_)));
    }
    let inward = start.elapsed().as_nanos() as f64 / PACKETS as f64;
    (outward, inward)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let results = recorder!();
    let (mut alone, mut outward, mut inward) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(raw());
        let (out, back) = esp();
        outward.push(out);
        inward.push(back);
    }
    let alone = median(alone);
    println!("ns a packet of {LEN} bytes, AES-256-GCM alone: {alone:.0}");
    for (name, ns) in [("out", median(outward)), ("in", median(inward))] {
        let ratio = alone / ns;
        println!("ESP, {name}: {ns:.0}, ratio {ratio:.2}");
        let name = format!("ESP of 1,400 B on one core, {name}");
        results.record(
            &name,
            ratio,
            Unit::RateOf("AES-256-GCM alone"),
            Bar::AtLeast(0.5),
        );
    }
}
