//! The kernel's messages: those that Linux and strongSwan have sent, and those that a program makes of the
//! kernel's own header.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/xfrm_tape.rs"]
mod tape;

use common::{opened, packet, state};
use weir_esp::config::Direction;
use weir_esp::negotiated::Mapper;
use weir_esp::policy::Action;
use weir_esp::xfrm::{self, Database};
use weir_esp::{Config, Gateway, Inward, Outward};
use weir_lab::c;
use weir_lab::command::Command;
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;
use weir_link::net::xfrm_messages;

const KERNEL: &str = include_str!("kernel.txt");
const STRONGSWAN: &str = include_str!("strongswan.txt");

type Message = (u16, Vec<u8>);

/// The messages of a text: of each line the type and the bytes in hexadecimal digits.
fn messages(text: &str) -> Vec<Message> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &str| {
        let (kind, digits) = line.split_once(' ').unwrap();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let bytes = (0..digits.len()).step_by(2).map(byte).collect();
        (u16::from_str_radix(&kind[2..], 16).unwrap(), bytes)
    };
    lines.map(read).collect()
}

fn take(database: &mut Database, messages: &[Message]) -> usize {
    let changes = messages
        .iter()
        .filter(|(kind, bytes)| database.take(*kind, bytes));
    changes.count()
}

fn config(database: &Database) -> Config {
    database.config(&mut Mapper::default(), 1500)
}

/// The decision of a gateway without SAs on a packet that leaves.
fn outward(config: &Config, src: &str, dst: &str) -> &'static str {
    let mut gateway = Gateway::new(config, 0, 1).unwrap();
    match gateway.outward(0, &mut packet(src, dst, 0, false, b"text")) {
        Outward::Pass => "passes",
        Outward::Protected(_) => "protected",
        Outward::Drop(reason, _) => reason,
    }
}

#[test]
fn policies_of_the_kernel_are_followed() {
    let all = messages(KERNEL);
    let mut database = Database::default();
    assert_eq!(
        outward(&config(&database), "10.1.0.5", "10.2.0.6"),
        "passes"
    );
    // Out, in and forwarded: one policy, which an update moves.
    assert_eq!(take(&mut database, &all[..3]), 3);
    let made = config(&database);
    assert_eq!((made.tunnels.len(), made.policies.len()), (1, 2));
    assert_eq!(made.tunnels[0].local.to_string(), "192.0.2.1");
    assert_eq!(outward(&made, "10.1.0.5", "10.2.0.6"), "no-outbound-sa");
    assert_eq!(outward(&made, "10.3.0.5", "10.2.0.6"), "passes");
    take(&mut database, &all[3..4]);
    assert_eq!(
        outward(&config(&database), "10.1.0.5", "10.2.0.6"),
        "no-outbound-sa"
    );
    // TCP to port 25 is blocked, UDP is not.
    take(&mut database, &all[4..5]);
    let made = config(&database);
    assert_eq!(made.policies[0].action, Action::Discard);
    assert_eq!(outward(&made, "10.1.0.5", "10.3.0.6"), "passes");
    assert!(made.refused.is_empty(), "{:?}", made.refused);
    // A mark, and AH, are not understood: what they select is dropped.
    take(&mut database, &all[5..8]);
    let made = config(&database);
    assert_eq!(made.refused.len(), 2, "{:?}", made.refused);
    assert!(made.refused.iter().any(|why| why.contains("a mark")));
    assert!(made.refused.iter().any(|why| why.contains("only ESP")));
    assert_eq!(outward(&made, "10.9.0.5", "10.8.0.6"), "policy");
    assert_eq!(outward(&made, "10.7.0.5", "10.8.0.6"), "policy");
    assert_eq!(outward(&made, "fd00:1::5", "fd00:2::6"), "no-outbound-sa");
    // The default, there and back.
    for (number, decision) in [(8, "policy"), (9, "passes")] {
        assert_eq!(take(&mut database, &all[number..=number]), 1);
        assert_eq!(
            outward(&config(&database), "10.3.0.5", "10.2.0.6"),
            decision
        );
    }
    // One policy goes, then all of another type, then all.
    assert_eq!(take(&mut database, &all[10..11]), 1);
    let [len, kind] = [10_u16, 16].map(u16::to_ne_bytes);
    let before = config(&database).policies.len();
    let sub = [&len[..], &kind, &[1, 0, 0, 0, 0, 0]].concat();
    assert_eq!(take(&mut database, &[(xfrm::FLUSHPOLICY, sub)]), 0);
    assert_eq!(config(&database).policies.len(), before);
    assert_eq!(take(&mut database, &all[11..12]), 1);
    let made = config(&database);
    assert_eq!((made.policies.len(), made.tunnels.len()), (1, 0));
}

