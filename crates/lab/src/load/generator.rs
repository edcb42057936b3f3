//! The frame generator: sends frames at a rate, by a program in the kernel.

use super::ingress::Ingress;
use super::program::{Output, program, shared};
use super::template::{Template, TemplateError};
use super::thread;
use crate::affinity;
use crate::net::Device;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use weir_link::bpf::{
    LiveRun, Load, LoadError, Map, MapError, MapMemory, MapSpec, ObjectError, Program, ProgramType,
    TestRunError,
};
use weir_link::net::InterfaceError;

/// Interval of frames from which on the generator sleeps between frames, with
/// one system call each.
const SLEEP_MIN: Duration = Duration::from_micros(500);

/// Polling interval for the last frame.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Duration for which frames may follow each other without reading the clock,
/// which costs a sixth of sending a frame. The frames of a batch leave together
/// in any case.
const UNTIMED: Duration = Duration::from_micros(4);

/// Largest number of frames without reading the clock: half a batch.
const UNTIMED_FRAMES_MAX: u64 = 32;

/// Number of frames that may follow a late one at once, to keep the rate.
const BURST_FRAMES_MAX: u64 = 64;

/// Minimum of the credit (see [`shared`]): the duration of a slow system call.
const CREDIT_MIN: Duration = Duration::from_micros(100);

/// Largest rate that is paced, in frames per second.
const RATE_MAX: f64 = 1e9;

/// The sending rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rate {
    /// As fast as possible.
    Flat,
    /// Frames per second, evenly spaced; more than 0.
    PerSecond(f64),
}

/// The result of a generator's run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sent {
    /// Frames passed to the device.
    pub frames: u64,
    /// Frames that the link dropped, because the other end did not take them in
    /// time.
    pub dropped: u64,
    /// Duration of the run.
    pub elapsed: Duration,
    /// CPU time of the generator's thread, preparations included. It includes
    /// receive processing on that CPU.
    pub ran: Duration,
    /// Time by which frames were delayed without catching up: the rate was
    /// lower than requested.
    pub put_off: Duration,
}

impl Sent {
    /// Frames per second.
    pub fn rate(&self) -> f64 {
        self.frames as f64 / self.elapsed.as_secs_f64()
    }
}

