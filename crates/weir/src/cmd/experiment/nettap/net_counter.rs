//! NetCounter: a bridge of weir that counts, with a configuration and a store of its own.

use crate::error::CliError;
use std::fmt::{Display, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use weir_ledger::{Ledger, UsageQuery};
use weir_meter::OwnerKind;

/// Subscribers in the counter's list: the first one sends.
const SUBSCRIBERS: u8 = 250;
/// The network of the tester's first end (RFC 2544 C.2.2), and the host that sends.
const NETWORK: &str = "198.18.0";
const FIRST: u8 = 2;
const CONFIG: &str = "counter.toml";

/// The folder of the counters, which goes with this value.
#[derive(Debug)]
pub(super) struct NetCounter(PathBuf);

impl Drop for NetCounter {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn failed(error: impl Display) -> CliError {
    CliError::run(error)
}

impl NetCounter {
    pub(super) fn new() -> Result<NetCounter, CliError> {
        let name = format!("weir-netcounter-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder)
            .map_err(|error| failed(format!("cannot make {}: {error}", folder.display())))?;
        let counter = NetCounter(folder);
        // The last table is that of the link; its interface is known when it is made.
        let config = "counter = \"netcounter\"\nperiod = \"1s\"\nsubscribers = \"subscribers.csv\"\n\
             [services]\nweb = { tcp = [80, 443], udp = [443] }\n\
             dns = { tcp = [53], udp = [53] }\necho = { tcp = [7], udp = [7] }\n[[link]]\n";
        let mut list = String::from("subscriber,key\n");
        for number in 0..SUBSCRIBERS {
            let _ = writeln!(list, "subscriber-{number},{NETWORK}.{}", number + FIRST);
        }
        fs::write(counter.0.join(CONFIG), config).map_err(failed)?;
        fs::write(counter.0.join("subscribers.csv"), list).map_err(failed)?;
        Ok(counter)
    }

    /// The command of a bridge between `{a}` and `{b}`, the subscribers beyond `{a}`.
    pub(super) fn command(&self) -> Result<String, CliError> {
        let this = std::env::current_exe().map_err(failed)?;
        let quoted = |path: &Path| {
            let text = path.to_string_lossy().into_owned();
            let quoted = shlex::try_quote(&text).map_err(failed)?;
            Ok::<String, CliError>(quoted.into_owned())
        };
        // With the bypass `kernel` nothing stays at the links, or pinned, after the end.
        let script = format!(
            "cd {} && {{ cat {CONFIG}; echo 'inside = \"{{a}}\"'; }} >{{a}}.toml && exec {} bridge \
             {{a}} {{b}} --meter {{a}}.toml --store {{a}}.db --bypass kernel",
            quoted(&self.0)?,
            quoted(&this)?,
        );
        let script = shlex::try_quote(&script).map_err(failed)?;
        Ok(format!("sh -c {script}"))
    }

    /// Packets that the ledgers have for subscribers, and for anything else.
    pub(super) fn counted(&self) -> Result<Counted, CliError> {
        let mut counted = Counted::default();
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "db") {
                continue;
            }
            let ledger = Ledger::open_read(&path).map_err(failed)?;
            let rows = ledger.usage(&UsageQuery::default(), &jiff::tz::TimeZone::UTC);
            for row in rows.map_err(failed)? {
                let packets = row.packets[0] + row.packets[1];
                match row.owner {
                    OwnerKind::Session => counted.attributed += packets,
                    _ => counted.unattributed += packets,
                }
            }
        }
        Ok(counted)
    }
}

/// The counters' records, in packets.
#[derive(serde::Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) attributed: u64,
    pub(super) unattributed: u64,
}
