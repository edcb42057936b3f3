//! Frames at a rate, by a program in the kernel.

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

/// Frames at least so far apart are slept for in between, one system call
/// each.
const SLEEP_MIN: Duration = Duration::from_micros(500);

/// How often it is looked whether the last frame was sent.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// How long frames may go at once before the clock is read again, which costs
/// a sixth of what sending does. In a batch they leave at once anyway.
const UNTIMED: Duration = Duration::from_micros(4);

/// The most frames that go at once without it: half a batch's.
const UNTIMED_FRAMES_MAX: u64 = 32;

/// How many frames may follow at once on a late one, to keep the rate.
const BURST_FRAMES_MAX: u64 = 64;

/// The least credit: what a slow system call takes.
const CREDIT_MIN: Duration = Duration::from_micros(100);

/// The highest rate that is paced, in frames per second.
const RATE_MAX: f64 = 1e9;

/// How fast to send.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rate {
    /// As fast as it goes.
    Flat,
    /// So many frames per second, evenly spaced; more than 0.
    PerSecond(f64),
}

/// What a generator has sent.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sent {
    /// Frames given to the device.
    pub frames: u64,
    /// How many of them the link dropped, because the other end did not take
    /// them in time.
    pub dropped: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// For how long of this time its thread had a CPU, preparations included.
    /// What receives on that CPU is part of it.
    pub ran: Duration,
    /// For how much of this time the generator was kept from sending, and did
    /// not make up for it: the rate was lower than asked for.
    pub put_off: Duration,
}

