//! What runs a program, or turns it into something that others run.

pub mod ebpf;
pub mod interp;
