//! `shape.toml`: two links, and the scheduler of each.
//!
//! ```toml
//! links = ["eth0", "eth1"]
//!
//! [[scheduler]]
//! link = "eth1"                 # what leaves by this link
//! rate = "100M"                 # bits per second
//! order = "priority"
//!
//! [[scheduler.class]]
//! match = "udp dst port 5060"
//! queue = "fifo"
//!
//! [[scheduler.class]]           # the class without a filter gets the rest
//! queue = "fq-codel"
//! by = "source"
//! ```

use super::values::{Number, count, number, number_of, time, wrong};
use serde::Deserialize;
use std::collections::HashSet;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};
use weir_chain::config::ConfigError;
use weir_chain::filter;
use weir_filter::ir::Program;
use weir_filter::lang::expr::Names;
use weir_sched::{
    Ceiling, CoDelConfig, Config, Discipline, FLOWS_MAX, FqCodelConfig, Limit, Order, RedConfig,
    WEIGHT_MAX,
};

/// Largest number of classes of a link.
pub const CLASSES_MAX: usize = 256;

/// Largest number of chunks that wait for a link, and so of its frames.
pub const CHUNKS_MAX: u32 = 65_536;

/// Rates in bits per second.
const RATES: (u64, u64) = (8_000, 1_000_000_000_000);

/// Bursts in bytes.
const BURSTS: (u64, u64) = (0, 1 << 32);

/// The burst that makes up for a process that is late by this time, in ns: as long as the
/// tick of a kernel of 250 Hz.
const LATE: u64 = 4_000_000;

/// Bytes of the longest usual frame.
const FRAME: u64 = 1_514;

/// Bytes of the longest frame.
const FRAME_MAX: u64 = 65_553;

const SECOND: u64 = 1_000_000_000;

/// Frames that share a queue of FQ-CoDel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowBy {
    /// The class has one queue.
    None,
    /// Addresses, protocol and ports.
    Flow,
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

/// A class of frames.
#[derive(Clone, Debug)]
pub struct ClassConfig {
    /// The name in statistics.
    pub name: String,
    /// The class's frames; `None`: all that no other class gets.
    pub filter: Option<Program>,
    /// Flows of its frames.
    pub by: FlowBy,
    /// Where the table begins in the text.
    pub(super) at: usize,
}

/// The scheduler of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Rate, order and queues.
    pub scheduler: Config,
    /// The classes, in order.
    pub classes: Vec<ClassConfig>,
    /// The class without a filter.
    pub rest: usize,
    /// Bytes that each frame takes on the link beside its own.
    pub overhead: u32,
    /// Chunks of the frames that wait, at most.
    pub chunks_max: u32,
    /// Where the table begins in the text.
    pub(super) at: usize,
}

