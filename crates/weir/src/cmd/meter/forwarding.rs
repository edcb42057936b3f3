//! Metering of links whose frames this process forwards: `--meter` of `weir bridge` and `weir route`,
//! `[meter]` of the configurations of `weir route` and `weir run`, and `weir meter` with two interfaces.
//!
//! ```text
//!  program at each link: counted ─► gate ─► bridge or router (this process's first thread)
//!          │                                     │ frames lost
//!          └─ cells ─► cut ─► spool ─► ledger ◄──┘ the counter's thread: also lists, RADIUS
//! ```
//!
//! The programs count before the gate, so the counts do not depend on the forwarding thread, nor on
//! this process; but where stages translate, this process says for whom a frame counts that came to it. What the two threads share is a number: frames that were lost here.

use super::counter::Counter;
use super::interfaces::Side;
use super::live::{self, WAIT};
use super::pins::Pins;
use super::watch::Watchers;
use super::{Args, configuration, policies, subscribers};
use crate::error::{CliError, say};
use crate::report::metrics::Metrics;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use weir_apps::chain::BoxConfig;
use weir_apps::router::engine::config::MeterConfig;
use weir_link::names::SystemNames;
use weir_link::net::Interface;
use weir_link::xdp::{Meter, MeterStage, ProcessCounter};
use weir_meter::config::Config;
use weir_meter::{Direction, KeyKind};
use weir_tap::Tap;

pub(crate) use super::counter::Done;
pub(crate) use super::counter::View;

/// Metering of the command's links.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Metering")]
pub(crate) struct MeterArgs {
    /// Meter the links by this configuration of a counter, whose `[[link]]` names
    /// the interfaces on the subscribers' side: docs/reference/counter.md
    #[arg(long, value_name = "FILE")]
    meter: Option<PathBuf>,

    /// Where the usage records are kept, for `weir usage` [default: as `weir
    /// usage` has it]
    #[arg(long, value_name = "FILE", requires = "meter")]
    store: Option<PathBuf>,

    /// Leave the usage records in the spool, for `weir mediate`
    #[arg(long, requires = "meter", conflicts_with = "store")]
    no_store: bool,

    /// Where the usage records are until the store has them [default:
    /// COUNTER.spool beside the store]
    #[arg(long, value_name = "FILE", requires = "meter")]
    spool: Option<PathBuf>,
}

impl MeterArgs {
    /// These options, or `[meter]` of the command's configuration, which is in `folder`.
    pub(crate) fn or(
        self,
        config: Option<&MeterConfig>,
        folder: &Path,
    ) -> Result<MeterArgs, CliError> {
        let Some(meter) = config else {
            return Ok(self);
        };
        if self.meter.is_some() {
            let why = "--meter: the configuration has [meter], too: leave one of them out";
            return Err(CliError::refused(why));
        }
        if meter.no_store && meter.store.is_some() {
            let why = "[meter]: with no_store = true there is no store: leave one of them out";
            return Err(CliError::refused(why));
        }
        let path = |path: &String| folder.join(path);
        Ok(MeterArgs {
            meter: Some(path(&meter.config)),
            store: meter.store.as_ref().map(path),
            no_store: meter.no_store,
            spool: meter.spool.as_ref().map(path),
        })
    }

    fn args(&self) -> Option<Args> {
        let (store, spool) = (self.store.as_deref(), self.spool.as_deref());
        let file = self.meter.as_ref()?;
        Some(Args::live(file, store, spool, self.no_store))
    }

    /// Prepares the counter of these links, if one is asked for. What it does is shown among these
    /// metrics.
    pub(crate) fn start(
        &self,
        links: Links,
        metrics: Option<&Metrics>,
    ) -> Result<Option<Metering>, CliError> {
        let args = self.args();
        let metering = args.map(|args| Metering::start(args, links, metrics.cloned()));
        metering.transpose()
    }

    /// Checks the configuration of the counter of these links, if there is one.
    pub(crate) fn check(&self, links: &Links) -> Result<(), CliError> {
        let Some(args) = self.args() else {
            return Ok(());
        };
        let (config, text) = configuration(&args, &SystemNames::new())?;
        subscribers(&args, &config, &text)?;
        live::supported(&config)?;
        links.check_translated(&config)?;
        links.directions(&config).map(drop)
    }
}

