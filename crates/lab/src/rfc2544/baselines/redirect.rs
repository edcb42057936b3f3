//! The XDP redirect baseline: a station look-up and a redirect.

use crate::net::Device;
use crate::rfc2544::Error;
use crate::rfc2544::testbed::Testbed;
use std::os::fd::AsFd;
use weir_filter::backend::ebpf::{Asm, Insn, Limits, Reg, helper, op};
use weir_link::bpf::{Attachment, Hook, Load, Map, MapSpec, Program, ProgramType};

/// Entries of the station table: a bridge's default.
const STATIONS_MAX: u32 = 1024;

const XDP_PASS: i32 = 2;
const DATA: i16 = 0;
const DATA_END: i16 = 4;

/// Attaches the program to both interfaces; its table contains the tester's two
/// stations.
pub(super) fn attach(bench: &Testbed, ports: &[Device; 2]) -> Result<[Attachment; 2], Error> {
    let stations = Map::create("stations", &MapSpec::hash(8, 4, STATIONS_MAX))?;
    let out = Map::create("out", &MapSpec::dev_map(2))?;
    for (place, (end, port)) in (0_u32..).zip(bench.ends().iter().zip(ports)) {
        let mut station = [0; 8];
        station[..6].copy_from_slice(&end.mac().0);
        stations.update(&station, &place.to_ne_bytes())?;
        let index = port.index().to_ne_bytes();
        // The kernel resolves the interface in the caller's namespace.
        let put = || out.update(&place.to_ne_bytes(), &index);
        bench.dut().run(put)?;
    }
    let load = Load {
        name: "redirect",
        maps: &[stations.as_fd(), out.as_fd()],
        ..Load::new(ProgramType::Xdp)
    };
    let program = Program::load(&program(), &load)?;
    let attach = |port: &Device| Attachment::new(&program, port.index(), Hook::XdpNative);
    let [first, second] = ports
        .each_ref()
        .map(|port| bench.dut().run(|| attach(port)));
    Ok([first?, second?])
}

fn program() -> Vec<Insn> {
    let mut asm = Asm::new();
    let pass = asm.label();
    asm.push(Insn::load(op::W, Reg::R2, Reg::R1, DATA));
    asm.push(Insn::load(op::W, Reg::R3, Reg::R1, DATA_END));
    asm.push(Insn::mov64(Reg::R4, Reg::R2));
    asm.push(Insn::alu64(op::ADD, Reg::R4, 14));
    asm.jump(Insn::jump64(op::JGT, Reg::R4, Reg::R3), pass);
    // The key: the MAC address and two zero bytes.
    asm.push(Insn::load(op::W, Reg::R4, Reg::R2, 0));
    asm.push(Insn::store(op::W, Reg::FP, -8, Reg::R4));
    asm.push(Insn::load(op::H, Reg::R4, Reg::R2, 4));
    asm.push(Insn::store(op::W, Reg::FP, -4, Reg::R4));
    asm.extend(Insn::load_map(Reg::R1, 0));
    asm.push(Insn::mov64(Reg::R2, Reg::FP));
    asm.push(Insn::alu64(op::ADD, Reg::R2, -8));
    asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), pass);
    asm.push(Insn::load(op::W, Reg::R2, Reg::R0, 0));
    asm.extend(Insn::load_map(Reg::R1, 1));
    asm.push(Insn::mov64(Reg::R3, XDP_PASS));
    asm.push(Insn::call(helper::REDIRECT_MAP));
    asm.push(Insn::exit());
    asm.bind(pass);
    asm.push(Insn::mov32(Reg::R0, XDP_PASS));
    asm.push(Insn::exit());
    asm.finish(&Limits::default())
        .expect("the redirect's program is short")
}
