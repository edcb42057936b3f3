//! The counters of a tap and of its links.

/// The counters of one link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkCounts {
    /// Number of frames received.
    pub rx_frames: u64,
    /// Bytes of these frames.
    pub rx_bytes: u64,
    /// Number of frames put into the tx ring.
    pub tx_frames: u64,
    /// Bytes of these frames.
    pub tx_bytes: u64,
    /// Number of frames dropped instead of sent, since the tx ring was full.
    pub tx_ring_full: u64,
    /// Number of frames dropped instead of sent, since they exceeded the link's
    /// MTU, or the length that its sockets can send.
    pub tx_too_long: u64,
    /// Number of stale frames dropped, since the application had hung or a new
    /// one took over, and other frames had passed them on the bypass.
    pub stale: u64,
    /// Number of frames that were being sent when the bypass began: other
    /// frames may have passed them.
    pub overtaken: u64,
    /// Number of frames that took the bypass.
    pub bypassed: u64,
    /// Number of frames that went to the host's own protocols by the filter of
    /// [`Tap::across`](crate::Tap::across).
    pub to_host: u64,
    /// Number of frames that the kernel dropped for lack of room: a full rx
    /// ring or an empty fill ring.
    pub rx_full: u64,
    /// Number of frames that the kernel dropped for other reasons, mostly their
    /// length.
    pub rx_dropped: u64,
    /// Number of received frames whose checksum had been left to the device,
    /// and was completed.
    pub checksums_completed: u64,
    /// Number of invalid ring entries, which the kernel never writes.
    pub invalid: u64,
}

/// The counters of a tap.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Number of system calls to send.
    pub syscalls_tx: u64,
    /// Number of frames sent in bursts without socket buffers, each with one
    /// more copy by this process: see
    /// [`Config::tx_burst`](crate::Config::tx_burst).
    pub burst_frames: u64,
    /// Number of burst calls that the kernel stalled for a millisecond or more,
    /// while some process on the machine changed XDP programs: after each,
    /// sockets send for a while.
    pub burst_stalls: u64,
    /// Number of system calls to receive: none in copy mode.
    pub syscalls_rx: u64,
    /// Number of system calls to sleep until a frame comes.
    pub syscalls_wait: u64,
    /// Number of times that the application was found hung.
    pub hung: u64,
    /// Number of times that an application was found dead.
    pub died: u64,
    /// Number of chunks that this process took back from dead processes.
    pub reclaimed: u64,
    /// Number of frames of a shared tap that this process had taken or was to
    /// send when it untapped their link, and that were dropped.
    pub untapped: u64,
}
