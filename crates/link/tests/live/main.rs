//! Dispatchers and senders on a link between two hosts.

#[path = "../bound/mod.rs"]
mod bound;
mod egress;
mod moves;
mod one_port;
mod plan;
mod super_frames;

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use weir_filter::backend::ebpf::{Insn, Reg, op};
use weir_lab::net::{Device, Host, Lab, unprivileged};
use weir_lab::testenv;
use weir_link::bpf::{Hook, Load, Map, MapMemory, MapSpec, PinFolder, Program, ProgramType};
use weir_link::live::{Dispatcher, LiveError, SendError, Sender, sweep};

const HOOKS: [Hook; 4] = [
    Hook::XdpNative,
    Hook::XdpGeneric,
    Hook::TcIngress,
    Hook::TcEgress,
];

/// The EtherType of the test's frames.
const OURS: u16 = 0x88b5;

struct Link {
    a: Host,
    b: Host,
    eth_a: Device,
    eth_b: Device,
}

/// Two hosts and a link; `None`, with the test skipped, without root.
fn link() -> Option<Link> {
    if !testenv::root() {
        return None;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (eth_a, eth_b) = lab
        .link(&a, &b)
        .addresses([10, 0, 0, 1], [10, 0, 0, 2], 24)
        .neighbours()
        .connect()
        .unwrap();
    Some(Link { a, b, eth_a, eth_b })
}

/// A program that counts the test's frames, in its own slot and in a common
/// slot, and passes every frame.
fn counter(hook: Hook, counts: &Map, place: u32) -> Program {
    counter_of(hook, counts, place, OURS)
}

/// As [`counter`], for any EtherType.
fn counter_of(hook: Hook, counts: &Map, place: u32, ethertype: u16) -> Program {
    let (pass, start, end) = if hook.is_xdp() {
        (2, 0, 4)
    } else {
        (-1, 76, 80)
    };
    let [value, upper] = Insn::load_map_value(Reg::R6, 0, place * 8);
    let add_one = Insn {
        code: op::STX | 0xc0 | op::DW,
        ..Insn::store(op::DW, Reg::R6, 0, Reg::R5)
    };
    let ours = i32::from(ethertype.to_be());
    let count = [
        value,
        upper,
        Insn::mov64(Reg::R5, 1),
        add_one,
        Insn::mov32(Reg::R0, pass),
        Insn::exit(),
    ];
    let past = |insns: i16| Insn {
        off: insns,
        ..Insn::jump64(op::JNE, Reg::R5, ours)
    };
    let insns = if hook == Hook::TcIngress {
        // Frames are not recognised by their bytes: if generic XDP copies a
        // frame to make headroom, for a program with multi-buffer support, tc
        // gets the frame without its link-layer header (Linux 6.18).
        const PROTOCOL: i16 = 16;
        let mut insns = vec![Insn::load(op::W, Reg::R5, Reg::R1, PROTOCOL), past(4)];
        insns.extend(count);
        insns
    } else {
        let mut insns = vec![
            Insn::load(op::W, Reg::R2, Reg::R1, start),
            Insn::load(op::W, Reg::R3, Reg::R1, end),
            Insn::mov64(Reg::R4, Reg::R2),
            Insn::alu64(op::ADD, Reg::R4, 14),
            Insn {
                off: 6,
                ..Insn::jump64(op::JGT, Reg::R4, Reg::R3)
            },
            Insn::load(op::H, Reg::R5, Reg::R2, 12),
            past(4),
        ];
        insns.extend(count);
        insns
    };
    let load = Load {
        maps: &[counts.as_fd()],
        ..Load::at(hook)
    };
    Program::load(&insns, &load).unwrap()
}

fn counts() -> (Map, MapMemory) {
    let spec = MapSpec {
        mmapable: true,
        ..MapSpec::array(64, 1)
    };
    let map = Map::create("counts", &spec).unwrap();
    let memory = map.map_memory(false).unwrap();
    (map, memory)
}

fn frame(number: u32) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
    frame[12..14].copy_from_slice(&OURS.to_be_bytes());
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

impl Link {
    /// The host and interface of the hook, and a sender whose frames pass it.
    fn at(&self, hook: Hook) -> (&Host, u32, Sender) {
        let (sender, here) = match hook {
            Hook::TcEgress => ((&self.b, &self.eth_b), (&self.b, &self.eth_b)),
            _ => ((&self.a, &self.eth_a), (&self.b, &self.eth_b)),
        };
        let (host, device) = sender;
        let sender = host.run(|| Sender::open(device.index()).unwrap());
        (here.0, here.1.index(), sender)
    }
}

#[test]
fn a_plan_is_swapped_and_every_frame_is_seen_by_one() {
    let Some(link) = link() else { return };
    for hook in HOOKS {
        let (host, ifindex, sender) = link.at(hook);
        let dispatcher = host.run(|| Dispatcher::attach(ifindex, hook, None).unwrap());
        let (map, memory) = counts();
        let plans = [counter(hook, &map, 0), counter(hook, &map, 1)];
        dispatcher.set(&plans[0]).unwrap();
        let done = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let frames: Vec<Vec<u8>> = (0..16).map(frame).collect();
                let batch: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
                let mut sent = 0;
                while !done.load(Ordering::Relaxed) {
                    sent += sender.send_batch(&batch).unwrap() as u64;
                }
                sent
            });
            let both = || (0..2).all(|place| memory.load_u64(0, place * 8) > Some(100));
            for round in 0..1_000_000 {
                dispatcher.set(&plans[round % 2]).unwrap();
                if round > 300 && both() {
                    break;
                }
            }
            done.store(true, Ordering::Relaxed);
            sending.join().unwrap()
        });
        settle(&memory, sent);
        let by_plan = [0, 1].map(|place| memory.load_u64(0, place * 8).unwrap());
        assert_eq!(by_plan[0] + by_plan[1], sent, "{hook}: {by_plan:?}");
        assert!(by_plan[0] > 100 && by_plan[1] > 100, "{hook}: {by_plan:?}");
        dispatcher.detach(None).unwrap();
    }
}

