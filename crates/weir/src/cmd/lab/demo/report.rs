//! The results, as text and as JSON.

use crate::report::format;
use crate::report::format::Column::{Left, Right};
use serde::Serialize;
use std::net::Ipv4Addr;

#[derive(Serialize)]
pub(super) struct DemoReport {
    /// Time to create the network, in microseconds.
    pub(super) made_us: u64,
    pub(super) pings: u32,
    pub(super) answered: u32,
    /// The shortest round-trip time.
    pub(super) round_trip_us_min: Option<f64>,
    /// Sockets of b's kernel.
    pub(super) sockets: Vec<SocketReport>,
    pub(super) tcp_bits_per_second: f64,
    /// Ports on b's device.
    pub(super) ports: Vec<PortReport>,
    pub(super) devices: Vec<DeviceReport>,
}

#[derive(Serialize)]
pub(super) struct SocketReport {
    /// The transport port.
    pub(super) port: u16,
    pub(super) sent: u64,
    pub(super) received: u64,
}

#[derive(Serialize)]
pub(super) struct PortReport {
    pub(super) filter: &'static str,
    pub(super) take: bool,
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) lost: u64,
    pub(super) at: String,
}

#[derive(Serialize)]
pub(super) struct DeviceReport {
    pub(super) host: String,
    pub(super) device: String,
    pub(super) address: Ipv4Addr,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) dropped: u64,
}

impl DemoReport {
    pub(super) fn text(&self) -> String {
        let quickest = self
            .round_trip_us_min
            .map_or(String::new(), |us| format!(", the quickest in {us:.0} µs"));
        let sockets: Vec<String> = self
            .sockets
            .iter()
            .map(|socket| {
                let (sent, received) = (socket.sent, socket.received);
                format!("{received} of {sent} to port {}", socket.port)
            })
            .collect();
        format!(
            "Two hosts and a link, made in {:.1} ms; they go when this ends.\n\n\
             echo   {} of {} requests answered{quickest}\n\
             UDP    b's own sockets got {}\n\
             TCP    {:.1} Gb/s from a to b, without offloads\n\n\
             Ports on b, each with a queue of its own:\n\n{}\n\n{}",
            self.made_us as f64 / 1e3,
            self.answered,
            self.pings,
            sockets.join(", "),
            self.tcp_bits_per_second / 1e9,
            self.port_table(),
            self.device_table(),
        )
    }

    fn port_table(&self) -> String {
        let columns = [
            Left("filter"),
            Left("frames are"),
            Right("frames"),
            Right("bytes"),
            Right("lost"),
            Left("at"),
        ];
        let rows = self.ports.iter().map(|port| {
            vec![
                match port.filter {
                    "" => "(all)",
                    filter => filter,
                }
                .to_owned(),
                if port.take { "taken" } else { "copied" }.to_owned(),
                format::grouped(port.frames),
                format::grouped(port.bytes),
                format::grouped(port.lost),
                port.at.clone(),
            ]
        });
        format::table(&columns, rows)
    }

    fn device_table(&self) -> String {
        let columns = [
            Left("host"),
            Left("device"),
            Left("address"),
            Right("sent"),
            Right("received"),
            Right("dropped"),
        ];
        let rows = self.devices.iter().map(|one| {
            vec![
                one.host.clone(),
                one.device.clone(),
                one.address.to_string(),
                format::grouped(one.sent),
                format::grouped(one.received),
                format::grouped(one.dropped),
            ]
        });
        format::table(&columns, rows)
    }
}
