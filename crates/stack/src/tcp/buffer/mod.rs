//! Buffers between the application and sequence space.

pub(super) mod byte_ring;
pub(super) mod receive_buffer;
pub(super) mod send_buffer;