/// Why no frames were sent.
#[derive(Debug, thiserror::Error)]
pub enum GeneratorError {
    /// The template is not valid.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The rate is not valid.
    #[error("{rate} frames per second: the rate must be more than 0 and at most 1e9")]
    Rate {
        /// The requested rate.
        rate: f64,
    },
    /// The other end of the link drops redirected frames.
    #[error(
        "the other end of `{device}` does not accept redirected frames: attach an XDP program or turn on GRO there"
    )]
    NotTaken {
        /// The sending device.
        device: String,
    },
    /// The shared map could not be created.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The program could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The program could not be run.
    #[error(transparent)]
    Run(#[from] TestRunError),
    /// The device is gone.
    #[error(transparent)]
    Device(#[from] crate::net::Error),
    /// The programs attached to the device could not be queried.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The program attached to the device could not be opened.
    #[error(transparent)]
    Attached(#[from] ObjectError),
    /// No devices were passed, or devices of several hosts.
    #[error("a generator needs at least one device, and all of one host")]
    Devices,
    /// The thread could not be started.
    #[error("the generator's thread: {0}")]
    Thread(#[from] io::Error),
}

/// A source of frames at a device, up to several million a second on one CPU.
/// Frames are numbered from the generator's creation, over all of its runs.
#[derive(Debug)]
pub struct Generator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    devices: Vec<Device>,
    frame: Vec<u8>,
    program: Program,
    shared: Shared,
    /// The device at which frames arrive, if they are not sent.
    arrival: Option<Ingress>,
    realtime: AtomicBool,
    /// The CPU to run on, or [`ANY_CPU`].
    cpu: AtomicUsize,
    batch: AtomicU32,
}

/// No particular CPU.
const ANY_CPU: usize = usize::MAX;

impl Generator {
    /// A generator that sends a template's frames on a device.
    ///
    /// # Errors
    /// For an invalid template, and without privilege.
    pub fn new(
        device: &Device,
        template: impl Into<Template>,
    ) -> Result<Generator, GeneratorError> {
        Generator::in_turn(&[(device, template.into())])
    }

    /// A generator that sends one frame of each template in turn, each on its
    /// own device of one host. All frames have the same length and are equal
    /// from their 65th byte on.
    ///
    /// # Errors
    /// As for [`Generator::new`].
    pub fn in_turn(ways: &[(&Device, Template)]) -> Result<Generator, GeneratorError> {
        let Some((first, template)) = ways.first() else {
            return Err(GeneratorError::Devices);
        };
        for (device, other) in ways {
            other.check()?;
            template.check_compatible(other)?;
            if !device.host().is(first.host()) {
                return Err(GeneratorError::Devices);
            }
        }
        let sent: Vec<_> = ways
            .iter()
            .map(|(device, template)| (template, Output::Out(device.index())))
            .collect();
        let devices = ways.iter().map(|(device, _)| (*device).clone()).collect();
        Generator::load(devices, &sent, None)
    }

    /// A generator whose frames arrive at a device, without a sending device
    /// and without the device's driver: each frame goes to the XDP program that
    /// is attached to the driver at present and is treated by its verdict, or
    /// to the host if there is none. This is the cheapest way to receive a
    /// frame.
    ///
    /// The device's own counters do not include these frames.
    ///
    /// # Errors
    /// As for [`Generator::new`].
    pub fn arriving(
        device: &Device,
        template: impl Into<Template>,
    ) -> Result<Generator, GeneratorError> {
        let template = template.into();
        template.check()?;
        let arrival = Ingress::at(device)?;
        let ways = [(&template, arrival.exit())];
        Generator::load(vec![device.clone()], &ways, Some(arrival))
    }

    fn load(
        devices: Vec<Device>,
        outputs: &[(&Template, Output)],
        arrival: Option<Ingress>,
    ) -> Result<Generator, GeneratorError> {
        let spec = MapSpec {
            mmapable: true,
            ..MapSpec::array(shared::BYTES, 1)
        };
        let map = Map::create("generator", &spec)?;
        let slot = arrival.as_ref().and_then(Ingress::slot);
        let maps = [Some(&map), slot].into_iter().flatten();
        let maps: Vec<_> = maps.map(AsFd::as_fd).collect();
        let insns = program(outputs);
        let load = |frags| {
            let load = Load {
                name: "generator",
                maps: &maps,
                frags,
                ..Load::new(ProgramType::Xdp)
            };
            Program::load(&insns, &load)
        };
        // Programs that tail-call each other must agree on it, and the kernel
        // does not report the attached program's setting.
        let program = match load(false) {
            Err(_) if slot.is_some() => load(true)?,
            loaded => loaded?,
        };
        let frame = outputs.first().map(|(template, _)| template.frame.clone());
        Ok(Generator(Arc::new(Inner {
            program,
            shared: Shared(map.map_memory(true)?),
            frame: frame.unwrap_or_default(),
            devices,
            arrival,
            realtime: AtomicBool::new(false),
            cpu: AtomicUsize::new(ANY_CPU),
            batch: AtomicU32::new(0),
        })))
    }

    /// Sends with real-time priority from now on, for measurements on a machine
    /// with other load: the sending CPU does nothing else, except for a
    /// twentieth of each second.
    pub fn realtime(self) -> Generator {
        self.0.realtime.store(true, Ordering::Relaxed);
        self
    }

    /// Sends on that CPU from now on.
    pub fn on_cpu(self, cpu: usize) -> Generator {
        self.0.cpu.store(cpu, Ordering::Relaxed);
        self
    }

    /// Sends each frame separately from now on. By default a frame waits for
    /// the end of a batch of 64 program runs, a few microseconds, which makes
    /// the generator fast.
    pub fn unbatched(self) -> Generator {
        self.0.batch.store(1, Ordering::Relaxed);
        self
    }

    /// Sends exactly `count` frames and waits for the end.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn send(&mut self, count: u64, rate: Rate) -> Result<Sent, GeneratorError> {
        self.start(count, rate)?.wait()
    }

    /// Starts to send `count` frames on a new thread; `u64::MAX` for no end.
    ///
    /// The first frame leaves some milliseconds later, because of the kernel's
    /// preparations.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn start(&mut self, count: u64, rate: Rate) -> Result<Sending<'_>, GeneratorError> {
        self.0.prepare(count, rate)?;
        let inner = Arc::clone(&self.0);
        let thread = Builder::new().name("generator".to_owned());
        let worker = thread.spawn(move || inner.run())?;
        Ok(Sending {
            generator: self,
            worker: Some(worker),
        })
    }

    /// Number of frames sent since the generator was created: the number of the
    /// next frame.
    pub fn sent(&self) -> u64 {
        self.0.sent()
    }
}

