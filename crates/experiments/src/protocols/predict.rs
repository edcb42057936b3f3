//! §6.5.2: what a demultiplexing process should cost, from the costs of a switch
//! between processes and of a transfer to or from the kernel.

use super::ProtocolError;
use crate::packet_filter::Bench;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::io::{Read, Write, pipe};
use std::time::{Duration, Instant};

/// Bytes of a short packet.
const PACKET: usize = 128;

/// A prediction beside the measurement, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// A switch between two threads of one CPU; the paper: 400.
    pub switch_us: f64,
    /// A transfer of a short packet between kernel and process; the paper: 500.
    pub transfer_us: f64,
    /// What a demultiplexing process adds to a packet: two switches and two
    /// transfers; the paper: 1,800.
    pub predicted_us: f64,
    /// What it adds, by table 6-8's measurement; the paper: 2,700.
    pub measured_us: f64,
}

/// Predicts, and measures on the packet filter's bench.
///
/// # Errors
/// If something cannot be measured.
pub fn predict(bench: &Bench<'_>, time: Duration) -> Result<Prediction, ProtocolError> {
    let transfer = transfer(time)?;
    let switch = switch(time, transfer)?;
    let [kernel, process] = bench.one_at_a_time(PACKET)?;
    Ok(Prediction {
        switch_us: switch,
        transfer_us: transfer,
        predicted_us: 2.0 * switch + 2.0 * transfer,
        measured_us: (process - kernel) / 1e3,
    })
}

/// Half of a write to a pipe and a read from it, in one thread.
fn transfer(time: Duration) -> Result<f64, ProtocolError> {
    let (mut reader, mut writer) = pipe()?;
    let mut packet = [7; PACKET];
    let mut count = 0_u32;
    let began = Instant::now();
    while began.elapsed() < time {
        for _ in 0..64 {
            writer.write_all(&packet)?;
            reader.read_exact(&mut packet)?;
        }
        count += 64;
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(count) / 2.0)
}

/// Two threads of one CPU pass a packet to and fro: each round trip has two
/// switches and four transfers.
fn switch(time: Duration, transfer_us: f64) -> Result<f64, ProtocolError> {
    let original = sched_getaffinity(None).map_err(ProtocolError::Cpu)?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| original.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(first.unwrap_or(0));
    let (mut here, mut to_here) = pipe()?;
    let (mut there, mut to_there) = pipe()?;
    let round_trip = std::thread::scope(|scope| {
        let on_one = move || sched_setaffinity(None, &one).map_err(ProtocolError::Cpu);
        scope.spawn(move || -> Result<(), ProtocolError> {
            on_one()?;
            let mut packet = [0; PACKET];
            // Until the other end is closed.
            while there.read_exact(&mut packet).is_ok() {
                to_here.write_all(&packet)?;
            }
            Ok(())
        });
        let timing = scope.spawn(move || -> Result<f64, ProtocolError> {
            on_one()?;
            let mut packet = [7; PACKET];
            let mut count = 0_u32;
            let began = Instant::now();
            while began.elapsed() < time {
                for _ in 0..16 {
                    to_there.write_all(&packet)?;
                    here.read_exact(&mut packet)?;
                }
                count += 16;
            }
            Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(count))
        });
        timing.join().expect("it does not panic")
    })?;
    Ok(((round_trip - 4.0 * transfer_us) / 2.0).max(0.0))
}
