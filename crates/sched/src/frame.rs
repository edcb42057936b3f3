//! Queued frames.

/// A frame that a scheduler holds.
pub trait Frame {
    /// Bytes that the frame takes on the link, at least 1.
    fn wire_len(&self) -> u32;

    /// Sets the codepoint CE (RFC 3168 §5) if the sender declared an ECN-capable
    /// transport. Returns whether the frame now has CE; if not, it is dropped where
    /// it would have been marked.
    fn mark(&mut self) -> bool {
        false
    }
}

impl Frame for Vec<u8> {
    fn wire_len(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX).max(1)
    }
}

/// A frame in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Queued<T> {
    pub(crate) frame: T,
    pub(crate) len: u32,
    /// When it came, in ns.
    pub(crate) since: u64,
    /// The virtual time at which weighted fair queueing has served it; 0 elsewhere.
    pub(crate) finish: u128,
}