/// Two links, and the scheduler of each; without one, frames leave as they come.
#[derive(Clone, Debug)]
pub struct ShapeConfig {
    /// The names of the links.
    pub links: [String; 2],
    /// The scheduler of what leaves by each.
    pub schedulers: [Option<LinkConfig>; 2],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SchedulerTable {
    link: Spanned<String>,
    rate: Spanned<Number>,
    burst: Option<Spanned<Number>>,
    overhead: Option<Spanned<u64>>,
    order: Option<Spanned<String>>,
    #[serde(default, rename = "class")]
    classes: Vec<Spanned<ClassTable>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ClassTable {
    name: Option<Spanned<String>>,
    #[serde(rename = "match")]
    filter: Option<Spanned<String>>,
    weight: Option<Spanned<u64>>,
    rate: Option<Spanned<Number>>,
    burst: Option<Spanned<Number>>,
    queue: Option<Spanned<String>>,
    by: Option<Spanned<String>>,
    limit: Option<Spanned<u64>>,
    ecn: Option<Spanned<bool>>,
    target: Option<Spanned<String>>,
    interval: Option<Spanned<String>>,
    flows: Option<Spanned<u64>>,
    min: Option<Spanned<Number>>,
    max: Option<Spanned<Number>>,
    probability: Option<Spanned<f64>>,
    average: Option<Spanned<f64>>,
}

/// A rate in bits per second, as text: `"100M"`; `None` if it is none.
pub fn rate(text: &str) -> Option<u64> {
    number(text, RATES.0, RATES.1)
}

/// A number of bytes, as text: `"125k"`; `None` if it is none.
pub fn bytes(text: &str) -> Option<u64> {
    number(text, BURSTS.0, BURSTS.1)
}

impl ShapeConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// The fault and its position.
    pub fn parse(text: &str, names: &dyn Names) -> Result<ShapeConfig, ConfigError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Top {
            links: Spanned<Vec<String>>,
        }
        let mut document = DeTable::parse(text)?;
        let schedulers = document.get_mut().remove("scheduler");
        let top = Top::deserialize(Deserializer::from(document))?;
        let at = top.links.span().start;
        let links: [String; 2] = top.links.into_inner().try_into().map_err(|links: Vec<_>| {
            let found = links.len();
            wrong(
                at,
                format!("{found} links: name two, as in [\"eth0\", \"eth1\"]"),
            )
        })?;
        if links[0] == links[1] {
            let message = format!("links: both are `{}`: name two different ones", links[0]);
            return Err(wrong(at, message));
        }
        let read = schedulers_of(schedulers, &[&links[0], &links[1]], names)?;
        if read.iter().all(Option::is_none) {
            let message = "no [[scheduler]]: write one for a link, with its rate";
            return Err(wrong(at, message));
        }
        let mut read = read.into_iter();
        let mut next = || read.next().flatten();
        Ok(ShapeConfig {
            schedulers: [next(), next()],
            links,
        })
    }

    /// Chunks of memory that frames in queues occupy, at most.
    pub fn chunks_max(&self) -> u32 {
        let schedulers = self.schedulers.iter().flatten();
        schedulers.map(|link| link.chunks_max).sum()
    }
}

/// Reads the tables `[[scheduler]]` of a configuration: one for each of `links`, in order,
/// if it has one.
///
/// # Errors
/// The fault and its position.
pub fn schedulers_of(
    tables: Option<Spanned<DeValue<'_>>>,
    links: &[&str],
    names: &dyn Names,
) -> Result<Vec<Option<LinkConfig>>, ConfigError> {
    let mut read = vec![None; links.len()];
    let Some(tables) = tables else {
        return Ok(read);
    };
    let at = tables.span().start;
    let DeValue::Array(tables) = tables.into_inner() else {
        return Err(wrong(at, "write each scheduler as [[scheduler]]"));
    };
    for value in tables {
        let at = value.span().start;
        let DeValue::Table(table) = value.into_inner() else {
            return Err(wrong(at, "write each scheduler as [[scheduler]]"));
        };
        let table = Spanned::new(at..at, table);
        let table = SchedulerTable::deserialize(Deserializer::from(table))?;
        let (name, at_name) = (table.link.get_ref(), table.link.span().start);
        let Some(number) = links.iter().position(|link| link == name) else {
            let known = links.join(", ");
            let message = format!("link = \"{name}\": it is none of the links: {known}");
            return Err(wrong(at_name, message));
        };
        if read[number].is_some() {
            let message = format!("link = \"{name}\": it has a scheduler already");
            return Err(wrong(at_name, message));
        }
        read[number] = Some(link_of(&table, at, names)?);
    }
    Ok(read)
}

