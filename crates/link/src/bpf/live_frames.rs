//! Runs of an XDP program on live frames: the frames are sent or received as
//! the program's verdict says.

use super::program::{FRAME_BYTES_MIN, Program, TestRunError};
use super::{is_not_permitted, sys};
use std::io;
use std::os::fd::AsFd;

/// `BPF_F_TEST_XDP_LIVE_FRAMES`.
const LIVE_FRAMES: u32 = 1 << 1;

/// Upper bound of [`LiveRun::batch`] in the kernel.
pub const LIVE_BATCH_MAX: u32 = 256;

/// Arguments of [`Program::run_live`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveRun<'a> {
    /// The content of each frame before the program runs. The kernel recycles
    /// the frames' memory: bytes that the program wrote may still be present in
    /// a later run.
    pub frame: &'a [u8],
    /// Number of runs.
    pub repeat: u32,
    /// Number of runs after which redirected frames are flushed, at most
    /// [`LIVE_BATCH_MAX`]; 0 for 64.
    pub batch: u32,
    /// The ingress interface (queue 0), in the calling thread's network
    /// namespace; `None` for `lo`.
    pub ifindex: Option<u32>,
}

impl LiveRun<'_> {
    /// `struct xdp_md`; empty for the kernel's default.
    fn context(&self) -> Vec<u8> {
        let Some(ifindex) = self.ifindex else {
            return Vec::new();
        };
        let end = self.frame.len() as u32;
        // data, data_end, data_meta, then ingress interface, queue and egress
        // interface.
        let fields = [0, end, 0, ifindex, 0, 0];
        fields.into_iter().flat_map(u32::to_ne_bytes).collect()
    }
}

impl Program {
    /// Runs an XDP program on frames that appear to arrive at an interface of
    /// the calling thread's network namespace. The kernel carries out each
    /// verdict: redirected frames are sent, passed frames are received (Linux
    /// 5.18). This is the fastest source of frames on the machine.
    ///
    /// A call with more than one run waits for two RCU grace periods of some
    /// milliseconds each: prefer few calls with many runs.
    ///
    /// A signal ends the call early without an error; only the program can
    /// count its runs.
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
