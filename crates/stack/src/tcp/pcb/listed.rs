//! [`Listed`]: the tables and queues of the stack that have a connection, and its share of
//! their memory.

/// Where a connection is listed. Each flag says whether the list has an entry, so that no list
/// has two; the lists themselves are `Tcp`'s.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::tcp) struct Listed {
    /// Bytes of buffer storage, as counted in the total of all connections.
    pub(in crate::tcp) charged_bytes: u32,
    /// The free storage that a blocked writer waits for, by which the connection is among the
    /// waiters for memory; 0 if no writer waits.
    pub(in crate::tcp) memory_wanted: u32,
    /// The queue of connections with output.
    pub(in crate::tcp) in_output_queue: bool,
    /// The queue of connections with an event for the application.
    pub(in crate::tcp) in_notify_queue: bool,
    /// The table of connections, by their sockets.
    pub(in crate::tcp) in_table: bool,
    /// The queue of connections that only wait for their time to end.
    pub(in crate::tcp) in_time_wait_queue: bool,
}

impl Listed {
    /// Updates the share in the `total` storage of all connections, of which this one has
    /// `bytes` now; returns whether its share has changed.
    pub(in crate::tcp) fn account(&mut self, bytes: usize, total: &mut usize) -> bool {
        let before = self.charged_bytes as usize;
        if bytes != before {
            *total = *total - before + bytes;
            self.charged_bytes = bytes as u32;
        }
        bytes != before
    }
}
