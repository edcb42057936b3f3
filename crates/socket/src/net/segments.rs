//! Memory of the stacks' tables of connections, made before it is needed.

use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use weir_stack::pcb::{Segment, Supply};

/// A thread that always has the next segment at hand. It begins when it is first asked,
/// which is when a table has 16,384 connections, and ends with the last that may ask.
pub(super) fn supply() -> Supply {
    let ready: Mutex<Option<Receiver<Segment>>> = Mutex::new(None);
    Arc::new(move || {
        // Another stack asks in this moment: nobody waits.
        let mut ready = ready.try_lock().ok()?;
        let taken = ready.get_or_insert_with(begin).try_recv();
        if matches!(taken, Err(TryRecvError::Disconnected)) {
            // It could not go on. Perhaps the next one can.
            *ready = None;
        }
        taken.ok()
    })
}

/// Where the thread hands them over. Without it, or without memory, there are none, and
/// the tables get small pages.
fn begin() -> Receiver<Segment> {
    let (give, ready) = sync_channel(0);
    let thread = std::thread::Builder::new().name("weir-segments".to_owned());
    let made = thread.spawn(move || {
        while let Ok(segment) = Segment::ready() {
            if give.send(segment).is_err() {
                return;
            }
        }
    });
    drop(made);
    ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn one_comes_and_then_the_next() {
        let supply = supply();
        let patience = Instant::now() + Duration::from_secs(60);
        for _ in 0..3 {
            while supply().is_none() {
                assert!(Instant::now() < patience, "nothing was made");
                std::thread::yield_now();
            }
        }
    }
}