/// The links that are metered, in the order of the tap.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    names: Vec<String>,
    /// The link to the outside, if that is known beside the counter's configuration.
    outside: Option<usize>,
    /// Frames of the outside have the subscribers' addresses behind the stages alone.
    is_translated: bool,
}

impl Links {
    /// Links of which the counter's configuration says on which side they are.
    pub(crate) fn of(interfaces: &[&str]) -> Links {
        Links {
            names: interfaces.iter().map(|&name| name.to_owned()).collect(),
            outside: None,
            is_translated: false,
        }
    }

    /// The links of a chain.
    pub(crate) fn of_chain(config: &BoxConfig) -> Links {
        let links = config.router.links.iter();
        Links {
            names: links.map(|link| link.name.clone()).collect(),
            outside: Some(config.outside),
            is_translated: config.hides_inside(),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    /// Which way the frames go that come in at each link.
    fn directions(&self, config: &Config) -> Result<Vec<Direction>, CliError> {
        let names = self.names();
        let Some(outside) = self.outside else {
            return directions(config, &names);
        };
        let mut known = vec![Direction::Up; names.len()];
        known[outside] = Direction::Down;
        if !config.links.is_empty() && directions(config, &names)? != known {
            return Err(CliError::refused(format!(
                "[[link]]: with outside = \"{}\" all other links are inside: say the same here, or \
                 leave [[link]] out",
                names[outside]
            )));
        }
        Ok(known)
    }

    /// Refuses what cannot be counted of frames whose addresses stages change.
    fn check_translated(&self, config: &Config) -> Result<(), CliError> {
        if !self.is_translated {
            return Ok(());
        }
        if !config.policies.is_empty() {
            return Err(CliError::refused(
                "[policy]: with a stage that translates or protects, frames of the outside have a \
                 subscriber only behind the stages, too late for rates and quotas of the meter: leave \
                 [policy] out; a stage `police` limits all subscribers together",
            ));
        }
        let by_link =
            |kind: &&KeyKind| !matches!(kind, KeyKind::Ipv4 | KeyKind::Ipv6 | KeyKind::Prefix);
        if let Some(kind) = config.keys.iter().find(by_link) {
            return Err(CliError::refused(format!(
                "keys: \"{}\": with a stage that translates or protects, frames of the outside have \
                 the subscriber's address alone: use \"ipv4\", \"ipv6\" and \"prefix\"",
                kind.name()
            )));
        }
        Ok(())
    }
}

/// Takes away the counters that an earlier process has left for these links.
pub(crate) fn clean(interfaces: &[&str]) -> Result<(), CliError> {
    let pins = Pins::of(interfaces)?;
    Meter::unpin(&pins.folder).map_err(CliError::run)
}

/// Which way the frames go that come in at each interface.
pub(super) fn directions(config: &Config, interfaces: &[&str]) -> Result<Vec<Direction>, CliError> {
    let refused = |why: String| Err(CliError::refused(format!("[[link]]: {why}")));
    let all = interfaces.join(", ");
    let mut directions = vec![None; interfaces.len()];
    for link in &config.links {
        if let Some(mirror) = &link.mirror {
            return refused(format!(
                "mirror = \"{mirror}\": that is for `weir meter` alone"
            ));
        }
        let named = [
            ("inside", &link.inside, Direction::Up),
            ("outside", &link.outside, Direction::Down),
        ];
        for (word, name, direction) in named {
            let Some(name) = name else { continue };
            let Some(place) = interfaces.iter().position(|interface| interface == name) else {
                return refused(format!(
                    "{word} = \"{name}\": the interfaces here are {all}: name one of them"
                ));
            };
            if directions[place].is_some_and(|already| already != direction) {
                return refused(format!("{name} is both inside and outside: choose one"));
            }
            directions[place] = Some(direction);
        }
    }
    // The other side of what is named.
    let other = match (
        directions.contains(&Some(Direction::Up)),
        directions.contains(&Some(Direction::Down)),
    ) {
        (false, false) => {
            return refused(format!(
                "say which of {all} is on the subscribers' side: inside = \"{}\"",
                interfaces.first().unwrap_or(&"eth1")
            ));
        }
        (true, _) => Direction::Down,
        (false, true) => Direction::Up,
    };
    let directions: Vec<Direction> = directions
        .into_iter()
        .map(|direction| direction.unwrap_or(other))
        .collect();
    if interfaces.len() == 2 && directions[0] == directions[1] {
        return refused(format!(
            "{all} are both on one side: the other side of a bridge is outside"
        ));
    }
    Ok(directions)
}

/// An event of the forwarding for the counter's thread.
enum ForwardingEvent {
    /// The programs are at the links; whether those of an earlier process counted until then.
    Attached { was_counting: bool },
    /// The forwarding has ended; whether the programs stay.
    Ended { stays: bool },
}

/// A counter beside the forwarding.
pub(crate) struct Metering {
    stages: Vec<MeterStage>,
    /// The link whose frames are counted with the addresses that stages give them.
    translated: Option<usize>,
    events: Sender<ForwardingEvent>,
    thread: JoinHandle<Result<Done, CliError>>,
    lost: Arc<AtomicU64>,
    /// The counter's state as it was shown last.
    shown: Arc<Mutex<View>>,
    is_attached: bool,
    /// That the counter has ended was said.
    is_said: bool,
}

impl Metering {
    /// Starts the counter, up to where frames may be counted.
    pub(super) fn start(
        args: Args,
        links: Links,
        metrics: Option<Metrics>,
    ) -> Result<Metering, CliError> {
        let translated = links.outside.filter(|_| links.is_translated);
        let (events, received) = mpsc::channel();
        let (give, stages) = mpsc::channel();
        let lost = Arc::new(AtomicU64::new(0));
        let losses = Losses {
            now: lost.clone(),
            recorded: 0,
        };
        let shown = Arc::default();
        let watchers = Watchers::new(&args, metrics)?.and_to(&shown);
        let thread = std::thread::Builder::new()
            .name("meter".to_owned())
            .spawn(move || run(&args, &links, losses, watchers, &give, &received))
            .map_err(|error| CliError::run(format!("cannot start the counter: {error}")))?;
        match stages.recv() {
            Ok(stages) => Ok(Metering {
                stages,
                translated,
                events,
                thread,
                lost,
                shown,
                is_attached: false,
                is_said: false,
            }),
            // It has ended.
            Err(_) => match joined(thread) {
                Ok(_) => Err(CliError::run("the counter has ended by itself")),
                Err(error) => Err(error),
            },
        }
    }

    /// The meters of each link.
    pub(crate) fn stages(&self) -> &[MeterStage] {
        &self.stages
    }

    /// What counts frames of the outside link behind the stages, if they are counted there.
    pub(crate) fn process_counter(&self) -> Result<Option<ProcessCounter>, CliError> {
        let stage = self.translated.map(|link| &self.stages[link]);
        let counter = stage.map(ProcessCounter::new).transpose();
        counter.map_err(CliError::run)
    }

    /// To be called when frames flow, and then now and again.
    pub(crate) fn look(&mut self, tap: &Tap) {
        if !std::mem::replace(&mut self.is_attached, true) {
            let was_counting = tap.was_metered();
            // If it has ended, that is said below.
            let _ = self.events.send(ForwardingEvent::Attached { was_counting });
        }
        self.lost.fetch_max(tap.lost_inside(), Ordering::Relaxed);
        if self.thread.is_finished() && !std::mem::replace(&mut self.is_said, true) {
            say(
                "weir: the counter has ended: frames go on, and the kernel counts them; the reason \
                 is said at the end, and the next start records them",
            );
        }
    }

    /// The counter's state, not older than a second; at the [end](Self::end), the last one.
    pub(crate) fn shown(&self) -> Arc<Mutex<View>> {
        self.shown.clone()
    }

    /// Ends the counter with the forwarding, which has left the programs at the links, or not.
    pub(crate) fn end(self, stays: bool) -> Result<Done, CliError> {
        // If the counter has ended, its result is there.
        let _ = self.events.send(ForwardingEvent::Ended { stays });
        joined(self.thread)
    }
}

fn joined(thread: JoinHandle<Result<Done, CliError>>) -> Result<Done, CliError> {
    let ended = thread.join();
    ended.unwrap_or_else(|_| Err(CliError::run("the counter's thread has panicked")))
}

/// Frames lost inside weir, of which records have a part.
#[derive(Debug, Default)]
pub(super) struct Losses {
    now: Arc<AtomicU64>,
    recorded: u64,
}

impl Losses {
    /// Those that no record has.
    pub(super) fn unrecorded(&self) -> u64 {
        self.now
            .load(Ordering::Relaxed)
            .saturating_sub(self.recorded)
    }

    /// The number of them that records have.
    pub(super) fn note(&mut self, count: u64) {
        self.recorded += count;
    }
}

/// The counter's thread.
fn run(
    args: &Args,
    links: &Links,
    losses: Losses,
    mut watchers: Watchers,
    give: &Sender<Vec<MeterStage>>,
    received: &Receiver<ForwardingEvent>,
) -> Result<Done, CliError> {
    // The thread that forwards comes first; cuts and disks can wait.
    let _ = rustix::process::setpriority_process(None, 0);
    let names = SystemNames::new();
    let (config, text) = configuration(args, &names)?;
    let subscribers = subscribers(args, &config, &text)?;
    drop(text);
    let interfaces = links.names();
    let directions = links.directions(&config)?;
    live::supported(&config)?;
    links.check_translated(&config)?;
    live::check_sizes(&config, subscribers.len())?;
    let pins = Pins::of(&interfaces)?;
    let mut counter = Counter::open(args.stores(), &config, &subscribers, &names, pins)?;
    let lost = losses.now.clone();
    counter.losses = losses;
    let source = args.config.as_deref().unwrap_or(Path::new(""));
    let mut sources = live::sources(args, &config, source)?;
    counter.restore(&subscribers, |event| sources.restore(event))?;
    drop(subscribers);
    policies::warn_of_portal(&config);
    let stages = |meter: &Meter| {
        let stage = |way: &Direction| match (links.is_translated, way) {
            (true, Direction::Down) => meter.translated_stage(*way),
            _ => meter.stage(*way),
        };
        directions.iter().map(stage).collect()
    };
    // The receiver waits for them.
    let _ = give.send(counter.with_meter(stages));
    let was_counting = match received.recv() {
        Ok(ForwardingEvent::Attached { was_counting }) => was_counting,
        // The links could not be had. What an earlier process has left goes on.
        Ok(ForwardingEvent::Ended { .. }) | Err(_) => {
            if counter.is_new() {
                Meter::unpin(&counter.pins().folder).map_err(CliError::run)?;
            }
            return Ok(counter.done());
        }
    };
    let sides = interfaces.iter().zip(&directions).map(|(name, way)| {
        let interface = Interface::named(name).map_err(CliError::run)?;
        Ok(Side {
            name: interface.name,
            index: interface.index,
            ingress: Some(*way),
            meters_tx: false,
        })
    });
    let sides = sides.collect::<Result<Vec<_>, CliError>>()?;
    // Where stages translate, the forwarding has done so before the first frame came.
    counter.settle_handed(!links.is_translated)?;
    let running = counter.start(was_counting, sides, sources)?;
    let with_losses = |view| View {
        lost_inside: Some(lost.load(Ordering::Relaxed)),
        ..view
    };
    let stays = loop {
        match received.recv_timeout(WAIT) {
            Err(RecvTimeoutError::Timeout) | Ok(ForwardingEvent::Attached { .. }) => {}
            Ok(ForwardingEvent::Ended { stays }) => break stays,
            // The other thread has panicked: the process ends as after a kill.
            Err(RecvTimeoutError::Disconnected) => break true,
        }
        if running.has_ended() {
            break true;
        }
        watchers.show(|| with_losses(running.view()));
    };
    let (mut counter, ended) = running.stop();
    ended?;
    counter.cut_now()?;
    if !stays {
        counter.cut_rest()?;
        Meter::unpin(&counter.pins().folder).map_err(CliError::run)?;
    }
    counter.deliver()?;
    watchers.end(&with_losses(counter.view(0)))?;
    Ok(counter.done())
}
