//! A plan in the kernel with ports, and the same plan in user space.

#![allow(unreachable_pub, reason = "a part of one test")]

use weir_demux::kernel::record::{FLAG_CUT, FLAG_EGRESS, FLAG_VLAN, Record};
use weir_demux::kernel::{
    Change, Clock, Half, Hook, KernelPlan, MapRole, Options, PortSettings, Recompile,
};
use weir_demux::{Binding, BindingId, Filter, Plan, Target, Verdict};
use weir_filter::backend::ebpf::{Insn, Reg};
use weir_filter::interp;
use weir_lab::ringbuf_reference::Records;
use weir_lab::testenv;
use weir_link::bpf::{Load, Map, MapSpec, Program, ProgramType, TestRun};
use weir_link::plan::PlanMaps;

/// Whether this process may load programs; skips the test otherwise.
pub fn permitted() -> bool {
    let nothing = [Insn::mov32(Reg::R0, 0), Insn::exit()];
    let loaded = Program::load(&nothing, &Load::new(ProgramType::Xdp));
    if let Err(error) = &loaded {
        testenv::skip(&error.to_string());
    }
    loaded.is_ok()
}

/// The interface of the test runs.
const LOOPBACK: u32 = 1;

/// Bytes of each port's ring.
pub const RING_BYTES: usize = 1 << 18;

/// A delivered frame: tag, wire length, bytes.
pub type Got = (u32, u32, Vec<u8>);

pub struct Rig {
    pub hook: Hook,
    pub kernel: KernelPlan,
    pub maps: PlanMaps,
    program: Option<Program>,
    pub user: Plan,
    /// Bindings in the order of binding: their ids in the kernel's plan and in
    /// the user-space plan.
    pub bound: Vec<(BindingId, BindingId, Binding)>,
    ports: Vec<(Map, Records)>,
    pub settings: Vec<PortSettings>,
    /// Frames run, and deliveries observed.
    pub frames: usize,
    pub delivered: usize,
    pub taken: usize,
    /// Opaque filters run, over all programs.
    pub whole: usize,
    /// Frames have this VLAN tag, which the device has removed.
    pub vlan: Option<u16>,
    /// Losses are expected.
    pub lossy: bool,
}

/// `bpf_skb_vlan_push(skb, protocol, control information)`
const SKB_VLAN_PUSH: i32 = 18;

impl Rig {
    pub fn new(hook: Hook, options: Options, ports: u32) -> Rig {
        let kernel = KernelPlan::new(options);
        let maps = PlanMaps::new(&kernel).unwrap_or_else(|e| panic!("{e}"));
        let ports: Vec<_> = (0..ports)
            .map(|slot| {
                let ring = Map::create("port", &MapSpec::ring_buf(RING_BYTES as u32)).unwrap();
                let records = Records::new(&ring, RING_BYTES).unwrap();
                maps.map(MapRole::Rings)
                    .put(&slot.to_ne_bytes(), &ring)
                    .unwrap();
                (ring, records)
            })
            .collect();
        let settings = vec![PortSettings::default(); ports.len()];
        Rig {
            hook,
            kernel,
            maps,
            program: None,
            user: Plan::new(1),
            bound: Vec::new(),
            ports,
            settings,
            frames: 0,
            delivered: 0,
            taken: 0,
            whole: 0,
            vlan: None,
            lossy: false,
        }
    }

    pub fn apply(&mut self, change: &Change) {
        self.maps.apply(&self.kernel, change).unwrap();
        if change.programs == Recompile::Required {
            self.program = None;
        }
    }

    pub fn set_port(&mut self, slot: u32, settings: PortSettings) {
        self.maps.set_port(slot, settings, true).unwrap();
        self.settings[slot as usize] = settings;
    }

    /// Binds; returns the programs that must be recompiled, and whether maps
    /// were created again.
    pub fn bind(&mut self, binding: Binding) -> (Recompile, bool) {
        let (id, change) = self.kernel.bind(binding.clone()).unwrap();
        self.apply(&change);
        let user = self.user.bind(binding.clone()).unwrap();
        self.bound.push((id, user, binding));
        (change.programs, change.renewed)
    }

    pub fn put_ring(&self, slot: u32) {
        let (ring, _) = &self.ports[slot as usize];
        let rings = self.maps.map(MapRole::Rings);
        rings.put(&slot.to_ne_bytes(), ring).unwrap();
    }

    /// Runs a frame without reading the rings.
    pub fn run_only(&mut self, frame: &[u8]) {
        let run = TestRun::new(frame);
        self.load().test_run(&run, &mut []).unwrap();
    }

