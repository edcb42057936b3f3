//! The forms in which `weir filter --as` prints a program.

use crate::error::CliError;
use crate::filterset::compile::Compiled;
use clap::ValueEnum;
use std::fmt::Display;
use weir_filter::backend::ebpf::{self, Listing, Options, Target, XdpLen};
use weir_filter::backend::native::{self, Arch};
use weir_filter::backend::{cbpf as to_cbpf, cspf as to_cspf, dot};
use weir_filter::lang::cbpf::{self, Insn};
use weir_filter::lang::cspf::{self, Dialect};
use weir_wire::LinkType;

/// A form of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Form {
    /// The intermediate representation, optimised
    Ir,
    /// The intermediate representation before optimisation
    IrPlain,
    /// Classic BPF in decimal numbers, as tcpdump -ddd
    Cbpf,
    /// Classic BPF as a listing, as tcpdump -d
    CbpfD,
    /// Classic BPF as C initialisers, as tcpdump -dd
    CbpfDd,
    /// eBPF for the kernel's XDP hook, as a listing
    Ebpf,
    /// Machine code of this computer, with the program that it implements
    Native,
    /// Machine code for x86-64
    X86_64,
    /// Machine code for aarch64
    Aarch64,
    /// The 1987 stack language, in the dialect given by --dialect; by default
    /// in the paper's or, if that does not suffice, in weir's
    Cspf,
    /// A graph in Graphviz's language
    Dot,
}

impl Form {
    /// The program in this form.
    pub(super) fn print(
        self,
        compiled: &Compiled,
        dialect: Option<Dialect>,
        linktype: LinkType,
    ) -> Result<String, CliError> {
        let program = &compiled.program;
        let printed = match self {
            Form::Ir => Ok(program.to_string()),
            Form::IrPlain => Ok(compiled.plain.to_string()),
            Form::Cbpf => classic(compiled, cbpf::Form::Decimal),
            Form::CbpfD => classic(compiled, cbpf::Form::Listing),
            Form::CbpfDd => classic(compiled, cbpf::Form::C),
            Form::Ebpf => xdp(compiled).map(|insns| Listing(&insns).to_string()),
            Form::Native => match Arch::host() {
                Some(arch) => native::listing(program, arch).map_err(message),
                None => Err(
                    "there is no native code for this machine; use --as x86-64 or aarch64".into(),
                ),
            },
            Form::X86_64 => native::listing(program, Arch::X64).map_err(message),
            Form::Aarch64 => native::listing(program, Arch::A64).map_err(message),
            Form::Cspf => stack(compiled, dialect, linktype),
            Form::Dot => Ok(dot::to_dot(program)),
        };
        printed.map_err(|why| {
            let form = self.to_possible_value().expect("no form is hidden");
            CliError::refused(format!("no {} form of this filter: {why}", form.get_name()))
        })
    }
}

fn message(error: impl Display) -> String {
    error.to_string()
}

/// The filter as classic BPF.
pub(super) fn classic_insns(compiled: &Compiled) -> Result<Vec<Insn>, String> {
    to_cbpf::emit(&compiled.program).map_err(message)
}

fn classic(compiled: &Compiled, form: cbpf::Form) -> Result<String, String> {
    classic_insns(compiled).map(|insns| cbpf::text(&insns, form))
}

/// The filter as an XDP program.
pub(super) fn xdp(compiled: &Compiled) -> Result<Vec<ebpf::Insn>, String> {
    ebpf::emit(
        &compiled.program,
        &Options::new(Target::Xdp(XdpLen::Linear)),
    )
    .map_err(message)
}

fn stack(
    compiled: &Compiled,
    dialect: Option<Dialect>,
    linktype: LinkType,
) -> Result<String, String> {
    let emit = |dialect| to_cspf::emit(&compiled.program, dialect, linktype).map_err(message);
    let filter = match dialect {
        Some(dialect) => emit(dialect),
        None => emit(Dialect::Paper).or_else(|_| emit(Dialect::Weir)),
    }?;
    let text = cspf::disassemble(&filter);
    Ok(format!("/* --dialect {} */\n{text}", filter.dialect))
}
