//! Changes of a plan while frames are in flight: no frame is lost or delivered
//! twice.

use super::common::{Pred, and, ip_frame, or, program};
use super::rig::{RING_BYTES, permitted};
use super::{HOOKS, binding, connection};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_demux::Filter;
use weir_demux::kernel::{Change, Hook, KernelPlan, MapRole, Options, Recompile};
use weir_filter::backend::ebpf::{Insn, Reg, helper};
use weir_lab::program::Tape;
use weir_link::bpf::{Load, Map, MapSpec, Program, ProgramType, TestRun};
use weir_link::plan::PlanMaps;

/// The plan behind a dispatcher, as on a live link.
struct Live {
    hook: Hook,
    plan: KernelPlan,
    maps: PlanMaps,
    programs: Map,
    ring: Map,
}

impl Live {
    fn new(hook: Hook) -> Live {
        let plan = KernelPlan::new(Options {
            keys_hint: 64,
            ..Options::default()
        });
        let maps = PlanMaps::new(&plan).unwrap();
        let ring = Map::create("port", &MapSpec::ring_buf(RING_BYTES as u32)).unwrap();
        let programs = Map::create("programs", &MapSpec::prog_array(1)).unwrap();
        let live = Live {
            hook,
            plan,
            maps,
            programs,
            ring,
        };
        live.grace();
        live.swap();
        live
    }

    fn dispatcher(&self) -> Program {
        let [first, second] = Insn::load_map(Reg::R2, 0);
        let insns = [
            first,
            second,
            Insn::mov64(Reg::R3, 0),
            Insn::call(helper::TAIL_CALL),
            Insn::mov32(Reg::R0, 77),
            Insn::exit(),
        ];
        let maps = [std::os::fd::AsFd::as_fd(&self.programs)];
        let program_type = match self.hook {
            Hook::Xdp => ProgramType::Xdp,
            _ => ProgramType::SchedCls,
        };
        let load = Load {
            maps: &maps,
            frags: self.hook == Hook::Xdp,
            ..Load::new(program_type)
        };
        Program::load(&insns, &load).unwrap()
    }

    fn swap(&self) {
        let program = self.maps.load(&self.plan, self.hook).unwrap();
        self.programs.put(&0_u32.to_ne_bytes(), &program).unwrap();
    }

    /// A change of a map of maps waits until frames in flight have passed.
    fn grace(&self) {
        let rings = self.maps.map(MapRole::Rings);
        rings.put(&0_u32.to_ne_bytes(), &self.ring).unwrap();
    }

    fn apply(&mut self, change: &Change) {
        self.maps.apply(&self.plan, change).unwrap();
        if change.programs == Recompile::Required {
            self.swap();
        }
    }

    fn settle(&mut self) {
        let epoch = self.plan.epoch();
        self.grace();
        let change = self.plan.reclaim(epoch);
        self.apply(&change);
    }
}

/// Filters that accept the same frame with different subtables and keys.
fn versions() -> [Filter; 4] {
    let preds = [
        Pred::Proto(17),
        and(Pred::Proto(17), Pred::Src(0x0a00_0001, 32)),
        or(Pred::Ether(0x86dd), Pred::Src(0x0a00_0000, 8)),
        and(Pred::Ether(0x800), Pred::DstPort(17, 50, 60)),
    ];
    preds.map(|pred| Filter::new(program(&pred)))
}

/// Number of changes that a run must include, and its time limit.
const CHANGES_MIN: usize = 20;
const TIME_MAX: Duration = Duration::from_secs(30);

#[test]
fn changes_under_way_lose_and_double_nothing() {
    if !permitted() {
        return;
    }
    let frame = ip_frame(17, 0x0a00_0001, 0xc0a8_0001, (4_000, 53), 5);
    for (seed, hook) in HOOKS.into_iter().enumerate() {
        let mut live = Live::new(hook);
        let versions = versions();
        let steady = binding(versions[0].clone(), 5, true, 0, 1);
        let (id, change) = live.plan.bind(steady).unwrap();
        live.apply(&change);
        let dispatcher = live.dispatcher();
        let stop = AtomicBool::new(false);
        let (runs, changes) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut runs = 0_u64;
                let mut run = TestRun::new(&frame);
                run.repeat = 5_000;
                loop {
                    let ran = dispatcher.test_run(&run, &mut []).unwrap();
                    assert_ne!(ran.returned, 77, "there always is a program");
                    runs += u64::from(run.repeat);
                    if stop.load(Ordering::Relaxed) {
                        return runs;
                    }
                }
            });
            let changes = churn(&mut live, id, &versions, seed as u64);
            stop.store(true, Ordering::Relaxed);
            (sender.join().unwrap(), changes)
        });
        let counters = live.maps.counters(0).unwrap();
        println!("{hook:?}: {runs} frames, {changes} changes, {counters:?}");
        assert_eq!(counters.delivered + counters.lost, runs, "{hook:?}");
        assert!(changes >= CHANGES_MIN, "in {TIME_MAX:?}");
    }
}

/// Binds and unbinds other filters and changes the steady binding's filter, for
/// half a second, or longer until there were enough changes.
fn churn(live: &mut Live, steady: weir_demux::BindingId, versions: &[Filter], seed: u64) -> usize {
    let mut tape = Tape::seeded(seed, 1 << 20);
    let mut others = Vec::new();
    let mut changes = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500)
        || (changes < CHANGES_MIN && start.elapsed() < TIME_MAX)
    {
        let change = match tape.below(10) {
            0 => {
                let filter = versions[tape.below(versions.len())].clone();
                let change = live.plan.change_filter(steady, filter).unwrap();
                live.apply(&change);
                live.settle();
                continue;
            }
            1..=5 => {
                // With the same keys, in the same buckets, or elsewhere.
                let filter = match tape.below(3) {
                    0 => versions[tape.below(versions.len())].clone(),
                    _ => Filter::new(program(&connection(tape.word() % 3_000).0)),
                };
                let priority = tape.pick(&[1, 5, 9]);
                let (id, change) = live
                    .plan
                    .bind(binding(filter, priority, true, 1, 2))
                    .unwrap();
                others.push(id);
                change
            }
            6..=8 if !others.is_empty() => {
                let id = others.swap_remove(tape.below(others.len()));
                live.plan.unbind(id).unwrap()
            }
            _ => {
                if tape.chance(30) {
                    live.settle();
                }
                continue;
            }
        };
        live.apply(&change);
        changes += 1;
    }
    changes
}
