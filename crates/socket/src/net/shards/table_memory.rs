//! Memory of the stacks' tables of connections, made before it is needed.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use weir_stack::pcb::{ChunkSource, TableChunk};

/// A thread that makes the next segment when it is asked for one, and ends with the last
/// that may ask. It is there from the beginning on: to begin it takes 0.1 ms, for which no
/// insert should wait.
///
/// # Errors
/// If there can be no other thread.
pub(in crate::net) fn chunk_source() -> io::Result<ChunkSource> {
    let (ask, asked) = sync_channel(1);
    let (give, ready) = sync_channel(1);
    let thread = Builder::new().name("weir-segments".to_owned());
    thread.spawn(move || make(&asked, &give))?;
    let ready = Mutex::new(ready);
    Ok(Arc::new(move || {
        // Another stack asks in this moment: nobody waits.
        let segment = ready.try_lock().ok()?.try_recv().ok();
        // If it has been asked already, that is enough.
        let _ = ask.try_send(());
        segment
    }))
}

fn make(asked: &Receiver<()>, give: &SyncSender<TableChunk>) {
    while asked.recv().is_ok() {
        // Without memory there is none, and the table gets small pages.
        let Ok(segment) = TableChunk::ready() else {
            continue;
        };
        if give.send(segment).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn one_comes_and_then_the_next() {
        let supply = chunk_source().unwrap();
        let patience = Instant::now() + Duration::from_secs(60);
        for _ in 0..3 {
            while supply().is_none() {
                assert!(Instant::now() < patience, "nothing was made");
                std::thread::yield_now();
            }
        }
    }
}