/// Waits until `total` frames were counted in both slots, or for a limited
/// time.
fn settle(memory: &MapMemory, total: u64) {
    for _ in 0..500 {
        let seen: u64 = (0..2)
            .filter_map(|place| memory.load_u64(0, place * 8))
            .sum();
        if seen >= total {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn without_a_plan_the_host_is_as_it_was() {
    let Some(link) = link() else { return };
    for hook in HOOKS {
        let (host, ifindex, _) = link.at(hook);
        let dispatcher = host.run(|| Dispatcher::attach(ifindex, hook, None).unwrap());
        assert!(dispatcher.is_attached().unwrap());
        assert_eq!(dispatcher.program_id().unwrap(), None);
        ping(&link);
        let (map, _) = counts();
        let plan = counter(hook, &map, 0);
        dispatcher.set(&plan).unwrap();
        assert_eq!(
            dispatcher.program_id().unwrap(),
            Some(plan.info().unwrap().id)
        );
        ping(&link);
        dispatcher.clear().unwrap();
        assert_eq!(dispatcher.program_id().unwrap(), None);
        ping(&link);
        dispatcher.detach(None).unwrap();
        ping(&link);
    }
}

/// A datagram in both directions, by the hosts' kernels.
fn ping(link: &Link) {
    let server = link.b.run(|| UdpSocket::bind("10.0.0.2:0").unwrap());
    let client = link.a.run(|| UdpSocket::bind("10.0.0.1:0").unwrap());
    let wait = Some(Duration::from_secs(5));
    server.set_read_timeout(wait).unwrap();
    client.set_read_timeout(wait).unwrap();
    client
        .send_to(b"there", server.local_addr().unwrap())
        .unwrap();
    let (_, from) = server.recv_from(&mut [0; 9]).expect("it arrives");
    server.send_to(b"back", from).unwrap();
    client.recv(&mut [0; 9]).expect("it comes back");
}

/// A temporary folder of pins.
struct Pins(PathBuf);

impl Pins {
    fn new() -> Pins {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-live-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        PinFolder::mount(&path).unwrap();
        Pins(path)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        PinFolder::unmount(&self.0).unwrap();
        std::fs::remove_dir(&self.0).unwrap();
    }
}

#[test]
fn a_pinned_dispatcher_goes_on_and_is_taken_over() {
    let Some(link) = link() else { return };
    let mount = Pins::new();
    let pins = PinFolder::open(&mount.0).unwrap();
    for hook in HOOKS {
        let folder = pins.folder("eth").unwrap();
        let (host, ifindex, sender) = link.at(hook);
        let (map, memory) = counts();
        let first = host.run(|| Dispatcher::attach(ifindex, hook, Some(&folder)).unwrap());
        first.set(&counter(hook, &map, 0)).unwrap();
        drop(first);
        sender.send(&frame(1)).unwrap();
        settle(&memory, 1);
        assert_eq!(memory.load_u64(0, 0), Some(1), "{hook}: it goes on");
        let second = Dispatcher::adopt(&folder, hook)
            .unwrap()
            .expect("it is there");
        assert_eq!((second.hook(), second.ifindex()), (hook, ifindex));
        second.set(&counter(hook, &map, 1)).unwrap();
        sender.send(&frame(2)).unwrap();
        settle(&memory, 2);
        assert_eq!(memory.load_u64(0, 8), Some(1), "{hook}: the new plan");
        // Attaching again replaces the stale dispatcher.
        drop(second);
        let third = host.run(|| Dispatcher::attach(ifindex, hook, Some(&folder)).unwrap());
        third.detach(Some(&folder)).unwrap();
        assert_eq!(folder.list().unwrap().0.len(), 0);
        assert!(Dispatcher::adopt(&folder, hook).unwrap().is_none());
        let fourth = host.run(|| Dispatcher::attach(ifindex, hook, Some(&folder)).unwrap());
        drop(fourth);
        sweep(&folder).unwrap();
        assert!(pins.remove_folder("eth").unwrap());
        ping(&link);
    }
}

#[test]
fn with_its_interface_a_dispatcher_is_gone_and_is_swept() {
    let Some(link) = link() else { return };
    let mount = Pins::new();
    let pins = PinFolder::open(&mount.0).unwrap();
    let attach = || Dispatcher::attach(link.eth_a.index(), Hook::TcIngress, Some(&pins)).unwrap();
    let dispatcher = link.a.run(attach);
    link.eth_a.clone().delete().unwrap();
    assert!(!dispatcher.is_attached().unwrap());
    drop(dispatcher);
    assert!(Dispatcher::adopt(&pins, Hook::TcIngress).unwrap().is_none());
    assert_eq!(pins.list().unwrap().0.len(), 0);
}

#[test]
fn someone_elses_xdp_program_is_named() {
    let Some(link) = link() else { return };
    let insns = [Insn::mov32(Reg::R0, 2), Insn::exit()];
    let load = Load {
        name: "someone_else",
        ..Load::new(ProgramType::Xdp)
    };
    let other = Program::load(&insns, &load).unwrap();
    let index = link.eth_a.index();
    link.a.run(|| {
        let native = Hook::XdpNative;
        let _theirs = weir_link::bpf::Attachment::new(&other, index, native).unwrap();
        for hook in [Hook::XdpNative, Hook::XdpGeneric] {
            let error = Dispatcher::attach(index, hook, None).unwrap_err();
            assert!(matches!(error, LiveError::Taken { .. }), "{error}");
            let text = error.to_string();
            let id = other.info().unwrap().id;
            let whose = format!("`someone_else`, number {id} (native)");
            assert!(
                text.contains(&whose) && text.contains(link.eth_a.name()),
                "{text}"
            );
        }
        // tc accepts several programs.
        let tc = Dispatcher::attach(index, Hook::TcIngress, None).unwrap();
        tc.detach(None).unwrap();
    });
}

#[test]
fn frames_are_sent_alone_and_in_batches_in_order() {
    let Some(link) = link() else { return };
    let sender = link.a.run(|| Sender::open(link.eth_a.index()).unwrap());
    let (map, memory) = counts();
    let dispatcher = link
        .b
        .run(|| Dispatcher::attach(link.eth_b.index(), Hook::TcIngress, None).unwrap());
    dispatcher.set(&counter(Hook::TcIngress, &map, 0)).unwrap();
    sender.send(&frame(0)).unwrap();
    let frames: Vec<Vec<u8>> = (1..3_000).map(frame).collect();
    let batch: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut sent = 0;
    while sent < batch.len() {
        sent += sender.send_batch(&batch[sent..]).unwrap();
    }
    settle(&memory, 3_000);
    assert_eq!(memory.load_u64(0, 0), Some(3_000));
    assert_eq!(sender.send_batch(&[]).unwrap(), 0);
}

#[test]
fn what_cannot_be_sent_is_said() {
    let Some(link) = link() else { return };
    let sender = link.a.run(|| Sender::open(link.eth_a.index()).unwrap());
    for len in [3, 13, 1515, 60_000] {
        let error = sender.send(&vec![0; len]).unwrap_err();
        assert!(
            matches!(error, SendError::Length { len: l } if l == len),
            "{len}: {error}"
        );
    }
    sender.send(&vec![0; 1514]).unwrap();
    let short = [&[0; 60][..], &[0; 3], &[0; 60]];
    assert_eq!(sender.send_batch(&short).unwrap(), 1);
    link.eth_a.down().unwrap();
    assert!(matches!(sender.send(&frame(0)), Err(SendError::Down)));
    link.eth_a.clone().delete().unwrap();
    let gone = sender.send(&frame(0)).unwrap_err();
    assert!(matches!(gone, SendError::Gone | SendError::Down), "{gone}");
    let refused = link
        .a
        .run(|| unprivileged::run(|| Sender::open(1).unwrap_err()));
    assert!(matches!(refused, SendError::NotPermitted), "{refused}");
}
