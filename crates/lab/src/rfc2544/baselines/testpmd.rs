//! DPDK's testpmd on kernel interfaces.

use crate::rfc2544::Error;
use crate::rfc2544::dut::{Dut, Program, Ready, Running};
use crate::rfc2544::testbed::{Layout, Testbed};
use std::env;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The program's name in Debian.
const PROGRAM: &str = "dpdk-testpmd";

/// Starts it with a driver: `net_af_xdp` or `net_af_packet`.
pub(super) fn start(bench: &Testbed, driver: &'static str) -> Result<Box<dyn Running>, Error> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let path = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|folder| folder.join(PROGRAM).is_file()) {
        return Err(Error::Missing {
            what: PROGRAM.into(),
            remedy: "apt install dpdk-dev",
        });
    }
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let cpu = bench.setup().cpus.dut;
    // testpmd's main thread sleeps; the second one forwards.
    let words = [
        // Otherwise its output stays in its buffer, and readiness is not
        // noticed.
        "stdbuf".to_owned(),
        "-oL".into(),
        PROGRAM.into(),
        format!("--lcores=0@{cpu},1@{cpu}"),
        "--main-lcore=0".into(),
        format!("--file-prefix=weir{}n{number}", process::id()),
        "--no-huge".into(),
        "-m".into(),
        "256".into(),
        "--no-pci".into(),
        "--no-telemetry".into(),
        "--vdev".into(),
        format!("{driver}0,iface={{a}}"),
        "--vdev".into(),
        format!("{driver}1,iface={{b}}"),
        "--".into(),
        "--auto-start".into(),
        "--disable-link-check".into(),
        "--forward-mode=io".into(),
        "--port-topology=paired".into(),
        "--total-num-mbufs=16384".into(),
    ];
    let program = Program {
        name: format!("testpmd with {driver}"),
        words: words.to_vec(),
        layout: Layout::Bridge,
        ready: Ready::Said("enter", Duration::from_secs(20)),
        open_input: true,
    };
    program.start(bench)
}
