//! Why the packet filter's tables cannot be measured.

use std::io;
use weir_demux::kernel::KernelBindError;
use weir_lab::load::{GeneratorError, SinkError};
use weir_link::bpf::{MapError, TestRunError};
use weir_link::live::{LiveError, SendError};
use weir_link::plan::PlanError;

/// Why there is no measurement.
#[derive(thiserror::Error, Debug)]
pub enum MeasureError {
    /// The hosts of the measurement, or their link.
    #[error(transparent)]
    Net(#[from] weir_lab::net::Error),
    /// The source of frames.
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    /// The far end's program that drops frames.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The program at the link.
    #[error(transparent)]
    Dispatcher(#[from] LiveError),
    /// Sending of frames.
    #[error(transparent)]
    Send(#[from] SendError),
    /// A filter that the plan does not take.
    #[error(transparent)]
    Bind(#[from] KernelBindError),
    /// The plan in the kernel.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A map of the plan.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A test run of the kernel's program.
    #[error(transparent)]
    TestRun(#[from] TestRunError),
    /// The reader of the port's queue.
    #[error(transparent)]
    Ring(#[from] weir_ring::Error),
    /// A system call, where the call is plain.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The affinity of a thread.
    #[error("cannot choose a CPU: {0}")]
    Cpu(rustix::io::Errno),
    /// A filter of the experiment's own does not compile.
    #[error("{0}")]
    Filter(String),
    /// The process behind the pipe.
    #[error("cannot start the process behind the pipe: {0}")]
    StartReceiver(io::Error),
    /// The pipe.
    #[error("the pipe to the receiver: {0}")]
    Pipe(io::Error),
    /// The process behind the pipe did not count.
    #[error("the receiver said `{said}` and ended ({status})")]
    Receiver {
        /// Its standard output.
        said: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// The generator's frames do not arrive.
    #[error("no frame arrived")]
    NoFrame,
    /// The first frame did not arrive within the limit.
    #[error("no frame arrived for seconds")]
    FirstFrame,
    /// The kernel has reordered frames of one flow.
    #[error("frames arrived out of order")]
    OutOfOrder,
    /// Frames of a test run were lost.
    #[error("{delivered} of {sent} frames were delivered")]
    Undelivered {
        /// Frames in the port's queue.
        delivered: usize,
        /// Frames that the program ran on.
        sent: u32,
    },
}
