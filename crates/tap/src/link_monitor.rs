//! A thread that checks whether links still exist.

use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Lifetime of an answer: frequent callers, such as each push to a link that is
/// down, must not occupy a core with checks.
const ANSWER_TTL: Duration = Duration::from_millis(10);

/// A thread that makes the check, so that frames need not wait for the answer.
/// The kernel answers when no process on the host is creating or removing an
/// interface, which on a busy host may take tenths of a second. The thread ends
/// when the links do not exist.
#[derive(Debug)]
pub(crate) struct LinkMonitor {
    /// `None` once the thread is to end.
    requests: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    requested_at: Option<Instant>,
}

impl LinkMonitor {
    /// Starts the thread; `are_there` is the check.
    pub(crate) fn new(
        mut are_there: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<LinkMonitor> {
        // Without capacity: a request during a check is dropped.
        let (ask, asked) = sync_channel(0);
        let thread = Builder::new().name("weir-links".to_owned());
        let thread = thread.spawn(move || while asked.recv().is_ok() && are_there() {})?;
        Ok(LinkMonitor {
            requests: Some(ask),
            thread: Some(thread),
            requested_at: None,
        })
    }

    /// The last answer, `true` before the first one; requests a new check if
    /// that is due. Never waits.
    pub(crate) fn are_there(&mut self) -> bool {
        if self
            .requested_at
            .is_some_and(|at| at.elapsed() < ANSWER_TTL)
        {
            return true;
        }
        match self.requests.as_ref().map(|ask| ask.try_send(())) {
            Some(Ok(())) => {
                self.requested_at = Some(Instant::now());
                true
            }
            Some(Err(TrySendError::Full(()))) => true,
            Some(Err(TrySendError::Disconnected(()))) | None => false,
        }
    }
}

impl Drop for LinkMonitor {
    /// Waits for the thread, which owns the objects of the check; they would
    /// keep programs on the links.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, it has released everything all the same.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const WAIT_MAX: Duration = Duration::from_secs(60);

    /// A monitor whose check returns the values sent to it, and reports each
    /// check.
    fn watch() -> (LinkMonitor, Receiver<()>, Sender<bool>) {
        let (say, asked) = channel();
        let (answer, answers) = channel();
        let watch = LinkMonitor::new(move || {
            say.send(()).unwrap();
            answers.recv().unwrap_or(false)
        });
        (watch.unwrap(), asked, answer)
    }

    /// Repeats `done` until it returns `true`.
    fn until(mut done: impl FnMut() -> bool) {
        let end = Instant::now() + WAIT_MAX;
        while !done() {
            assert!(Instant::now() < end, "it never was so");
            std::thread::yield_now();
        }
    }

    #[test]
    fn no_caller_waits_for_the_answer() {
        let (mut watch, asked, answer) = watch();
        until(|| {
            assert!(watch.are_there());
            asked.try_recv().is_ok()
        });
        // The check has not been answered: a call that waited would hang.
        for _ in 0..1_000 {
            assert!(watch.are_there());
        }
        answer.send(false).unwrap();
        until(|| !watch.are_there());
        assert!(asked.try_recv().is_err(), "asked once");
    }

    #[test]
    fn a_query_follows_each_answer_but_not_at_once() {
        let (mut watch, asked, answer) = watch();
        let mut asked_at = Vec::new();
        for _ in 0..3 {
            until(|| {
                let looked_at = Instant::now();
                assert!(watch.are_there());
                let is_asked = asked.try_recv().is_ok();
                asked_at.extend(is_asked.then_some(looked_at));
                is_asked
            });
            answer.send(true).unwrap();
        }
        drop(answer);
        // The second check comes after the first call here, the third one
        // lifetime later.
        assert!(asked_at[2] - asked_at[0] >= ANSWER_TTL, "{asked_at:?}");
    }

    #[test]
    fn what_it_asks_with_is_gone_when_it_is() {
        let held = Arc::new(());
        let also = Arc::clone(&held);
        let mut watch = LinkMonitor::new(move || Arc::strong_count(&also) > 1).unwrap();
        assert!(watch.are_there());
        assert_eq!(Arc::strong_count(&held), 2);
        drop(watch);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn an_ended_monitor_thread_is_an_error() {
        let mut watch = LinkMonitor::new(|| panic!("on purpose")).unwrap();
        until(|| !watch.are_there());
    }
}
