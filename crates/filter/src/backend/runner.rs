//! Runs a program as fast as this machine can: the one place that chooses
//! between native code and the interpreter.

use super::interp;
use super::native::{Code, NativeError};
use crate::ir::Program;

/// A program ready to run: as native code where there is some, else by the
/// interpreter, with the same verdicts.
#[derive(Debug)]
pub struct Runner {
    how: How,
}

#[derive(Debug)]
enum How {
    Native(Code),
    Interpreted(Program, NativeError),
}

impl Runner {
    /// Makes `program`, which must be verified, ready.
    pub fn new(program: Program) -> Runner {
        let how = match Code::compile(&program) {
            Ok(code) => How::Native(code),
            Err(reason) => How::Interpreted(program, reason),
        };
        Runner { how }
    }

    /// Runs on one frame: its captured bytes and its length on the wire.
    /// Gives the snap length; zero means rejected.
    #[inline]
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        match &self.how {
            How::Native(code) => code.run(bytes, wire_len),
            How::Interpreted(program, _) => interp::run(program, bytes, wire_len),
        }
    }

    /// Why the interpreter runs it; `None` for native code.
    pub fn why_interpreted(&self) -> Option<&NativeError> {
        match &self.how {
            How::Native(_) => None,
            How::Interpreted(_, reason) => Some(reason),
        }
    }
}
