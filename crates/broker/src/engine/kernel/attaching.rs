//! Attaching to the hooks of an interface on a thread: at each hook of tc the kernel waits for a
//! grace period of RCU, 10 to 20 ms, while the programs for the first binding can be loaded.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use weir_link::bpf::{Hook, PinFolder};
use weir_link::live::{Dispatcher, LiveError};

/// The dispatchers that are attached, and the error of the first that is not.
pub(super) type Attached = (Vec<Dispatcher>, Option<LiveError>);

/// Dispatchers that are being attached, with empty slots. Dropping this waits for them, but in
/// a panic, and detaches them unless they are pinned.
#[derive(Debug)]
pub(super) struct Attaching {
    hooks: Vec<Hook>,
    thread: Option<JoinHandle<Attached>>,
}

impl Attaching {
    /// Begins to attach to these hooks, in this order, in the network namespace of the calling
    /// thread.
    pub(super) fn start(
        ifindex: u32,
        hooks: Vec<Hook>,
        pins: Option<Arc<PinFolder>>,
    ) -> io::Result<Attaching> {
        let all = hooks.clone();
        let attach = move || {
            let mut done = Vec::new();
            for hook in all {
                match Dispatcher::attach(ifindex, hook, pins.as_deref()) {
                    Ok(dispatcher) => done.push(dispatcher),
                    Err(error) => return (done, Some(error)),
                }
            }
            (done, None)
        };
        let thread = Builder::new().name("weir-attach".to_owned());
        Ok(Attaching {
            hooks,
            thread: Some(thread.spawn(attach)?),
        })
    }

    /// The hooks.
    pub(super) fn hooks(&self) -> &[Hook] {
        &self.hooks
    }

    /// Waits until they are attached.
    pub(super) fn finish(mut self) -> Attached {
        self.join()
    }

    fn join(&mut self) -> Attached {
        let joined = self.thread.take().map(JoinHandle::join);
        match joined {
            Some(Ok(attached)) => attached,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => (Vec::new(), None),
        }
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(self.join());
        }
    }
}