fn link_of(
    table: &SchedulerTable,
    at: usize,
    names: &dyn Names,
) -> Result<LinkConfig, ConfigError> {
    let rate = number_of("rate", &table.rate, RATES, "\"100M\" bits per second")? / 8;
    let order = match &table.order {
        None => Order::Drr,
        Some(order) => match order.get_ref().as_str() {
            "priority" => Order::Priority,
            "drr" => Order::Drr,
            "wfq" => Order::Wfq,
            other => {
                let message =
                    format!("order = \"{other}\": write \"priority\", \"drr\" or \"wfq\"");
                return Err(wrong(order.span().start, message));
            }
        },
    };
    let overhead = table.overhead.as_ref();
    let overhead = overhead.map(|it| count("overhead", it, (0, 1_000)));
    let usual = [Spanned::new(at..at, ClassTable::default())];
    let tables = if table.classes.is_empty() {
        &usual[..]
    } else {
        &table.classes
    };
    let mut link = LinkConfig {
        scheduler: Config::new(rate, order),
        classes: Vec::new(),
        rest: 0,
        overhead: overhead.transpose()?.unwrap_or(0) as u32,
        chunks_max: 0,
        at,
    };
    link.scheduler.burst = burst_of(&table.burst, rate)?;
    if tables.len() > CLASSES_MAX {
        let message = format!("{} classes: a link has at most {CLASSES_MAX}", tables.len());
        return Err(wrong(at, message));
    }
    let mut chunks = 0;
    for class in tables {
        let limit = link.add(class, rate, names)?;
        chunks += u64::from(limit);
    }
    link.chunks_max = chunks.min(CHUNKS_MAX.into()) as u32;
    link.check(tables)?;
    Ok(link)
}

/// A burst in bytes, by default what leaves in [`LATE`] at this rate.
fn burst_of(burst: &Option<Spanned<Number>>, rate: u64) -> Result<u64, ConfigError> {
    let late = u128::from(rate) * u128::from(LATE) / u128::from(SECOND);
    match burst {
        Some(burst) => number_of("burst", burst, BURSTS, "\"125k\" bytes"),
        None => Ok((late as u64).max(2 * FRAME)),
    }
}

impl LinkConfig {
    /// Adds a class; returns the frames that its queue holds.
    fn add(
        &mut self,
        table: &Spanned<ClassTable>,
        rate: u64,
        names: &dyn Names,
    ) -> Result<u32, ConfigError> {
        let (at, table) = (table.span().start, table.get_ref());
        let number = self.classes.len();
        let weight = table.weight.as_ref();
        let weight = weight.map(|it| count("weight", it, (1, WEIGHT_MAX.into())));
        if let (Some(weight), Order::Priority) = (&table.weight, self.scheduler.order) {
            let message = "weight: with order = \"priority\" classes are served in order: leave it out, or choose \"drr\" or \"wfq\"";
            return Err(wrong(weight.span().start, message));
        }
        let own = table.rate.as_ref();
        let own = own.map(|it| number_of("rate", it, RATES, "\"10M\" bits per second"));
        let ceiling = match (own.transpose()?, &table.burst) {
            (None, None) => None,
            (None, Some(burst)) => {
                let message =
                    "burst: write the class's `rate`, too; or give the scheduler the burst";
                return Err(wrong(burst.span().start, message));
            }
            (Some(bits), burst) => Some(Ceiling {
                rate: bits / 8,
                burst: burst_of(burst, bits / 8)?,
            }),
        };
        // Queues are as long as the rate that empties them allows.
        let rate = ceiling.map_or(rate, |ceiling| ceiling.rate.min(rate));
        let (discipline, limit, by) = queue_of(table, self.scheduler.order, rate)?;
        self.scheduler
            .class(weight.transpose()?.unwrap_or(1) as u32, discipline);
        if let Some(class) = self.scheduler.classes.last_mut() {
            class.ceiling = ceiling;
        }
        let filter = table.filter.as_ref().map(|text| {
            let program = filter::program(text.get_ref(), names);
            program.map_err(|error| wrong(text.span().start, format!("match: {error}")))
        });
        let name = table.name.as_ref().map(|name| name.get_ref().clone());
        self.classes.push(ClassConfig {
            name: name.unwrap_or_else(|| number.to_string()),
            filter: filter.transpose()?,
            by,
            at,
        });
        Ok(limit)
    }

