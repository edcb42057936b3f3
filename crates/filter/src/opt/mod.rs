//! The optimiser: passes that make a program smaller and faster without
//! changing any verdict.
