//! weir for Python, by PyO3: the native half of the package `weir`.
//!
//! | module | what |
//! |---|---|
//! | `port` | a port on a live link: waiting, receiving, sending |
//! | `batch` | received frames as memoryviews of one `bytes` object |
//! | `filter`, `plan` | one filter; several, by the classifier |
//! | `capture` | capture files |
//! | `convert`, `error` | arguments; exceptions |
//!
//! `package/weir/` is the other half: what is easier to say in Python, the types of exceptions, the
//! stubs, and scapy's sockets.
//!
//! # Locks
//!
//! A call that waits gives up Python's global lock first, and holds no lock of a port while it
//! sleeps. A port's lock is taken by `lock_py_attached`, which cannot deadlock with the global one.

mod batch;
mod capture;
mod convert;
mod error;
mod filter;
mod plan;
mod port;

use pyo3::prelude::*;

/// The native half of the package `weir`.
#[pymodule]
fn _weir(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<batch::Batch>()?;
    module.add_class::<port::Port>()?;
    module.add_class::<filter::Filter>()?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<capture::CaptureReader>()?;
    module.add_class::<capture::CaptureWriter>()?;
    module.add("BATCH_MAX", port::BATCH_MAX)
}