impl Inner {
    fn sent(&self) -> u64 {
        self.shared.get(shared::SENT)
    }

    fn prepare(&self, count: u64, rate: Rate) -> Result<(), GeneratorError> {
        let interval = match rate {
            Rate::Flat => 0,
            Rate::PerSecond(rate) if rate > 0.0 && rate <= RATE_MAX => {
                (65_536e9 / rate).round() as u64
            }
            Rate::PerSecond(rate) => return Err(GeneratorError::Rate { rate }),
        };
        let burst = (u128::from(interval) * u128::from(BURST_FRAMES_MAX)) >> 16;
        let credit = burst.max(CREDIT_MIN.as_nanos());
        let (shared, sent) = (&self.shared, self.sent());
        shared.set(shared::INTERVAL, interval);
        shared.set(shared::CREDIT, u64::try_from(credit).unwrap_or(u64::MAX));
        shared.set(shared::UNTIMED, self.untimed(interval));
        shared.set(shared::START, 0);
        shared.set(shared::FIRST, sent);
        shared.set(shared::PUT_OFF, 0);
        shared.set(shared::BEGUN, 0);
        shared.set(shared::ENDED, 0);
        shared.set(shared::LIMIT, sent.saturating_add(count));
        Ok(())
    }

    /// The mask of frame numbers for which the clock is not read.
    fn untimed(&self, interval: u64) -> u64 {
        if self.batch.load(Ordering::Relaxed) == 1 {
            return 0;
        }
        let fit = (UNTIMED.as_nanos() as u64) << 16;
        let frames = fit.checked_div(interval).unwrap_or(1);
        // Rounded down to a power of two, so that a mask suffices.
        (1 << frames.clamp(1, UNTIMED_FRAMES_MAX).ilog2()) - 1
    }

    /// Sends up to the limit.
    fn run(&self) -> Result<Sent, GeneratorError> {
        self.devices[0].host().enter()?;
        thread::allow_call_back()?;
        if self.realtime.load(Ordering::Relaxed) {
            affinity::set_realtime(None, true)?;
        }
        match self.cpu.load(Ordering::Relaxed) {
            ANY_CPU => {}
            cpu => affinity::pin(None, cpu)?,
        }
        let before = self.carried()?;
        let ran = thread_time();
        let interval = self.shared.get(shared::INTERVAL);
        if Duration::from_nanos(interval >> 16) < SLEEP_MIN {
            self.spin(interval)?;
        } else {
            self.sleep(interval)?;
        }
        let ran = thread_time().saturating_sub(ran);
        let frames = self.sent() - self.shared.get(shared::FIRST);
        let (carried, dropped) = match self.arrival {
            Some(_) => (frames, 0),
            None => self.taken(before, frames)?,
        };
        if carried == 0 && dropped == 0 && frames > 0 {
            let device = self.devices[0].name().to_owned();
            return Err(GeneratorError::NotTaken { device });
        }
        let [begun, ended] = [shared::BEGUN, shared::ENDED].map(|at| self.shared.get(at));
        // The last frame also has an interval.
        let nanos = ended.saturating_sub(begun) + (interval >> 16);
        Ok(Sent {
            frames,
            dropped,
            elapsed: Duration::from_nanos(nanos),
            ran,
            put_off: Duration::from_nanos(self.shared.get(shared::PUT_OFF)),
        })
    }

    /// As few system calls as possible: each waits for two RCU grace periods of
    /// some milliseconds.
    fn spin(&self, interval: u64) -> Result<(), GeneratorError> {
        loop {
            let limit = self.shared.get(shared::LIMIT);
            let left = limit.saturating_sub(self.sent());
            if left == 0 && self.shared.get(shared::ENDED) != 0 {
                return Ok(());
            }
            // A further run records the end. The number of runs needed for
            // waiting is unknown: the waiting thread interrupts the call.
            let runs = match interval {
                0 => left.saturating_add(1),
                _ => u64::MAX,
            };
            self.runs(u32::try_from(runs).unwrap_or(u32::MAX))?;
        }
    }

