//! The SAs and policies of a stage `ipsec` that the kernel's databases have: an IKE daemon puts them there.

use crate::error::{CliError, say};
use std::collections::HashSet;
use std::io;
use std::time::Duration;
use weir_chain::ipsec::Reload;
use weir_esp::Config;
use weir_esp::negotiated::Mapper;
use weir_esp::xfrm::Database;
use weir_link::net::{XfrmMonitor, XfrmNews};

/// Time after which a query that failed is made again.
const AGAIN: Duration = Duration::from_secs(1);

/// Lines about what is refused that are remembered, so that each is said once.
const SAID_MAX: usize = 4096;

/// The frames that a host with an IKE daemon keeps: those of IKE, and not ESP in UDP (RFC 3948 §2.2).
pub(super) const HOST: &str = "[\"udp port 500\", \"udp port 4500 and udp[8:4] = 0\", \
                               \"ip6 and udp port 4500 and ip6[48:4] = 0\"]";

/// The kernel's databases as the source of a stage's SAs.
pub(super) struct KernelSas {
    pub(super) mtu: usize,
    pub(super) reload: Reload,
}

fn failed(error: &io::Error) -> CliError {
    CliError::run(format!(
        "cannot read the kernel's SAs: {error}; it needs CAP_NET_ADMIN, and a kernel with CONFIG_XFRM_USER"
    ))
}

/// All of the databases.
fn all(monitor: &XfrmMonitor) -> io::Result<Database> {
    let mut database = Database::default();
    for message in monitor.dump()? {
        database.take(message.kind, &message.content);
    }
    Ok(database)
}

impl KernelSas {
    /// The SAs and policies as they are now.
    pub(super) fn read(&self) -> Result<Config, CliError> {
        let read = || all(&XfrmMonitor::open()?);
        let database = read().map_err(|error| failed(&error))?;
        Ok(database.config(&mut Mapper::default(), self.mtu))
    }

    /// Follows the databases on a thread, as long as the process lives.
    pub(super) fn watch(self) -> Result<(), CliError> {
        // Before the query, so that no change is missed.
        let monitor = XfrmMonitor::open().map_err(|error| failed(&error))?;
        let follow = move || self.follow(&monitor);
        let thread = std::thread::Builder::new()
            .name("weir-sas".into())
            .spawn(follow);
        thread
            .map(drop)
            .map_err(|error| CliError::run(format!("cannot start a thread: {error}")))
    }

    fn follow(&self, monitor: &XfrmMonitor) {
        let mut database = Database::default();
        let mut mapper = Mapper::default();
        let mut said = Said::default();
        let mut news = XfrmNews::Lost;
        loop {
            let is_changed = match news {
                XfrmNews::Messages(messages) => {
                    let taken = messages
                        .iter()
                        .map(|it| database.take(it.kind, &it.content));
                    taken.filter(|is_change| *is_change).count() > 0
                }
                XfrmNews::Lost => match all(monitor) {
                    Ok(read) => {
                        database = read;
                        true
                    }
                    Err(error) => {
                        said.say(&failed(&error).to_string());
                        std::thread::sleep(AGAIN);
                        news = XfrmNews::Lost;
                        continue;
                    }
                },
            };
            if is_changed {
                let config = database.config(&mut mapper, self.mtu);
                config.refused.iter().for_each(|why| said.say(why));
                self.reload.put(config);
            }
            // After an error notifications may be missing, too.
            news = monitor.next().unwrap_or_else(|error| {
                said.say(&failed(&error).to_string());
                std::thread::sleep(AGAIN);
                XfrmNews::Lost
            });
        }
    }
}

/// What was said about what is refused.
#[derive(Default)]
pub(super) struct Said(HashSet<String>);

impl Said {
    /// Says a line, unless it was said before.
    pub(super) fn say(&mut self, why: &str) {
        if self.0.len() >= SAID_MAX {
            self.0.clear();
        }
        if self.0.insert(why.to_owned()) {
            say(&format!("weir: ipsec: {why}"));
        }
    }
}
