//! Runs of an XDP program on frames that are really sent and passed on.

use super::program::{FRAME_BYTES_MIN, Program, TestRunError};
use super::{is_not_permitted, sys};
use std::io;
use std::os::fd::AsFd;

/// `BPF_F_TEST_XDP_LIVE_FRAMES`.
const LIVE_FRAMES: u32 = 1 << 1;

/// The most frames that the kernel makes before it lets them go.
pub const LIVE_BATCH_MAX: u32 = 256;

/// What to run a program on, live: see [`Program::run_live`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveRun<'a> {
    /// Each frame as the program sees it first. What it writes may still be
    /// there in a later run: the kernel uses the frames' memory again.
    pub frame: &'a [u8],
    /// How many times to run.
    pub repeat: u32,
    /// After how many runs the redirected frames are let go, at most
    /// [`LIVE_BATCH_MAX`]; zero for 64.
    pub batch: u32,
    /// The interface of the calling thread's network namespace that the frames
    /// come into, at its first queue; `None` for `lo`.
    pub ifindex: Option<u32>,
}

impl LiveRun<'_> {
    /// `struct xdp_md`; empty for the kernel's default.
    fn context(&self) -> Vec<u8> {
        let Some(ifindex) = self.ifindex else {
            return Vec::new();
        };
        let end = self.frame.len() as u32;
        // data, data_end, data_meta, then interface, queue and way out.
        let fields = [0, end, 0, ifindex, 0, 0];
        fields.into_iter().flat_map(u32::to_ne_bytes).collect()
    }
}

impl Program {
    /// Runs an XDP program on frames that come into an interface of the calling
    /// thread's network namespace, and does with each what the program says:
    /// those that it redirects are sent, those that it passes are received
    /// (Linux 5.18). It is the quickest source of frames there is.
    ///
    /// More than one run waits for the kernel's grace period twice, some
    /// milliseconds each: better few long calls than many short ones.
    ///
    /// A signal ends it early, which is no error: only the program knows how
    /// often it ran.
    ///
    /// # Errors
    /// See [`TestRunError`].
    pub fn run_live(&self, run: &LiveRun<'_>) -> Result<(), TestRunError> {
        let len = run.frame.len();
        if len < FRAME_BYTES_MIN {
            return Err(TestRunError::FrameTooShort { len });
        }
        let asked = sys::TestRun {
            input: run.frame,
            context: &run.context(),
            output: &mut [],
            repeat: run.repeat,
            flags: LIVE_FRAMES,
            batch: run.batch,
        };
        match sys::prog_test_run(self.as_fd(), asked) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if is_not_permitted(&error) => Err(TestRunError::NotPermitted),
            Err(source) => Err(TestRunError::System { len, source }),
        }
    }
}
