//! The configuration of a scheduler, and its errors.

/// Largest number of classes.
pub const CLASSES_MAX: usize = 65_536;

/// Largest number of queues of flows in a class with FQ-CoDel.
pub const FLOWS_MAX: u32 = 65_536;

/// Largest weight of a class.
pub const WEIGHT_MAX: u32 = 65_536;

/// Largest rate in bytes per second: 1 Tb/s.
pub const RATE_MAX: u64 = 125_000_000_000;

/// Limits of a queue; a frame that exceeds either is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Frames.
    pub frames: u32,
    /// Bytes.
    pub bytes: u64,
}

impl Default for Limit {
    /// 1,000 frames, as a Linux interface, and 1.5 MB.
    fn default() -> Limit {
        Limit {
            frames: 1_000,
            bytes: 1_500_000,
        }
    }
}

/// Random early detection (Floyd and Jacobson 1993). Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RedConfig {
    /// The queue's hard limit.
    pub limit: Limit,
    /// Average size below which no frame is marked.
    pub min: u64,
    /// Average size from which each frame is dropped.
    pub max: u64,
    /// Probability of a mark when the average reaches `max`.
    pub probability: f64,
    /// Weight of a new size in the average.
    pub weight: f64,
    /// Whether ECN-capable frames are marked instead of dropped while the average is
    /// below `max`.
    pub is_ecn: bool,
}

impl Default for RedConfig {
    /// Thresholds of 75 and 225 kB; probability 0.02 and weight 0.002, as in the paper.
    fn default() -> RedConfig {
        RedConfig {
            limit: Limit::default(),
            min: 75_000,
            max: 225_000,
            probability: 0.02,
            weight: 0.002,
            is_ecn: true,
        }
    }
}

/// Controlled delay (RFC 8289). Times are in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoDelConfig {
    /// The queue's hard limit.
    pub limit: Limit,
    /// The acceptable time in a standing queue.
    pub target: u64,
    /// The time for which the queue may exceed it: about a round trip.
    pub interval: u64,
    /// Whether ECN-capable frames are marked instead of dropped.
    pub is_ecn: bool,
}

impl Default for CoDelConfig {
    /// 5 and 100 ms (RFC 8289 §4.2, §4.3).
    fn default() -> CoDelConfig {
        CoDelConfig {
            limit: Limit::default(),
            target: 5_000_000,
            interval: 100_000_000,
            is_ecn: true,
        }
    }
}

/// FQ-CoDel (RFC 8290).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FqCodelConfig {
    /// CoDel of each flow's queue. The limit is that of all flows together.
    pub codel: CoDelConfig,
    /// Number of flows' queues.
    pub flows: u32,
    /// Bytes that a flow may send in its turn.
    pub quantum: u32,
}

impl Default for FqCodelConfig {
    /// 1,024 queues, 1,514 bytes, 10,240 frames and 32 MB (RFC 8290 §5.2).
    fn default() -> FqCodelConfig {
        let limit = Limit {
            frames: 10_240,
            bytes: 32 << 20,
        };
        FqCodelConfig {
            codel: CoDelConfig {
                limit,
                ..CoDelConfig::default()
            },
            flows: 1_024,
            quantum: 1_514,
        }
    }
}

/// The queue of a class.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Discipline {
    /// In order of arrival, with a limit alone.
    Fifo(Limit),
    /// Random early detection.
    Red(RedConfig),
    /// Controlled delay.
    CoDel(CoDelConfig),
    /// A queue a flow, each with CoDel.
    FqCodel(FqCodelConfig),
}

/// The order in which classes are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The class with the least index first; weights are not used.
    Priority,
    /// Deficit round robin: in each round a class may send its weight times 1,514 bytes.
    Drr,
    /// Weighted fair queueing: a frame leaves at most the time of one largest frame
    /// later than it would if the link served all classes at once by their weights.
    /// Not with [`Discipline::FqCodel`], which reorders the frames of a class.
    Wfq,
}

/// A class of frames.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Class {
    /// The share of the link, relative to those of the other classes.
    pub weight: u32,
    /// The queue.
    pub discipline: Discipline,
    /// The most that the class gets of the link, even if the link is free.
    pub ceiling: Option<Ceiling>,
}

/// A rate that a class does not exceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ceiling {
    /// Bytes per second.
    pub rate: u64,
    /// Bytes that may leave at once after a pause, beyond one frame.
    pub burst: u64,
}

/// The configuration of a [`Scheduler`](crate::Scheduler).
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The link's rate in bytes per second.
    pub rate: u64,
    /// Bytes that may leave at once after a pause, beyond one frame.
    pub burst: u64,
    /// The order among classes.
    pub order: Order,
    /// The classes.
    pub classes: Vec<Class>,
}

