//! Runs a program by the fastest available back end: native code, or else the
//! interpreter.

use super::interp;
use super::native::{Code, NativeError};
use crate::ir::Program;
use std::sync::Mutex;

/// A program that is ready to run, as native code where the machine supports it,
/// else by the interpreter. The verdicts are the same.
#[derive(Debug)]
pub struct Runner {
    how: How,
}

#[derive(Debug)]
enum How {
    Native(Code),
    Interpreted(Box<Interpreted>),
}

/// A program for the interpreter.
#[derive(Debug)]
struct Interpreted {
    program: Program,
    /// A slot for each value, reused for the next frame. No caller waits for the
    /// lock: a caller that finds it taken uses memory of its own.
    values: Mutex<Vec<u32>>,
    reason: NativeError,
}

impl Interpreted {
    fn new(program: Program, reason: NativeError) -> Interpreted {
        Interpreted {
            values: Mutex::new(vec![0; program.values.len()]),
            program,
            reason,
        }
    }

    fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        match self.values.try_lock() {
            Ok(mut values) => interp::run_in(&self.program, &mut values, bytes, wire_len),
            Err(_) => interp::run(&self.program, bytes, wire_len),
        }
    }
}

impl Runner {
    /// Compiles `program`, which must be verified; falls back to the interpreter.
    pub fn new(program: Program) -> Runner {
        let how = match Code::compile(&program) {
            Ok(code) => How::Native(code),
            Err(reason) => How::Interpreted(Box::new(Interpreted::new(program, reason))),
        };
        Runner { how }
    }

    /// Runs the program on the captured `bytes` of a frame of `wire_len` bytes.
    /// Returns the snap length; zero rejects the frame.
    #[inline]
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        match &self.how {
            How::Native(code) => code.run(bytes, wire_len),
            How::Interpreted(interpreted) => interpreted.run(bytes, wire_len),
        }
    }

    /// The reason for interpretation; `None` if native code runs.
    pub fn why_interpreted(&self) -> Option<&NativeError> {
        match &self.how {
            How::Native(_) => None,
            How::Interpreted(interpreted) => Some(&interpreted.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_keeps_its_memory_and_waits_for_no_thread() {
        let text = "filter {\nb0:\n  v0 = load.1 [0]\n  v1 = add v0, 1\n  ret v1\n}";
        let program: Program = text.parse().unwrap();
        let interpreted = Interpreted::new(program, NativeError::Unsupported);
        assert_eq!(interpreted.run(&[4], 0), 5);
        let mut values = interpreted.values.try_lock().unwrap();
        assert_eq!(*values, [4, 5]);
        // As if another thread used the memory.
        assert_eq!(interpreted.run(&[6], 0), 7);
        assert_eq!(*values, [4, 5]);
        values.fill(u32::MAX);
        drop(values);
        assert_eq!(interpreted.run(&[8], 0), 9);
    }
}
