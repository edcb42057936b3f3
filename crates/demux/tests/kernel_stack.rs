//! The plan's programs in the kernel keep off the stack: behind the first store to each place
//! of the stack the verifier puts a barrier against speculation, which each frame waits for.

use weir_demux::kernel::{Half, Hook, KernelPlan, Options};
use weir_demux::{Binding, Filter, Target};
use weir_filter::backend::ebpf::{Insn, Reg, op};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_wire::LinkType;

fn is_stack_store(insn: &Insn) -> bool {
    const CLASS: u8 = 0x07;
    matches!(insn.code & CLASS, op::ST | op::STX) && insn.dst == Reg::FP.number()
}

/// Stack stores of both halves of a plan with these filters.
fn stack_stores(hook: Hook, texts: &[String]) -> usize {
    let mut plan = KernelPlan::new(Options::default());
    for (port, text) in (0_u32..).zip(texts) {
        let mut program = compile(text, &Context::new(LinkType::EN10MB)).expect(text);
        optimise(&mut program);
        let binding = Binding {
            filter: Filter::new(program),
            priority: 10,
            copy: port % 2 == 0,
            target: Target::Port(port % 4),
            tag: port,
        };
        drop(plan.bind(binding).expect("room"));
    }
    plan.prepare_recompile();
    let halves = [Half::Subtables, Half::Delivery].map(|half| {
        let lowered = plan.program(hook, half).expect("a short program");
        lowered
            .insns
            .iter()
            .filter(|insn| is_stack_store(insn))
            .count()
    });
    halves.iter().sum()
}

#[test]
fn programs_store_nothing_on_the_stack() {
    let few = ["udp port 5000", "tcp dst port 80 and ip[1] > 3", "arp"].map(str::to_owned);
    // More subtables than one program has.
    let many: Vec<String> = (1..=16)
        .map(|bits| format!("ip src net 128.0.0.0/{bits} and ether[300] = {bits}"))
        .collect();
    for hook in [Hook::Xdp, Hook::TcIngress, Hook::TcEgress] {
        assert_eq!(stack_stores(hook, &few), 0, "{hook:?}, a few filters");
        assert_eq!(stack_stores(hook, &many), 0, "{hook:?}, many subtables");
    }
}