    /// Runs a frame; returns the losses in the records of the last port.
    pub fn lost_with(&mut self, frame: &[u8]) -> Vec<u32> {
        self.run_only(frame);
        let (_, records) = self.ports.last_mut().unwrap();
        let records = records.take();
        let lost = |bytes: &Vec<u8>| Record::parse(bytes).unwrap().lost_before;
        records.iter().map(lost).collect()
    }

    pub fn unbind(&mut self, index: usize) {
        let (id, user, _) = self.bound.remove(index);
        let change = self.kernel.unbind(id).unwrap();
        self.apply(&change);
        self.user.unbind(user).unwrap();
    }

    pub fn change_filter(&mut self, index: usize, filter: Filter) {
        let (id, user, binding) = &mut self.bound[index];
        let change = self.kernel.change_filter(*id, filter.clone()).unwrap();
        self.user.change_filter(*user, filter.clone()).unwrap();
        binding.filter = filter;
        self.apply(&change);
        self.settle();
    }

    /// No frame is in flight between two runs.
    pub fn settle(&mut self) {
        self.load();
        while !self.kernel.is_quiescent() {
            let epoch = self.kernel.epoch();
            let change = self.kernel.reclaim(epoch);
            self.apply(&change);
        }
    }

    pub fn load(&mut self) -> &Program {
        if self.program.is_none() {
            self.kernel.prepare_recompile();
            self.whole += self.kernel.opaque();
            let loaded = match self.vlan {
                None => self
                    .maps
                    .load(&self.kernel, self.hook)
                    .map_err(|e| e.to_string()),
                Some(tag) => self.load_tagging(tag),
            };
            let program = loaded.unwrap_or_else(|error| panic!("{error}"));
            self.program = Some(program);
        }
        self.program.as_ref().expect("it was loaded above")
    }

    /// The program behind a few instructions that add a VLAN tag outside the
    /// frame, as devices do that remove tags.
    fn load_tagging(&self, tag: u16) -> Result<Program, String> {
        // This call also installs the second half.
        drop(self.maps.load(&self.kernel, self.hook).unwrap());
        let lowered = self.kernel.program(self.hook, Half::Subtables).unwrap();
        let mut insns = vec![
            Insn::mov64(Reg::R6, Reg::R1),
            Insn::mov64(Reg::R2, i32::from(0x8100_u16.to_be())),
            Insn::mov64(Reg::R3, i32::from(tag)),
            Insn::call(SKB_VLAN_PUSH),
            Insn::mov64(Reg::R1, Reg::R6),
        ];
        insns.extend(lowered.insns);
        let parts = lowered.maps.iter().map(|spec| self.maps.map(spec.role));
        let maps: Vec<_> = parts.map(std::os::fd::AsFd::as_fd).collect();
        let load = Load {
            maps: &maps,
            ..Load::new(ProgramType::SchedCls)
        };
        Program::load(&insns, &load).map_err(|error| error.to_string())
    }

    /// Runs a frame; returns whether the kernel's stack gets it, and the
    /// deliveries of each port.
    pub fn run(&mut self, frame: &[u8]) -> (bool, Vec<Vec<Got>>) {
        self.load();
        let untagged;
        let run = match self.vlan {
            None => TestRun::new(frame),
            Some(_) => {
                untagged = [&frame[..12], &frame[16..]].concat();
                TestRun::new(&untagged)
            }
        };
        let program = self.program.as_ref().unwrap();
        let ran = program.test_run(&run, &mut []);
        let ran = ran.unwrap_or_else(|error| panic!("{error}"));
        let passed = match (self.hook, ran.returned as i32) {
            (Hook::Xdp, 2) | (Hook::TcIngress | Hook::TcEgress, -1) => true,
            (Hook::Xdp, 1) | (Hook::TcIngress | Hook::TcEgress, 2) => false,
            (_, other) => panic!("{other} is no verdict"),
        };
        let got = self
            .ports
            .iter_mut()
            .enumerate()
            .map(|(slot, (_, records))| {
                let records = records.take();
                let parsed = records.iter().map(|bytes| {
                    let record = Record::parse(bytes).unwrap();
                    let cut = record.bytes.len() < record.wire_len as usize;
                    assert_eq!(record.flags & FLAG_CUT != 0, cut);
                    assert!(record.lost_before == 0 || self.lossy);
                    assert_eq!(record.flags & FLAG_VLAN != 0, self.vlan.is_some());
                    let leaves = self.hook == Hook::TcEgress;
                    assert_eq!(record.flags & FLAG_EGRESS != 0, leaves);
                    let clock = self.settings[slot].clock;
                    assert_eq!(record.timestamp_ns != 0, clock != Clock::None);
                    assert_eq!((record.ifindex, record.queue), (LOOPBACK, 0));
                    (record.tag, record.wire_len, record.bytes.to_vec())
                });
                parsed.collect()
            });
        (passed, got.collect())
    }