impl Sent {
    /// Frames per second.
    pub fn rate(&self) -> f64 {
        self.frames as f64 / self.elapsed.as_secs_f64()
    }
}

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum GeneratorError {
    /// The template makes no sense.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// No rate.
    #[error("{rate} frames per second: the rate must be more than 0 and at most 1e9")]
    Rate {
        /// What was asked for.
        rate: f64,
    },
    /// The other end of the link lets redirected frames fall.
    #[error(
        "the other end of `{device}` takes no redirected frames: attach an XDP program or turn on GRO there"
    )]
    NotTaken {
        /// The device that was to send.
        device: String,
    },
    /// Its numbers could not be shared with the kernel.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Its program was not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its program was not run.
    #[error(transparent)]
    Run(#[from] TestRunError),
    /// The device is gone.
    #[error(transparent)]
    Device(#[from] crate::net::Error),
    /// What is attached to the device was not found out.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The program that is attached to the device was not reached.
    #[error(transparent)]
    Attached(#[from] ObjectError),
    /// It was made for no device, or for devices of several hosts.
    #[error("a generator sends out of devices of one host, and out of one at least")]
    Devices,
    /// No thread for it.
    #[error("the generator's thread: {0}")]
    Thread(#[from] io::Error),
}

/// A source of frames at a device, up to several million a second from one
/// CPU. Numbers of frames count from when it was made, over all its turns.
#[derive(Debug)]
pub struct Generator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    devices: Vec<Device>,
    frame: Vec<u8>,
    program: Program,
    shared: Shared,
    /// Where frames come in, if they are not sent out.
    arrival: Option<Ingress>,
    realtime: AtomicBool,
    /// The CPU to run on, or [`ANY_CPU`].
    cpu: AtomicUsize,
    batch: AtomicU32,
}

/// No CPU in particular.
const ANY_CPU: usize = usize::MAX;

impl Generator {
    /// A generator of a template's frames, sent out of a device.
    ///
    /// # Errors
    /// For a template that cannot be sent, and without privilege.
    pub fn new(
        device: &Device,
        template: impl Into<Template>,
    ) -> Result<Generator, GeneratorError> {
        Generator::in_turn(&[(device, template.into())])
    }

    /// A generator that sends a frame of each template in turn, each out of
    /// its own device of one host. The frames have one length, and are alike
    /// from their 65th byte on.
    ///
    /// # Errors
    /// As [`Generator::new`].
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

    /// A generator of frames that come into a device, without another one that
    /// sends them and without what its driver does: each goes to the XDP
    /// program that is attached to the driver now, which does with it as it
    /// would have done there, or where there is none up to the host. It is the
    /// cheapest way to have a frame received.
    ///
    /// Nothing that the device itself counts or drops is seen.
    ///
    /// # Errors
    /// As [`Generator::new`].
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
        // Programs that call each other must agree on it, and the kernel does
        // not tell what the attached one says.
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

    /// Sends with real-time priority from now on, for measurements on a
    /// machine that does other things too: the CPU that sends does nothing
    /// else, but for a twentieth of each second.
    pub fn realtime(self) -> Generator {
        self.0.realtime.store(true, Ordering::Relaxed);
        self
    }

    /// Sends from that CPU from now on.
    pub fn on_cpu(self, cpu: usize) -> Generator {
        self.0.cpu.store(cpu, Ordering::Relaxed);
        self
    }

    /// Lets each frame go by itself from now on. Otherwise a frame waits for
    /// the end of a batch of 64 runs of the program, a few microseconds, which
    /// is what makes a generator quick.
    pub fn unbatched(self) -> Generator {
        self.0.batch.store(1, Ordering::Relaxed);
        self
    }

    /// Sends exactly `count` frames, and waits until it is done.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn send(&mut self, count: u64, rate: Rate) -> Result<Sent, GeneratorError> {
        self.start(count, rate)?.wait()
    }

    /// Starts to send `count` frames on a thread of its own; `u64::MAX` for
    /// no end.
    ///
    /// The first frame leaves some milliseconds later: the kernel prepares.
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

    /// Frames sent since it was made, which is the number of the next.
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

    /// The bits of the numbers of frames that follow another one at once.
    fn untimed(&self, interval: u64) -> u64 {
        if self.batch.load(Ordering::Relaxed) == 1 {
            return 0;
        }
        let fit = (UNTIMED.as_nanos() as u64) << 16;
        let frames = fit.checked_div(interval).unwrap_or(1);
        // The greatest power of two, so that bits tell.
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
        // The last frame has its interval too.
        let nanos = ended.saturating_sub(begun) + (interval >> 16);
        Ok(Sent {
            frames,
            dropped,
            elapsed: Duration::from_nanos(nanos),
            ran,
            put_off: Duration::from_nanos(self.shared.get(shared::PUT_OFF)),
        })
    }

    /// As few system calls as can be: each waits twice for the kernel's grace
    /// period, some milliseconds.
    fn spin(&self, interval: u64) -> Result<(), GeneratorError> {
        loop {
            let limit = self.shared.get(shared::LIMIT);
            let left = limit.saturating_sub(self.sent());
            if left == 0 && self.shared.get(shared::ENDED) != 0 {
                return Ok(());
            }
            // One more run notes the end. How many runs it takes to wait is
            // not known: whoever waits for this calls back.
            let runs = match interval {
                0 => left.saturating_add(1),
                _ => u64::MAX,
            };
            self.runs(u32::try_from(runs).unwrap_or(u32::MAX))?;
        }
    }

    /// One run for each frame, and sleep in between. A single run waits for
    /// nothing.
    fn sleep(&self, interval: u64) -> Result<(), GeneratorError> {
        let start = Instant::now();
        let first = self.shared.get(shared::FIRST);
        while self.shared.get(shared::ENDED) == 0 {
            let due = u128::from(self.sent() - first) * u128::from(interval);
            let due = Duration::from_nanos((due >> 16) as u64)
                + Duration::from_nanos(self.shared.get(shared::PUT_OFF));
            let left = due.saturating_sub(start.elapsed());
            // Not for longer at once, so that it can be stopped.
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

    /// Frames that the links have carried and dropped since then, as soon as
    /// all are there: the other end may still be taking the last ones.
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

/// What the calling thread has run.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A generator at work. Dropped, it stops.
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

    /// Whether all is sent, or it has failed: [`Sending::wait`] tells.
    pub fn is_done(&self) -> bool {
        let ended = self.shared().get(shared::ENDED) != 0;
        ended || self.worker.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops it.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn stop(mut self) -> Result<Sent, GeneratorError> {
        self.shared().set(shared::LIMIT, 0);
        self.end()
    }

    /// Waits until all is sent.
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
        // It may still be running the program for nothing.
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
            // Nobody is there to hear of an error.
            let _ = self.end();
        }
    }
}

/// The numbers of [`shared`].
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
