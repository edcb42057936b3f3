//! What a TAP link hands to a reader, whatever it asks for and refuses.
use weir_lab::net::Lab;
use weir_lab::testenv;
use weir_link::live::Sender;
use weir_socket::link::{self, DirectReceiver, Link};
use weir_stack::iface::RxMeta;
struct Rng(u64);
impl Rng {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}
struct Whim {
    rng: Rng,
    head_len: usize,
    out: Vec<u8>,
    got: Vec<Vec<u8>>,
    placed: usize,
    refused: usize,
    vouched: usize,
    fits: usize,
}
impl Whim {
    fn next(&mut self) {
        self.head_len = [0, 1, 13, 14, 54, 66, 86, 114][self.rng.below(8)];
        let len = [0, 0, 1, 2, 100, 1434, 1460, 65_535, 65_700, 200_000][self.rng.below(10)];
        self.out.clear();
        self.out.resize(len, 0xee);
    }
}
impl DirectReceiver for Whim {
    fn buffer(&mut self) -> (usize, &mut [u8]) {
        (self.head_len, &mut self.out)
    }
    fn placed(&mut self, head: &[u8], count: usize, received: RxMeta) -> bool {
        assert!(count > 0 && head.len() == self.head_len);
        self.vouched += usize::from(received.checksum_ok);
        self.fits += 1;
        if self.rng.below(2) == 0 {
            self.refused += 1;
            return false;
        }
        let frame = [head, &self.out[..count]].concat();
        assert!(
            self.out[count..].iter().all(|b| *b == 0xee),
            "no more was put there"
        );
        self.got.push(frame);
        self.placed += 1;
        self.next();
        true
    }
    fn receive(&mut self, frame: &[u8], _: RxMeta) {
        self.got.push(frame.to_vec());
        self.next();
    }
}
#[test]
fn frames_are_the_same_wherever_they_are_put() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    for plain in [false, true] {
        let lab = Lab::new();
        let host = lab.host("linux").unwrap();
        host.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1")
            .unwrap();
        let mut tap = host
            .run(|| {
                if plain {
                    link::Tap::open_plain("tap0")
                } else {
                    link::Tap::open("tap0")
                }
            })
            .unwrap();
        let device = host.device("tap0").unwrap();
        device.set_mtu(65_521).unwrap();
        device.up().unwrap();
        let index = device.index();
        let sender = host.run(|| Sender::open(index)).unwrap();
        let mut rng = Rng(5);
        let mut whim = Whim {
            rng: Rng(6),
            head_len: 0,
            out: vec![],
            got: vec![],
            placed: 0,
            refused: 0,
            vouched: 0,
            fits: 0,
        };
        let mut number = 0_usize;
        for round in 0..400 {
            let mut sent: Vec<Vec<u8>> = vec![];
            for _ in 0..1 + rng.below(6) {
                let len = match rng.below(6) {
                    0 => 14 + rng.below(3),
                    1 => 50 + rng.below(70),
                    2 => 65_535 - rng.below(70),
                    3 => [1448 + 66, 1500, 114, 115][rng.below(4)],
                    4 => 14 + 65_521,
                    _ => 14 + rng.below(65_521),
                };
                let mut frame: Vec<u8> = (0..len)
                    .map(|at| (at * 7 + number) as u8 ^ (at >> 8) as u8)
                    .collect();
                frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
                number += 1;
                sent.push(frame);
            }
            if round == 200 {
                device.down().unwrap();
                assert!(!tap.receive_to(&mut whim).unwrap(), "down is not gone");
                device.up().unwrap();
            }
            for frame in &sent {
                sender.send(frame).unwrap();
            }
            whim.got.clear();
            while tap.receive_to(&mut whim).unwrap() {}
            let got: Vec<&Vec<u8>> = whim
                .got
                .iter()
                .filter(|f| f[12..14] == [0x88, 0xb5])
                .collect();
            assert_eq!(got.len(), sent.len(), "round {round}");
            for (a, b) in got.iter().zip(&sent) {
                assert!(*a == b, "round {round}: {} {}", a.len(), b.len());
            }
        }
        println!(
            "plain {plain}: placed {} refused {} vouched {} of {number}",
            whim.placed, whim.refused, whim.vouched
        );
        assert_eq!(whim.vouched, 0, "they came from a packet socket");
        // Without the driver's header nothing is placed.
        assert!((whim.placed > 0 && whim.refused > 0) != plain);
    }
}
