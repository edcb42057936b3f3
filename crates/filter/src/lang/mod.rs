//! The filter languages; each turns its text or words into an
//! [`ir::Program`](crate::ir::Program).

pub mod cbpf;
pub mod expr;