    /// One run for each frame, with sleeps in between. A single run waits for
    /// no grace period.
    fn sleep(&self, interval: u64) -> Result<(), GeneratorError> {
        let start = Instant::now();
        let first = self.shared.get(shared::FIRST);
        while self.shared.get(shared::ENDED) == 0 {
            let due = u128::from(self.sent() - first) * u128::from(interval);
            let due = Duration::from_nanos((due >> 16) as u64)
                + Duration::from_nanos(self.shared.get(shared::PUT_OFF));
            let left = due.saturating_sub(start.elapsed());
            // Sleeps are limited, so that the generator can be stopped.
            if self.sent() < self.shared.get(shared::LIMIT) && !left.is_zero() {
                std::thread::sleep(left.min(Duration::from_millis(10)));
                if left > Duration::from_millis(10) {
                    continue;
                }
            }
            self.runs(1)?;
        }
        Ok(())
    }

    fn runs(&self, repeat: u32) -> Result<(), GeneratorError> {
        Ok(self.program.run_live(&LiveRun {
            frame: &self.frame,
            repeat,
            batch: self.batch.load(Ordering::Relaxed),
            ifindex: self.arrival.as_ref().map(Ingress::ifindex),
        })?)
    }

    /// Frames that the links have carried and dropped so far.
    fn carried(&self) -> Result<(u64, u64), GeneratorError> {
        let mut carried = (0, 0);
        for device in &self.devices {
            let now = device.counters()?;
            carried.0 += now.tx_frames;
            carried.1 += now.tx_dropped;
        }
        Ok(carried)
    }

    /// Frames that the links have carried and dropped since `before`, once all
    /// of them are counted: the other end may still be receiving the last ones.
    fn taken(&self, before: (u64, u64), frames: u64) -> Result<(u64, u64), GeneratorError> {
        let mut taken = (0, 0);
        for _ in 0..50 {
            let now = self.carried()?;
            taken = (now.0 - before.0, now.1 - before.1);
            if taken.0 + taken.1 >= frames {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(taken)
    }
}

/// CPU time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A running generator; dropping it stops it.
#[derive(Debug)]
pub struct Sending<'a> {
    generator: &'a mut Generator,
    worker: Option<Worker>,
}

type Worker = JoinHandle<Result<Sent, GeneratorError>>;

impl Sending<'_> {
    /// Frames sent so far.
    pub fn sent(&self) -> u64 {
        let shared = self.shared();
        shared.get(shared::SENT) - shared.get(shared::FIRST)
    }

    /// Whether all frames were sent or sending failed: [`Sending::wait`]
    /// returns the result.
    pub fn is_done(&self) -> bool {
        let ended = self.shared().get(shared::ENDED) != 0;
        ended || self.worker.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops sending.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn stop(mut self) -> Result<Sent, GeneratorError> {
        self.shared().set(shared::LIMIT, 0);
        self.end()
    }

    /// Waits until all frames were sent.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn wait(mut self) -> Result<Sent, GeneratorError> {
        self.end()
    }

    fn end(&mut self) -> Result<Sent, GeneratorError> {
        let worker = self.worker.take().expect("it ends once");
        while self.shared().get(shared::ENDED) == 0 && !worker.is_finished() {
            std::thread::sleep(POLL_INTERVAL);
        }
        // The thread may still be running the program without effect.
        thread::call_back(&worker);
        worker.join().expect("the generator does not panic")
    }

    fn shared(&self) -> &Shared {
        &self.generator.0.shared
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if self.worker.is_some() {
            self.shared().set(shared::LIMIT, 0);
            // A destructor cannot report the error.
            let _ = self.end();
        }
    }
}

/// The fields of [`shared`].
#[derive(Debug)]
struct Shared(MapMemory);

impl Shared {
    fn cell(&self, offset: usize) -> &AtomicU64 {
        let cell = self.0.u64(0, offset);
        cell.expect("the map was made for these numbers")
    }

    fn get(&self, offset: usize) -> u64 {
        self.cell(offset).load(Ordering::Acquire)
    }

    fn set(&self, offset: usize, value: u64) {
        self.cell(offset).store(value, Ordering::Release);
    }
}
