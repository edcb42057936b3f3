//! The class of a frame: the rules of [`weir_meter::services`].

use super::super::layout::{PORT_PROTOCOLS, place};
use super::{END, Emit, FRAME, Filter, stack, transport};
use weir_filter::backend::ebpf::{
    Access, EmitError, Fragment, Insn, Label, Reg, WireLen, emit_fragment, op,
};

/// In the tables: no service.
pub(super) const NONE: i32 = 255;

impl Emit<'_> {
    /// Stores the frame's class.
    pub(super) fn classify(&mut self) -> Result<(), EmitError> {
        let listed = i32::from(self.spec.listed);
        let [fragment, portless, ports, classified] = [(); 4].map(|()| self.asm.label());
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::TRANSPORT)]);
        self.jump(op::JEQ, Reg::R1, transport::PORTS, ports);
        self.jump(op::JEQ, Reg::R1, transport::PORTLESS, portless);
        self.jump(op::JEQ, Reg::R1, transport::FRAGMENT, fragment);
        self.set(stack::CLASS, listed + 2);
        self.asm.goto(classified);
        self.asm.bind(fragment);
        self.set(stack::CLASS, listed);
        self.asm.goto(classified);
        self.asm.bind(portless);
        self.protocol();
        self.class_of_r3(listed + 1, classified);
        self.asm.bind(ports);
        self.protocol();
        self.by_ports();
        self.class_of_r3(listed + 3, classified);
        self.asm.bind(classified);
        if self.spec.filters.is_empty() {
            return Ok(());
        }
        self.forget(&[stack::CLASS]);
        self.filters()
    }

    /// r3 = the service of the protocol; r2 = the tables, r4 = the protocol.
    fn protocol(&mut self) {
        self.value_of(Reg::R2, place::SERVICES);
        self.push(&[
            Insn::load(op::DW, Reg::R4, Reg::FP, stack::PROTOCOL),
            Insn::alu64(op::AND, Reg::R4, 0xff),
            Insn::mov64(Reg::R1, Reg::R2),
            Insn::alu64(op::ADD, Reg::R1, Reg::R4),
            Insn::load(op::B, Reg::R3, Reg::R1, 0),
        ]);
    }

    /// r3 = the first of it and of the services of both ports.
    fn by_ports(&mut self) {
        let [known, none] = [(); 2].map(|()| self.asm.label());
        for (number, protocol) in PORT_PROTOCOLS.into_iter().enumerate() {
            let other = self.asm.label();
            self.jump(op::JNE, Reg::R4, protocol.into(), other);
            self.push(&[Insn::mov64(Reg::R5, 256 + ((number as i32) << 16))]);
            self.asm.goto(known);
            self.asm.bind(other);
        }
        self.asm.goto(none);
        self.asm.bind(known);
        self.push(&[Insn::alu64(op::ADD, Reg::R2, Reg::R5)]);
        for port in [stack::SRC_PORT, stack::DST_PORT] {
            let later = self.asm.label();
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::FP, port),
                Insn::alu64(op::AND, Reg::R1, 0xffff),
                Insn::alu64(op::ADD, Reg::R1, Reg::R2),
                Insn::load(op::B, Reg::R1, Reg::R1, 0),
            ]);
            self.asm
                .jump(Insn::jump64(op::JGE, Reg::R1, Reg::R3), later);
            self.push(&[Insn::mov64(Reg::R3, Reg::R1)]);
            self.asm.bind(later);
        }
        self.asm.bind(none);
    }

    /// Stores service r3, or `class` if there is none.
    fn class_of_r3(&mut self, class: i32, classified: Label) {
        let some = self.asm.label();
        self.jump(op::JNE, Reg::R3, NONE, some);
        self.push(&[Insn::mov64(Reg::R3, class)]);
        self.asm.bind(some);
        self.push(&[Insn::store(op::DW, Reg::FP, stack::CLASS, Reg::R3)]);
        self.asm.goto(classified);
    }

    /// Goes to `accept` or `reject`, as a filter says of the first piece of the frame.
    pub(super) fn filter(
        &mut self,
        filter: &Filter,
        accept: Label,
        reject: Label,
    ) -> Result<(), EmitError> {
        let fragment = Fragment {
            access: Access::Direct {
                start: FRAME,
                end: END,
            },
            wire_len: WireLen::Stack(stack::LENGTH),
            result: Reg::R0,
            free: &[Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5],
            stack_top: self.spec.stack_top(),
            accept,
            reject,
            short: reject,
            is_hidden: false,
        };
        emit_fragment(self.asm, filter, &fragment)
    }

    /// Filters of services that precede the class so far, in order. They read the first piece of
    /// the frame.
    fn filters(&mut self) -> Result<(), EmitError> {
        let classified = self.asm.label();
        let spec = self.spec;
        for (number, filter) in &spec.filters {
            let [accept, reject] = [(); 2].map(|()| self.asm.label());
            self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::CLASS)]);
            self.jump(op::JLE, Reg::R1, i32::from(*number), classified);
            self.filter(filter, accept, reject)?;
            self.asm.bind(accept);
            self.set(stack::CLASS, i32::from(*number));
            self.asm.goto(classified);
            self.asm.bind(reject);
        }
        self.asm.bind(classified);
        Ok(())
    }
}