impl Config {
    /// A link of `rate` bytes per second without classes, and without a burst.
    pub fn new(rate: u64, order: Order) -> Config {
        Config {
            rate,
            burst: 0,
            order,
            classes: Vec::new(),
        }
    }

    /// Adds a class with this weight, and without a ceiling.
    pub fn class(&mut self, weight: u32, discipline: Discipline) -> &mut Config {
        self.classes.push(Class {
            weight,
            discipline,
            ceiling: None,
        });
        self
    }

    /// Whether a scheduler can be made of it.
    ///
    /// # Errors
    /// The first value that is refused.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.rate == 0 || self.rate > RATE_MAX {
            return Err(ConfigError::Rate(self.rate));
        }
        if self.burst > RATE_MAX {
            return Err(ConfigError::Burst(self.burst));
        }
        if self.classes.is_empty() || self.classes.len() > CLASSES_MAX {
            return Err(ConfigError::Classes(self.classes.len()));
        }
        for (class, found) in self.classes.iter().enumerate() {
            let Class {
                weight,
                discipline,
                ceiling,
            } = found;
            if *weight == 0 || *weight > WEIGHT_MAX {
                return Err(ConfigError::Weight(class, *weight));
            }
            discipline.check(class)?;
            if let Some(Ceiling { rate, burst }) = *ceiling
                && (rate == 0 || rate > RATE_MAX || burst > RATE_MAX)
            {
                return Err(ConfigError::Ceiling { class, rate, burst });
            }
            if self.order == Order::Wfq && matches!(discipline, Discipline::FqCodel(_)) {
                return Err(ConfigError::Reorders(class));
            }
        }
        Ok(())
    }
}

impl Discipline {
    fn check(&self, class: usize) -> Result<(), ConfigError> {
        let value = |what, value: f64| Err(ConfigError::Value { class, what, value });
        let limit = match self {
            Discipline::Fifo(limit) => limit,
            Discipline::Red(red) => {
                if red.min == 0 || red.max <= red.min {
                    return value(
                        "the upper threshold, not above the lower one,",
                        red.max as f64,
                    );
                }
                if !(red.probability > 0.0 && red.probability <= 1.0) {
                    return value("the probability, not in (0, 1],", red.probability);
                }
                if !(red.weight > 0.0 && red.weight <= 1.0) {
                    return value("the average's weight, not in (0, 1],", red.weight);
                }
                &red.limit
            }
            Discipline::CoDel(codel) => codel.check(class)?,
            Discipline::FqCodel(fq) => {
                if fq.flows == 0 || fq.flows > FLOWS_MAX {
                    return value("the number of flows, not in 1 to 65,536,", fq.flows.into());
                }
                if fq.quantum == 0 {
                    return value("the quantum", 0.0);
                }
                fq.codel.check(class)?
            }
        };
        if limit.frames == 0 || limit.bytes == 0 {
            return value("the limit", 0.0);
        }
        Ok(())
    }
}

impl CoDelConfig {
    fn check(&self, class: usize) -> Result<&Limit, ConfigError> {
        if self.target == 0 || self.interval <= self.target {
            return Err(ConfigError::Value {
                class,
                what: "the interval in ns, not above the target,",
                value: self.interval as f64,
            });
        }
        Ok(&self.limit)
    }
}

/// Why a [`Config`] is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A rate that is not in 1 to [`RATE_MAX`].
    #[error("a rate of {0} bytes per second: it must be 1 to {RATE_MAX}")]
    Rate(u64),
    /// A burst above [`RATE_MAX`].
    #[error("a burst of {0} bytes: it may be {RATE_MAX} at most")]
    Burst(u64),
    /// No class, or more than [`CLASSES_MAX`].
    #[error("{0} classes: there must be 1 to {CLASSES_MAX}")]
    Classes(usize),
    /// A weight that is not in 1 to [`WEIGHT_MAX`].
    #[error("class {0} has the weight {1}: it must be 1 to {WEIGHT_MAX}")]
    Weight(usize, u32),
    /// A ceiling whose rate is not in 1 to [`RATE_MAX`], or whose burst is above it.
    #[error(
        "class {class} has a ceiling of {rate} bytes per second with a burst of {burst} bytes: the rate must be 1 to {RATE_MAX}, the burst {RATE_MAX} at most"
    )]
    Ceiling {
        /// The class.
        class: usize,
        /// Bytes per second.
        rate: u64,
        /// Bytes.
        burst: u64,
    },
    /// Another value of a class's queue.
    #[error("class {class}: {what} is {value}")]
    Value {
        /// The class.
        class: usize,
        /// The value's name, with what it is not.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// FQ-CoDel under weighted fair queueing.
    #[error(
        "class {0} has FQ-CoDel, which reorders frames: weighted fair queueing needs FIFO, RED or CoDel; or choose deficit round robin"
    )]
    Reorders(usize),
}