    /// Checks what concerns all classes, and finds the one without a filter.
    fn check(&mut self, tables: &[Spanned<ClassTable>]) -> Result<(), ConfigError> {
        let mut known = HashSet::new();
        for (class, table) in self.classes.iter().zip(tables) {
            if !known.insert(&class.name) {
                let at = table.get_ref().name.as_ref();
                let at = at.map_or(class.at, |name| name.span().start);
                let message = format!("name = \"{}\": another class has it", class.name);
                return Err(wrong(at, message));
            }
        }
        let classes = self.classes.iter().enumerate();
        let mut rest = classes.filter(|(_, class)| class.filter.is_none());
        match (rest.next(), rest.next()) {
            (Some((number, _)), None) => {
                self.rest = number;
                Ok(())
            }
            (_, Some((_, second))) => Err(wrong(
                second.at,
                "two classes have no `match`: one class gets what no other one does",
            )),
            (None, _) => Err(wrong(
                self.at,
                "each class has a `match`: write one without, for the frames that no other one gets",
            )),
        }
    }
}

/// The queue of a class that is emptied at `rate` bytes per second, the frames that it
/// holds, and its flows.
fn queue_of(
    table: &ClassTable,
    order: Order,
    rate: u64,
) -> Result<(Discipline, u32, FlowBy), ConfigError> {
    let usual = match order {
        Order::Wfq => "codel",
        Order::Priority | Order::Drr => "fq-codel",
    };
    let kind = table.queue.as_ref().map_or(usual, |queue| queue.get_ref());
    table.refuse_other_keys(kind)?;
    let limit = |usual: u64| match &table.limit {
        Some(limit) => count("limit", limit, (1, CHUNKS_MAX.into())),
        None => Ok(usual),
    };
    let limits = |frames: u64| Limit {
        frames: frames as u32,
        bytes: frames * FRAME_MAX,
    };
    let is_ecn = table.ecn.as_ref().is_none_or(|ecn| *ecn.get_ref());
    let made = match kind {
        "fifo" => (Discipline::Fifo(limits(limit(1_000)?)), limit(1_000)?),
        "codel" => {
            let limit = limit(1_000)?;
            let codel = table.codel(limits(limit), is_ecn, rate)?;
            (Discipline::CoDel(codel), limit)
        }
        "fq-codel" => {
            let limit = limit(10_240)?;
            let flows = table.flows.as_ref();
            let flows = flows.map(|it| count("flows", it, (1, FLOWS_MAX.into())));
            let fq = FqCodelConfig {
                codel: table.codel(limits(limit), is_ecn, rate)?,
                flows: flows.transpose()?.unwrap_or(1_024) as u32,
                ..FqCodelConfig::default()
            };
            (Discipline::FqCodel(fq), limit)
        }
        "red" => {
            let (min, max) = table.thresholds(rate)?;
            let limit = limit((2 * max / FRAME).clamp(1_000, 16_384))?;
            let red = table.red(limits(limit), is_ecn, (min, max))?;
            (Discipline::Red(red), limit)
        }
        other => {
            let at = table.queue.as_ref().map_or(0, |queue| queue.span().start);
            let message =
                format!("queue = \"{other}\": write \"fifo\", \"red\", \"codel\" or \"fq-codel\"");
            return Err(wrong(at, message));
        }
    };
    if let (Discipline::FqCodel(_), Order::Wfq) = (made.0, order) {
        let at = table.queue.as_ref().map_or(0, |queue| queue.span().start);
        let message = "queue = \"fq-codel\": order = \"wfq\" needs a queue that keeps its order: write \"codel\", \"red\" or \"fifo\"; or order = \"drr\"";
        return Err(wrong(at, message));
    }
    Ok((made.0, made.1 as u32, table.by(kind)?))
}

impl ClassTable {
    /// Refuses keys that the kind of queue does not have.
    fn refuse_other_keys(&self, kind: &str) -> Result<(), ConfigError> {
        fn at<T>(key: &Option<Spanned<T>>) -> Option<usize> {
            key.as_ref().map(|key| key.span().start)
        }
        let keys: [(&str, Option<usize>, &[&str]); 9] = [
            ("by", at(&self.by), &["fq-codel"]),
            ("flows", at(&self.flows), &["fq-codel"]),
            ("target", at(&self.target), &["codel", "fq-codel"]),
            ("interval", at(&self.interval), &["codel", "fq-codel"]),
            ("ecn", at(&self.ecn), &["red", "codel", "fq-codel"]),
            ("min", at(&self.min), &["red"]),
            ("max", at(&self.max), &["red"]),
            ("probability", at(&self.probability), &["red"]),
            ("average", at(&self.average), &["red"]),
        ];
        for (key, at, kinds) in keys {
            if let Some(at) = at
                && !kinds.contains(&kind)
            {
                let kinds = kinds.join(" or ");
                let message =
                    format!("{key}: a queue \"{kind}\" has none: leave it out, or choose {kinds}");
                return Err(wrong(at, message));
            }
        }
        Ok(())
    }

