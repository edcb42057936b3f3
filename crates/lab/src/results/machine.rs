//! The machine of a measurement.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;

/// A machine at the time of a measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The properties that do not change between runs.
    #[serde(flatten)]
    pub platform: Platform,
    /// Load average of the last minute when the bench started; see
    /// proc_loadavg(5).
    pub load: f64,
}

/// The properties of a machine that determine its results.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Platform {
    /// The kernel release, as of uname(2).
    pub kernel: String,
    /// The CPU model, or the architecture if Linux reports no model.
    pub cpu: String,
    /// Number of online CPUs.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
}

impl Machine {
    /// This machine. Properties that procfs does not show are empty or 0.
    pub fn this() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let load = read("/proc/loadavg");
        let load = load.split_whitespace().next();
        Machine {
            platform: Platform::of(
                &read("/proc/sys/kernel/osrelease"),
                &read("/proc/cpuinfo"),
                &read("/proc/meminfo"),
            ),
            load: load.and_then(|load| load.parse().ok()).unwrap_or_default(),
        }
    }
}

impl Platform {
    fn of(release: &str, cpuinfo: &str, meminfo: &str) -> Platform {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let model = fields.find(|(name, _)| name.trim() == "model name");
        let cores = cpuinfo.lines().filter(|line| {
            let name = line.split(':').next().unwrap_or_default();
            name.trim() == "processor"
        });
        let total = meminfo.lines().find_map(|line| {
            let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?;
            kib.trim().parse::<u64>().ok()
        });
        Platform {
            kernel: release.trim().to_owned(),
            cpu: model
                .map_or(std::env::consts::ARCH, |(_, model)| model.trim())
                .to_owned(),
            cores: cores.count(),
            memory: total.unwrap_or_default() * 1024,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Platform {
            kernel,
            cpu,
            cores,
            memory,
        } = self;
        let gib = *memory as f64 / f64::from(1 << 30);
        write!(f, "{cores} × {cpu}, {gib:.0} GiB, Linux {kernel}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read_from_procfs() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A Processor: fast\n\n\
                       processor\t: 1\nmodel name\t: A Processor: fast\n";
        let platform = Platform::of("6.18.0\n", cpuinfo, "MemTotal:       24610000 kB\n");
        assert_eq!(
            platform.to_string(),
            "2 × A Processor: fast, 23 GiB, Linux 6.18.0"
        );
        let arm = Platform::of("6.18.0\n", "processor\t: 0\nCPU part\t: 0xd0c\n", "");
        assert_eq!(
            (arm.cpu.as_str(), arm.cores, arm.memory),
            (std::env::consts::ARCH, 1, 0)
        );
        let this = Machine::this();
        assert!(
            this.platform.cores > 0 && this.platform.memory > 0 && !this.platform.kernel.is_empty()
        );
    }
}
