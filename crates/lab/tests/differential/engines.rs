//! weir's engines, run side by side.

use weir_filter::backend::cbpf;
use weir_filter::backend::native::{self, Code};
use weir_filter::interp::Interp;
use weir_filter::ir::Program;
use weir_filter::opt;
use weir_lab::oracle::{Filter, Frame, Oracle};

/// One filter in every form.
pub(crate) struct Engines<'o> {
    plain: Program,
    optimised: Program,
    /// The optimised program as machine code, if this machine has a back end.
    native: Option<Code>,
    /// The optimised program as classic BPF, for libpcap's interpreter.
    classic: Filter<'o>,
}

impl<'o> Engines<'o> {
    /// The error is that of a back end which refuses a valid program.
    pub(crate) fn new(plain: Program, oracle: &'o Oracle) -> Result<Engines<'o>, String> {
        let mut optimised = plain.clone();
        opt::optimise(&mut optimised);
        optimised
            .verify()
            .map_err(|error| format!("optimised: {error}"))?;
        let native = native::Arch::host().map(|_| Code::compile(&optimised));
        let native = native
            .transpose()
            .map_err(|error| format!("native: {error}"))?;
        let classic = cbpf::emit(&optimised).map_err(|error| format!("cBPF: {error}"))?;
        let classic = oracle
            .filter_of(&classic)
            .map_err(|error| format!("cBPF: {error}"))?;
        Ok(Engines {
            plain,
            optimised,
            native,
            classic,
        })
    }

    pub(crate) fn prepare(&self) -> Prepared<'_> {
        Prepared {
            plain: Interp::new(&self.plain),
            optimised: Interp::new(&self.optimised),
            native: self.native.as_ref(),
            classic: &self.classic,
        }
    }
}

/// Engines with the memory to run.
pub(crate) struct Prepared<'e> {
    plain: Interp<'e>,
    optimised: Interp<'e>,
    native: Option<&'e Code>,
    classic: &'e Filter<'e>,
}

impl Prepared<'_> {
    /// The verdict of the machine code; `None` without a back end.
    pub(crate) fn fast(&self, Frame { bytes, wire_len }: &Frame) -> Option<u32> {
        self.native.map(|code| code.run(bytes, *wire_len))
    }

    /// The common verdict of all engines, or the differing verdicts.
    pub(crate) fn all(&mut self, frame: &Frame) -> Result<u32, String> {
        let Frame { bytes, wire_len } = frame;
        let verdict = self.plain.run(bytes, *wire_len);
        let others = [
            ("optimised", Some(self.optimised.run(bytes, *wire_len))),
            ("native", self.fast(frame)),
            ("emitted cBPF", Some(self.classic.run(bytes, *wire_len))),
        ];
        let differs = |(_, other): &&(_, Option<u32>)| other.is_some_and(|other| other != verdict);
        match others.iter().find(differs) {
            Some((name, other)) => Err(format!("interpreter {verdict}, {name} {other:?}")),
            None => Ok(verdict),
        }
    }
}