/// A policy between the ends of strongSwan's SAs, made of the kernel's.
fn policy() -> Message {
    let (kind, mut bytes) = messages(KERNEL).remove(0);
    // The networks, the template's ends, and reqid 1.
    bytes[1] = 1;
    bytes[17] = 2;
    let template = 168 + 4;
    bytes[template + 3] = 1;
    bytes[template + 31] = 2;
    bytes[template + 44] = 1;
    (kind, bytes)
}

/// The gateway of the other end: the same SAs, exchanged.
fn peer(config: &Config) -> Config {
    let mut peer = config.clone();
    for tunnel in &mut peer.tunnels {
        std::mem::swap(&mut tunnel.local, &mut tunnel.remote);
    }
    for entry in &mut peer.sas {
        entry.direction = match entry.direction {
            Direction::In => Direction::Out,
            Direction::Out => Direction::In,
        };
    }
    peer.policies.clear();
    let (kind, mut bytes) = policy();
    bytes[1] = 2;
    bytes[17] = 1;
    bytes[172 + 3] = 2;
    bytes[172 + 31] = 1;
    let mut database = Database::default();
    assert!(database.take(kind, &bytes));
    peer.policies = self::config(&database).policies;
    peer
}

#[test]
fn the_sas_of_strongswan_carry_packets() {
    let mut database = Database::default();
    let recorded = messages(STRONGSWAN);
    take(&mut database, &recorded[..2]);
    // SAs come before their policies.
    assert!(config(&database).sas.is_empty());
    take(&mut database, &[policy()]);
    let made = config(&database);
    assert!(made.refused.is_empty(), "{:?}", made.refused);
    let [inbound, outbound] = &made.sas[..] else {
        panic!("{:?}", made.sas)
    };
    let kinds = [inbound, outbound].map(|entry| (entry.direction, entry.sa.spi));
    assert_eq!(
        kinds,
        [(Direction::In, 0xc4b4_a0a2), (Direction::Out, 0xc3cd_48ae)]
    );
    assert!(inbound.sa.is_extended && outbound.sa.is_extended);
    assert_eq!((inbound.sa.window, outbound.sa.window), (32, 1));
    let ports = made.tunnels[0].udp.unwrap();
    assert_eq!((ports.local, ports.remote), (4500, 4500));
    let mut here = Gateway::new(&made, 0, 1).unwrap();
    let mut there = Gateway::new(&peer(&made), 0, 2).unwrap();
    let plain = packet("10.2.0.5", "10.1.0.6", 0, false, b"text");
    let Outward::Protected(sealed) = here.outward(0, &mut plain.clone()) else {
        panic!("not protected")
    };
    let came = opened(&mut there, 0, &sealed[0]);
    assert_eq!(came, Inward::Opened(plain));
    let back = packet("10.1.0.6", "10.2.0.5", 0, false, b"text");
    let Outward::Protected(sealed) = there.outward(0, &mut back.clone()) else {
        panic!("not protected")
    };
    let came = opened(&mut here, 0, &sealed[0]);
    assert_eq!(came, Inward::Opened(back));
    // Its end.
    assert_eq!(take(&mut database, &recorded[2..]), 2);
    assert!(config(&database).sas.is_empty());
}

/// The program that makes messages of the kernel's header.
struct Maker {
    program: Option<std::path::PathBuf>,
    _folder: common_folder::Folder,
}

mod common_folder {
    //! A folder of a test.

    use std::path::PathBuf;

    pub(super) struct Folder(pub(super) PathBuf);

