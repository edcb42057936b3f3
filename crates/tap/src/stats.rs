//! What a tap has carried, and what it has cost.

/// Of one link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkCounts {
    /// Frames received.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames put into the tx ring.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that were to be sent and were dropped: the tx ring was full.
    pub tx_ring_full: u64,
    /// Frames that were to be sent and were dropped: longer than the link's MTU
    /// allows, or than its sockets can send.
    pub tx_too_long: u64,
    /// Frames dropped since the program had hung, or a new one taken over,
    /// and others were past them on the bypass.
    pub stale: u64,
    /// Frames that were being sent while the bypass began: others may be past
    /// them.
    pub overtaken: u64,
    /// Frames that took the bypass.
    pub bypassed: u64,
    /// Frames that the host's own protocols were [left](crate::Tap::across).
    pub to_host: u64,
    /// Frames that the kernel dropped for want of room: a full rx ring or an
    /// empty fill ring.
    pub rx_full: u64,
    /// Frames that the kernel dropped for other reasons, mostly their length.
    pub rx_dropped: u64,
    /// Frames received whose checksum had been left to the device, and was
    /// completed.
    pub checksums_completed: u64,
    /// Entries of rings that nobody should have written.
    pub invalid: u64,
}

/// Of a tap.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// System calls to send.
    pub syscalls_tx: u64,
    /// Frames that were sent many at once without a socket buffer, each with a
    /// copy of our own more: see [`Config::tx_burst`](crate::Config::tx_burst).
    pub burst_frames: u64,
    /// Such calls that the kernel held up for a millisecond and more, since
    /// somebody on the machine changed XDP programs: after each, sockets send for
    /// a while.
    pub burst_stalls: u64,
    /// System calls to receive: none in copy mode.
    pub syscalls_rx: u64,
    /// System calls to sleep until a frame comes.
    pub syscalls_wait: u64,
    /// Times that the program was found hung.
    pub hung: u64,
    /// Times that a program was found dead.
    pub died: u64,
    /// Chunks that this process has taken back from others that died.
    pub reclaimed: u64,
    /// Frames of a shared tap that this process had taken or was to send when
    /// it untapped their link, and that were dropped.
    pub untapped: u64,
}
