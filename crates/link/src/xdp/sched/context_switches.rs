//! Context switches of a thread.
#![allow(unsafe_code)] // A call that the safe libraries lack.

/// Voluntary context switches of the calling thread (`ru_nvcsw`): how often it
/// blocked in the kernel. Preemptions are not counted.
pub fn voluntary_switches() -> u64 {
    // SAFETY: an all-zero `rusage` is valid, and the call only writes to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    usage.ru_nvcsw.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::voluntary_switches;

    #[test]
    fn a_sleep_is_a_voluntary_switch() {
        let before = voluntary_switches();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(voluntary_switches() > before);
    }
}