    impl Folder {
        pub(super) fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// An SA of 192.0.2.1 with 192.0.2.2 as the program's arguments.
#[derive(Clone, Copy)]
struct Made {
    is_out: bool,
    spi: &'static str,
    key: &'static str,
    algorithm: (&'static str, &'static str),
    mode: &'static str,
    ports: &'static str,
    flags: &'static str,
    numbers: [&'static str; 3],
}

const GCM: (&str, &str) = ("rfc4106(gcm(aes))", "160");
const CHACHA: (&str, &str) = ("rfc7539esp(chacha20,poly1305)", "288");

const USUAL: Made = Made {
    is_out: false,
    spi: "0x1000",
    key: "1",
    algorithm: GCM,
    mode: "1",
    ports: "0",
    flags: "0",
    numbers: ["64", "0", "0"],
};

impl Maker {
    fn new(name: &str) -> Maker {
        let folder = common_folder::Folder::new(name);
        let program = c::compiled(&folder.0, "crates/esp/tests/xfrm/messages.c", &[]);
        Maker {
            program,
            _folder: folder,
        }
    }

    /// New SA, expiry, deletion, removal of all.
    fn messages(&self, sa: Made) -> Vec<Message> {
        let mut ends = ["192.0.2.1", "192.0.2.2"];
        if !sa.is_out {
            ends.reverse();
        }
        let mut command = Command::built(self.program.as_ref().unwrap());
        command
            .args(ends)
            .args([sa.spi, sa.key, sa.algorithm.0, sa.algorithm.1, sa.mode, "7"]);
        command
            .args([sa.ports, sa.ports, sa.flags])
            .args(sa.numbers);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        messages(std::str::from_utf8(&output.stdout).unwrap())
    }
}

#[test]
fn sas_as_the_kernel_s_header_lays_them_out() {
    let maker = Maker::new("xfrm-layout");
    if maker.program.is_none() {
        return;
    }
    let policies = &messages(KERNEL)[..3];
    let with = |sas: &[Made]| {
        let mut database = Database::default();
        take(&mut database, policies);
        for sa in sas {
            take(&mut database, &maker.messages(*sa)[..1]);
        }
        database
    };
    let esn = Made {
        flags: "128",
        algorithm: CHACHA,
        ports: "4500",
        numbers: ["4096", "0x500000007", "0"],
        is_out: true,
        ..USUAL
    };
    let made = config(&with(&[esn]));
    let entry = &made.sas[0];
    assert_eq!((entry.direction, entry.sa.spi), (Direction::Out, 0x1000));
    assert_eq!(entry.sa.sequence, 0x5_0000_0007);
    assert_eq!((entry.sa.is_extended, entry.sa.window), (true, 4096));
    assert_eq!(entry.sa.algorithm.name(), "chacha20poly1305");
    assert!(made.tunnels[0].udp.is_some());
    // What is not understood is named, and not used.
    for (sa, why) in [
        (
            Made {
                algorithm: ("rfc4543(gcm(aes))", "160"),
                ..USUAL
            },
            "rfc4543",
        ),
        (
            Made {
                algorithm: (GCM.0, "224"),
                ..USUAL
            },
            "224 bits",
        ),
        (Made { mode: "4", ..USUAL }, "mode 4"),
        (Made { key: "0", ..USUAL }, "hides its key"),
    ] {
        let made = config(&with(&[sa]));
        assert!(made.sas.is_empty());
        assert!(
            made.refused.iter().any(|it| it.contains(why)),
            "{:?}",
            made.refused
        );
    }
    let twice = config(&with(&[
        USUAL,
        Made {
            spi: "0x1001",
            ..USUAL
        },
    ]));
    assert_eq!((twice.sas.len(), twice.refused.len()), (1, 1));
    // Each way to go.
    for number in 1..4 {
        let mut database = with(&[USUAL]);
        assert_eq!(config(&database).sas.len(), 1);
        assert_eq!(
            take(&mut database, &maker.messages(USUAL)[number..=number]),
            1
        );
        assert!(config(&database).sas.is_empty());
    }
}

/// New SAs beside the old ones, then without them, while packets go both ways.
#[test]
fn rekeying_loses_nothing() {
    let maker = Maker::new("xfrm-rekey");
    if maker.program.is_none() {
        return;
    }
    let all = messages(KERNEL);
    let mut here = Database::default();
    take(&mut here, &all[..3]);
    let sa = |is_out, spi, key| Made {
        is_out,
        spi,
        key,
        ..USUAL
    };
    let old = [sa(true, "0x1001", "1"), sa(false, "0x1002", "2")];
    let new = [sa(true, "0x2001", "3"), sa(false, "0x2002", "4")];
    for one in old {
        take(&mut here, &maker.messages(one)[..1]);
    }
    // The peer has all of them from the start, as inbound and outbound.
    let mut both = Database::default();
    take(&mut both, &all[..3]);
    for one in old.into_iter().chain(new) {
        take(&mut both, &maker.messages(one)[..1]);
    }
    let mut there = config(&both);
    let tunnel = &mut there.tunnels[0];
    std::mem::swap(&mut tunnel.local, &mut tunnel.remote);
    for entry in &mut there.sas {
        entry.direction = match entry.direction {
            Direction::In => Direction::Out,
            Direction::Out => Direction::In,
        };
    }
    let text = "src net 10.2.0.0/16 and dst net 10.1.0.0/16";
    let program = weir_esp::policy::program(text, &weir_filter::lang::expr::NoNames).unwrap();
    there.policies[0].filter = program.into();
    let mut there = Gateway::new(&there, 0, 2).unwrap();
    let mut gateway = Gateway::new(&config(&here), 0, 1).unwrap();
    let plain = packet("10.1.0.5", "10.2.0.6", 0, false, b"text");
    let mut go = |gateway: &mut Gateway| {
        let Outward::Protected(sealed) = gateway.outward(0, &mut plain.clone()) else {
            panic!("not protected")
        };
        let spi = u32::from_be_bytes(*sealed[0][20..].first_chunk().unwrap());
        let came = opened(&mut there, 0, &sealed[0]);
        assert_eq!(came, Inward::Opened(plain.clone()));
        spi
    };
    assert_eq!(go(&mut gateway), 0x1001);
    let steps = [(&new[1], 0), (&new[0], 0), (&old[0], 2), (&old[1], 2)];
    let spis = [0x1001, 0x2001, 0x2001, 0x2001];
    for ((sa, message), spi) in steps.into_iter().zip(spis) {
        take(&mut here, &maker.messages(*sa)[message..=message]);
        gateway.reload(&config(&here), 1).unwrap();
        assert_eq!(go(&mut gateway), spi);
        assert_eq!(go(&mut gateway), spi);
    }
    let sequence = state(&gateway, Direction::Out, 0x2001).map(|(sequence, _)| sequence);
    assert_eq!(sequence, Some(6), "the new SA went on over two reloads");
}

/// Every cut and many changes of bytes: no panic, and a configuration that a gateway accepts.
#[test]
fn damaged_messages_are_harmless() {
    let recorded = [messages(KERNEL), messages(STRONGSWAN)].concat();
    for (kind, bytes) in &recorded {
        for len in 0..bytes.len() {
            let mut database = Database::default();
            database.take(*kind, &bytes[..len]);
            config(&database);
        }
    }
    let kinds = [
        xfrm::NEWSA,
        xfrm::DELSA,
        xfrm::EXPIRE,
        xfrm::NEWPOLICY,
        xfrm::DELPOLICY,
    ];
    for seed in seeds(200) {
        let mut rng = Rng::new(seed);
        let mut database = Database::default();
        for _ in 0..20 {
            let (kind, mut bytes) = rng.choose(&recorded).clone();
            let kind = if rng.chance(90) {
                kind
            } else {
                *rng.choose(&kinds)
            };
            for _ in 0..rng.below(6) {
                let at = rng.below(bytes.len());
                bytes[at] = rng.word() as u8;
            }
            database.take(kind, &bytes);
        }
        Gateway::new(&config(&database), 0, seed).unwrap();
    }
}

fn run(tape: &[u8]) {
    let messages = xfrm_messages(tape);
    tape::run(messages.iter().map(|it| (it.kind, &it.content[..])));
}

/// Seeds of the fuzz target `xfrm`, also damaged.
#[test]
fn any_tape_is_survived() {
    let mut tapes = common::fuzz_seeds("xfrm");
    let recorded = [messages(KERNEL), messages(STRONGSWAN)].concat();
    tapes.push(tape::tape(&recorded));
    tapes.iter().for_each(|tape| run(tape));
    for seed in seeds(100) {
        let mut rng = Rng::new(seed);
        run(&common::damaged(&mut rng, &tapes));
    }
}
