//! A device under test that is a thread of this process.

use crate::affinity;
use crate::rfc2544::dut::Running;
use crate::rfc2544::testbed::Testbed;
use crate::rfc2544::{Error, failed};
use rustix::thread::gettid;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{Builder, JoinHandle};

/// A thread in the host of the device under test, on its CPU. Dropping the
/// value ends it.
pub(super) struct Worker {
    name: &'static str,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// The thread's id.
    number: u32,
}

impl Worker {
    /// Starts a thread: `open` prepares it, and then it repeatedly forwards the
    /// available frames.
    pub(super) fn start<T: 'static>(
        bench: &Testbed,
        name: &'static str,
        open: impl FnOnce() -> io::Result<T> + Send + 'static,
        pass: impl Fn(&mut T) -> io::Result<()> + Send + 'static,
    ) -> Result<Worker, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, host) = (Arc::clone(&stop), bench.dut().clone());
        let cpu = bench.setup().cpus.dut;
        let (sender, receiver) = channel();
        let work = move || {
            let start = || {
                host.enter()?;
                affinity::pin(None, cpu)?;
                Ok::<_, io::Error>((open()?, gettid().as_raw_nonzero().get() as u32))
            };
            let mut opened = match start() {
                Ok((opened, number)) => {
                    let _ = sender.send(Ok(number));
                    opened
                }
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return Ok(());
                }
            };
            while !asked.load(Ordering::Relaxed) {
                pass(&mut opened)?;
            }
            Ok(())
        };
        let thread = Builder::new().name(name.to_owned()).spawn(work);
        let mut worker = Worker {
            name,
            stop,
            thread: Some(thread.map_err(failed(format!("starting {name}")))?),
            number: 0,
        };
        let started = receiver.recv().map_err(io::Error::other).flatten();
        worker.number = started.map_err(failed(format!("starting {name}")))?;
        Ok(worker)
    }

    fn end(&mut self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        let ended = ended.unwrap_or_else(|_| Err(io::Error::other("it panicked")));
        ended.map_err(failed(format!("passing frames on in {}", self.name)))
    }
}

impl Running for Worker {
    fn check(&mut self) -> Result<(), Error> {
        match &self.thread {
            Some(thread) if thread.is_finished() => self.end(),
            _ => Ok(()),
        }
    }

    fn hurry(&mut self, on: bool) -> Result<(), Error> {
        let set = affinity::set_realtime(Some(self.number), on);
        set.map_err(failed(format!("the priority of {}", self.name)))
    }

    fn stop(mut self: Box<Self>) -> Result<(), Error> {
        self.end()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A destructor cannot report the error.
        let _ = self.end();
    }
}