    /// The expected deliveries by the plan's definition: each filter alone.
    pub fn expected(&self, frame: &[u8]) -> (bool, Vec<Vec<Got>>) {
        let wire_len = frame.len() as u32;
        let mut order: Vec<&Binding> = self.bound.iter().map(|(_, _, binding)| binding).collect();
        order.sort_by_key(|binding| (u16::MAX - binding.priority, !binding.copy));
        let mut got = vec![Vec::new(); self.ports.len()];
        let (mut taken, mut kernel, mut claimed) = (false, false, false);
        for binding in order {
            if claimed && !binding.copy {
                continue;
            }
            let snap = interp::run(binding.filter.program(), frame, wire_len) as usize;
            if snap == 0 {
                continue;
            }
            match binding.target {
                Target::Kernel => kernel = true,
                Target::Port(port) => {
                    let limit = self.settings[port as usize].snap_len as usize;
                    let limit = if limit == 0 { usize::MAX } else { limit };
                    let len = snap.min(limit).min(frame.len());
                    got[port as usize].push((binding.tag, wire_len, frame[..len].to_vec()));
                }
                _ => {}
            }
            if !binding.copy && binding.target != Target::Kernel {
                taken = true;
                break;
            }
            claimed |= !binding.copy;
        }
        let leaves = self.hook == Hook::TcEgress;
        (leaves || kernel || !taken, got)
    }

    /// The expected deliveries by the plan in user space.
    fn by_plan(&self, frame: &[u8]) -> (bool, Vec<Vec<Got>>) {
        let wire_len = frame.len() as u32;
        let mut verdict = Verdict::new();
        self.user.run(frame, wire_len, &mut verdict);
        let mut got = vec![Vec::new(); self.ports.len()];
        for delivery in verdict.deliveries() {
            if let Target::Port(port) = delivery.target {
                let limit = self.settings[port as usize].snap_len;
                let limit = if limit == 0 { u32::MAX } else { limit };
                let len = delivery.snap_len.min(limit).min(wire_len) as usize;
                got[port as usize].push((delivery.tag, wire_len, frame[..len].to_vec()));
            }
        }
        let mut targets = verdict.deliveries().iter().map(|delivery| delivery.target);
        let kernel = targets.any(|target| target == Target::Kernel);
        let leaves = self.hook == Hook::TcEgress;
        (leaves || kernel || !verdict.is_taken(), got)
    }

    pub fn check(&mut self, frame: &[u8]) {
        let found = self.run(frame);
        let expected = self.expected(frame);
        assert_eq!(self.by_plan(frame), expected, "the plan in user space");
        if found != expected {
            for (_, _, binding) in &self.bound {
                eprintln!(
                    "{} copy {} {} tag {}: {}",
                    binding.priority, binding.copy, binding.target, binding.tag, binding.filter
                );
            }
            panic!(
                "{:?} {frame:02x?}\nkernel   {}\nexpected {}",
                self.hook,
                show(&found),
                show(&expected)
            );
        }
        self.frames += 1;
        self.taken += usize::from(!found.0);
        self.delivered += found.1.iter().map(Vec::len).sum::<usize>();
    }
}

fn show((passed, got): &(bool, Vec<Vec<Got>>)) -> String {
    let ports = got.iter().map(|records| {
        let records = records.iter().map(|(tag, len, bytes)| {
            let sum = bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
            format!("tag {tag} {} of {len} (sum {sum})", bytes.len())
        });
        records.collect::<Vec<_>>()
    });
    format!("passed {passed}, {:?}", ports.collect::<Vec<_>>())
}

/// Whether the kernel can run a test on such a frame: it needs an Ethernet
/// header, and for an skb also the header that its EtherType announces.
pub fn fits(hook: Hook, bytes: &[u8]) -> bool {
    let header = match (hook, bytes.get(12..14)) {
        (Hook::TcIngress | Hook::TcEgress, Some([0x08, 0x00])) => 20,
        (Hook::TcIngress | Hook::TcEgress, Some([0x86, 0xdd])) => 40,
        _ => 0,
    };
    bytes.len() >= 14 + header
}
