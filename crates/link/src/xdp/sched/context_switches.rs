//! What a thread has waited for.
#![allow(unsafe_code)] // A call that the safe libraries lack.

/// How often the calling thread has given its processor up by itself, to wait
/// for something in the kernel; who has it taken away does not wait.
pub fn voluntary_switches() -> u64 {
    // SAFETY: an all-zero structure is one, and the call only writes it.
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
    fn who_sleeps_has_waited() {
        let before = voluntary_switches();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(voluntary_switches() > before);
    }
}
