//! A tape of packets, changes and time for two gateways: nothing panics, what
//! enters was sent, once, and nothing protected is seen in between.

use std::collections::HashSet;
use weir_esp::{Config, Gateway, Inward, Outward};
use weir_filter::lang::expr::NoNames;

struct Tape<'a>(&'a [u8]);

impl Tape<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let (first, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        first
    }
}

/// Packets in between, at most.
const SEEN_MAX: usize = 64;

fn config(which: u8, options: u8) -> Config {
    let (udp, esn) = (options & 1 != 0, options & 2 != 0);
    let algorithm = if options & 4 != 0 {
        "aes128gcm"
    } else {
        "chacha20poly1305"
    };
    let len = if options & 4 != 0 { 40 } else { 72 };
    let [out, inward] = [which, 1 - which].map(|number| {
        format!(
            "spi = {}\nkey = \"{:0<len$x}\"",
            300 + u32::from(number),
            number + 1
        )
    });
    let sequence = if esn {
        "sequence = 4294967290\nesn = true\n"
    } else {
        ""
    };
    let text = format!(
        "[[tunnel]]\nname = \"t\"\nlocal = \"192.0.2.{}\"\nremote = \"192.0.2.{}\"\nudp = {udp}\n\
         [[sa]]\ntunnel = \"t\"\ndirection = \"out\"\nalgorithm = \"{algorithm}\"\n{out}\n{sequence}\
         [[sa]]\ntunnel = \"t\"\ndirection = \"in\"\nalgorithm = \"{algorithm}\"\n{inward}\n{sequence}\
         [[policy]]\nmatch = \"net 10.0.0.0/8\"\naction = \"protect\"\ntunnel = \"t\"\n\
         [[policy]]\nmatch = \"udp port 53\"\naction = \"bypass\"\n",
        1 + which,
        2 - which,
    );
    Config::parse(&text, &NoNames, 1500).expect("the test's configuration is good")
}

/// A packet with a header of the tape; whole, if the tape has enough.
fn packet(tape: &mut Tape<'_>) -> Option<Vec<u8>> {
    let kind = tape.byte()?;
    let len = usize::from(tape.word()?) % 2000;
    let body = tape.take(len.min(64)).to_vec();
    let mut packet = vec![0; 20];
    packet.extend_from_slice(&body);
    packet.resize(20 + len.max(body.len()), 0xee);
    packet[0] = 0x45;
    let total = packet.len() as u16;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[6] = kind & 0x60;
    packet[8] = 64;
    packet[9] = [17, 6, 1, 50][usize::from(kind & 3)];
    let ends = match kind >> 2 & 3 {
        0 => [10, 1, 1, 1, 10, 2, 2, 2],
        1 => [192, 0, 2, 1, 192, 0, 2, 2],
        2 => [192, 0, 2, 2, 192, 0, 2, 1],
        _ => [1, 1, 1, 1, 2, 2, 2, 2],
    };
    packet[12..20].copy_from_slice(&ends);
    Some(packet)
}

/// Runs a tape to its end.
pub(crate) fn run(data: &[u8]) {
    let mut tape = Tape(data);
    let Some(options) = tape.byte() else { return };
    let configs = [config(0, options), config(1, options)];
    let mut gateways = [0, 1]
        .map(|at| Gateway::new(&configs[at], 0, 5 + at as u64).expect("a good configuration"));
    let (mut now, mut seen, mut sent) = (0_u64, Vec::<Vec<u8>>::new(), HashSet::new());
    let mut opened = 0;
    while step(
        &mut tape,
        &configs,
        &mut gateways,
        &mut now,
        &mut seen,
        &mut sent,
        &mut opened,
    )
    .is_some()
    {
        assert!(opened <= sent.len(), "more came than was sent");
    }
}

fn step(
    tape: &mut Tape<'_>,
    configs: &[Config; 2],
    gateways: &mut [Gateway; 2],
    now: &mut u64,
    seen: &mut Vec<Vec<u8>>,
    sent: &mut HashSet<Vec<u8>>,
    opened: &mut usize,
) -> Option<()> {
    let choice = tape.byte()?;
    let which = usize::from(choice >> 7);
    match choice & 7 {
        0..=2 => {
            let mut packet = packet(tape)?;
            if let Outward::Protected(made) = gateways[which].outward(*now, &mut packet) {
                for esp in made {
                    assert!(esp.len() <= 1500, "{} bytes", esp.len());
                    assert!(
                        sent.insert(esp[esp.len() - 16..].to_vec()),
                        "an ICV occurs twice"
                    );
                    seen.push(esp);
                }
                let over = seen.len().saturating_sub(SEEN_MAX);
                seen.drain(..over);
            }
        }
        3 | 4 => {
            let at = usize::from(tape.byte()?);
            let mut packet = seen.get(at % seen.len().max(1))?.clone();
            let is_changed = choice & 8 != 0;
            if is_changed {
                let place = usize::from(tape.word()?) % packet.len();
                packet[place] ^= tape.byte()? | 1;
            }
            if let Inward::Opened(inner) = gateways[which]
                .inward(*now, &mut packet)
                .into_owned(&packet)
            {
                *opened += 1;
                assert!(inner.len() >= 20);
            }
        }
        5 => {
            let mut packet = packet(tape)?;
            let result = gateways[which].inward(*now, &mut packet);
            assert!(!matches!(result, Inward::Opened(_)), "a packet was forged");
        }
        6 => {
            *now = now.saturating_add(u64::from(tape.word()?) << 30);
            gateways.iter_mut().for_each(|it| _ = it.poll(*now));
        }
        _ => {
            let reloaded = gateways[which].reload(&configs[which], *now);
            reloaded.expect("a good configuration");
        }
    }
    Some(())
}
