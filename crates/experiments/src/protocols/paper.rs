//! What the paper states of its protocols (§6.3, 6.4), on MicroVAX-IIs with
//! 4.3BSD and a 10 Mb/s Ethernet.

/// Table 6-2: a minimal VMTP operation by the packet filter, by the Unix kernel.
pub const MINIMAL: (&str, &str) = ("14.7 ms", "7.44 ms");
/// Table 6-3: bulk by VMTP on the packet filter, by the kernel's TCP.
pub const BULK: (&str, &str) = ("112 kB/s", "222 kB/s");
/// Table 6-4: bulk without batching.
pub const NO_BATCHING: &str = "64 kB/s";
/// Table 6-5: a minimal operation and bulk with a demultiplexing process.
pub const DEMULTIPLEXED: (&str, &str) = ("18.08 ms", "25 kB/s");
/// Table 6-6: the byte stream and TCP; and TCP with Pup's packets, "cut in half".
pub const STREAM: (&str, &str, &str) = ("38 kB/s", "222 kB/s", "about 111 kB/s");
/// §6.4: a file's transfer from a disk by the byte stream ("remains unchanged"), by TCP ("slows by
/// a factor of two").
pub const FROM_DISK: (&str, &str) = ("38 kB/s", "about 111 kB/s");
/// Table 6-7: Telnet by Pup and by TCP, on a workstation that displays 3,350
/// characters a second, and on a terminal of 9,600 baud.
pub const TELNET: [(&str, &str); 2] = [
    ("1,635 a second", "1,757 a second"),
    ("878 a second", "933 a second"),
];
