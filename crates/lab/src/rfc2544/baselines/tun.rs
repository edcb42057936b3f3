//! A relay on a TUN interface: the kernel routes packets into it, a program
//! reads each and writes it back, the kernel routes it on. What a divert
//! socket was, today.

use super::thread_dut::Worker;
use crate::net::Device;
use crate::rfc2544::testbed::Testbed;
use crate::rfc2544::{Error, failed};
use std::io;
use weir_link::net::Tap;

const NAME: &str = "tun0";

/// The table of routes of what has not been through the program.
const TABLE: u8 = 100;

/// Packets passed on before it is looked whether to end.
const BURST: usize = 64;

/// Starts the relay.
pub(super) fn start(bench: &Testbed, ports: &[Device; 2]) -> Result<Worker, Error> {
    let host = bench.dut();
    host.set_sysctl("net.ipv4.ip_forward", "1")?;
    let tun = host
        .run(|| Tap::open_packets(NAME))
        .map_err(failed("making a TUN interface"))?;
    let device = host.device(NAME)?;
    // Packets come back from there that have an address of elsewhere.
    for which in ["all", NAME] {
        host.set_sysctl(&format!("net.ipv4.conf.{which}.rp_filter"), "0")?;
    }
    device.up()?;
    device.route_table(TABLE)?;
    for port in ports {
        port.look_up_in(TABLE)?;
    }
    Worker::start(bench, "tun-relay", move || Ok((tun, [0; 2048])), pass)
}

fn pass((tun, packet): &mut (Tap, [u8; 2048])) -> io::Result<()> {
    for _ in 0..BURST {
        let Some(len) = tun.receive(packet)? else {
            break;
        };
        // What the kernel has no room for is lost.
        tun.send(&packet[..len])?;
    }
    Ok(())
}
