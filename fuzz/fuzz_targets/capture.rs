//! Capture files, packed or not: read to their end or to the first damage.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    weir_link::pcap::fuzz(data);
});