    fn by(&self, kind: &str) -> Result<FlowBy, ConfigError> {
        let Some(by) = &self.by else {
            return Ok(match kind {
                "fq-codel" => FlowBy::Flow,
                _ => FlowBy::None,
            });
        };
        match by.get_ref().as_str() {
            "flow" => Ok(FlowBy::Flow),
            "source" => Ok(FlowBy::Source),
            "destination" => Ok(FlowBy::Destination),
            other => {
                let message =
                    format!("by = \"{other}\": write \"flow\", \"source\" or \"destination\"");
                Err(wrong(by.span().start, message))
            }
        }
    }

    /// CoDel whose target is at least the time of a frame (RFC 8289 §4.3).
    fn codel(&self, limit: Limit, is_ecn: bool, rate: u64) -> Result<CoDelConfig, ConfigError> {
        let usual = CoDelConfig::default();
        let frame = FRAME * SECOND / rate;
        let times = (1_000, 100 * SECOND);
        let target = match &self.target {
            Some(target) => time("target", target, times)?,
            None => usual.target.max(frame),
        };
        let interval = match &self.interval {
            Some(interval) => time("interval", interval, times)?,
            None => usual.interval.max(4 * target),
        };
        if interval <= target {
            let at = self.interval.as_ref().or(self.target.as_ref());
            let message = format!(
                "interval = {} us: it must be above the target, {} us",
                interval / 1_000,
                target / 1_000
            );
            return Err(wrong(at.map_or(0, |key| key.span().start), message));
        }
        Ok(CoDelConfig {
            limit,
            target,
            interval,
            is_ecn,
        })
    }

    /// RED's thresholds in bytes: by default 10 ms of the rate and at least five frames
    /// (Floyd and Jacobson 1993 §8), and three times that.
    fn thresholds(&self, rate: u64) -> Result<(u64, u64), ConfigError> {
        let sizes = (1, 1 << 32);
        let read = |key: &str, value: &Option<Spanned<Number>>| {
            let value = value.as_ref();
            let value = value.map(|it| number_of(key, it, sizes, "\"75k\" bytes"));
            value.transpose()
        };
        let (min, max) = (read("min", &self.min)?, read("max", &self.max)?);
        let min = min.unwrap_or((rate / 100).max(5 * FRAME));
        let max = max.unwrap_or(3 * min);
        if max <= min {
            let at = self.max.as_ref().or(self.min.as_ref());
            let message = format!("max = {max}: it must be above min, {min} bytes");
            return Err(wrong(at.map_or(0, |key| key.span().start), message));
        }
        Ok((min, max))
    }

    fn red(
        &self,
        limit: Limit,
        is_ecn: bool,
        (min, max): (u64, u64),
    ) -> Result<RedConfig, ConfigError> {
        let part = |key: &str, value: &Option<Spanned<f64>>, usual: f64| match value {
            None => Ok(usual),
            Some(value) if *value.get_ref() > 0.0 && *value.get_ref() <= 1.0 => {
                Ok(*value.get_ref())
            }
            Some(value) => {
                let message = format!("{key} = {}: write a part of 1, as 0.02", value.get_ref());
                Err(wrong(value.span().start, message))
            }
        };
        let usual = RedConfig::default();
        Ok(RedConfig {
            limit,
            min,
            max,
            probability: part("probability", &self.probability, usual.probability)?,
            weight: part("average", &self.average, usual.weight)?,
            is_ecn,
        })
    }
}
