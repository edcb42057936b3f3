//! Servers of the stages `balance` that change while they run: SIGHUP has weir read the
//! configuration again.

use super::{Source, networks, parse};
use crate::config;
use crate::error::{CliError, say};
use crate::input::read_limited;
use signal_hook::consts::SIGHUP;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use toml::{Table, Value};
use weir_apps::chain::BoxConfig;
use weir_apps::router::engine::config::FILE_BYTES_MAX;
use weir_chain::Reload;
use weir_chain::balance::Server;
use weir_chain::config::Context;
use weir_chain::nat::Prefix;

/// Reads a configuration again at each SIGHUP.
pub(super) struct ServersRereader {
    path: PathBuf,
    /// The configuration without its servers.
    rest: Option<Table>,
    /// Of each stage, where it takes servers from.
    stages: Vec<Option<Reload<Vec<Server>>>>,
    /// Own addresses, as [`Context`] has them.
    networks: Vec<Prefix>,
    is_asked: Arc<AtomicBool>,
}

/// A balancer's way to take servers, and the servers that it is to have.
type Changed<'a> = (&'a Reload<Vec<Server>>, Vec<Server>);

impl ServersRereader {
    /// Begins to watch for the signal; `None` if no stage is a balancer, or the configuration is
    /// of no file.
    pub(super) fn watch(
        source: &Source,
        config: &BoxConfig,
        file: Option<&Path>,
    ) -> Result<Option<ServersRereader>, CliError> {
        let stages = config.stages.iter();
        let stages: Vec<_> = stages
            .map(|stage| stage.servers().map(|(_, reload)| reload.clone()))
            .collect();
        // Standard input or a FIFO cannot be read again.
        let file = file.filter(|path| path.is_file());
        let Some(path) = file.filter(|_| stages.iter().any(Option::is_some)) else {
            return Ok(None);
        };
        let is_asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, Arc::clone(&is_asked))
            .map_err(|error| CliError::run(format!("cannot watch for signals: {error}")))?;
        Ok(Some(ServersRereader {
            path: path.to_owned(),
            rest: without_servers(&source.text),
            stages,
            networks: networks(config),
            is_asked,
        }))
    }

    /// Passes the servers of the changed file to the stages, if a signal asked for that. A file
    /// that is refused changes nothing.
    pub(super) fn look(&self) {
        if !self.is_asked.swap(false, Ordering::Relaxed) {
            return;
        }
        match self.read() {
            Ok(changed) => {
                let count: usize = changed.iter().map(|(_, servers)| servers.len()).sum();
                for (reload, servers) in changed {
                    reload.put(servers);
                }
                let name = self.path.display();
                say(&format!("weir: {name}: read again, servers: {count}"));
            }
            Err(error) => say(&format!("weir: {error}; the earlier servers stay")),
        }
    }

    /// The servers of each balancer.
    fn read(&self) -> Result<Vec<Changed<'_>>, CliError> {
        if self.path.exists() && !self.path.is_file() {
            let name = self.path.display();
            return Err(CliError::run(format!("{name}: it is no file any more")));
        }
        let source = Source {
            name: config::name(&self.path),
            text: read_limited::text(&self.path, FILE_BYTES_MAX)?,
        };
        let config = parse(&source)?;
        if without_servers(&source.text) != self.rest {
            return Err(CliError::refused(format!(
                "{}: more than [[stage.server]] has changed: start weir again for that",
                source.name
            )));
        }
        let mut changed = Vec::new();
        for (stage, reload) in config.stages.iter().zip(&self.stages) {
            let Some(((servers, _), reload)) = stage.servers().zip(reload.as_ref()) else {
                continue;
            };
            // What the stage would refuse is refused here, with its place.
            let context = Context {
                seed: 0,
                epoch: 0,
                outside: &[Ipv4Addr::UNSPECIFIED],
                networks: &self.networks,
                ipsec: None,
                is_one_armed: false,
            };
            stage
                .build(&context)
                .map_err(|error| source.wrong(&error))?;
            changed.push((reload, servers.to_vec()));
        }
        Ok(changed)
    }
}

/// A configuration without the servers of its stages; `None` if it is none.
fn without_servers(text: &str) -> Option<Table> {
    let mut table: Table = text.parse().ok()?;
    if let Some(Value::Array(stages)) = table.get_mut("stage") {
        for stage in stages.iter_mut().filter_map(Value::as_table_mut) {
            if stage.get("kind").and_then(Value::as_str) == Some("balance") {
                stage.remove("server");
            }
        }
    }
    Some(table)
}
