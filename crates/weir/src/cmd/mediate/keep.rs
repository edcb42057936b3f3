//! `weir mediate` on a ledger alone: back-up, restoring, erasure, retention, replay.

use super::Args;
use super::config::Config;
use crate::cmd::usage::time;
use crate::error::{CliError, harmless};
use crate::report::format;
use crate::store;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use weir_ledger::{Ledger, Replay};

/// The work that was done, stable for scripts; unrequested parts are left out.
#[derive(Default, Serialize)]
struct Done<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    back_up: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<&'a Path>,
    /// Sessions whose names were erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    erased: Option<u64>,
    /// Chunks that were deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<u64>,
    /// Records that were given again.
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a Path>,
}

/// Does one of these, if it is asked for; whether it was.
pub(super) fn run(args: &Args, config: Option<&Config>) -> Result<bool, CliError> {
    let given = args.store.as_deref();
    let named = given.or_else(|| config.and_then(|config| config.store.as_deref()));
    let path = store::path(named)?;
    if let Some(to) = &args.back_up {
        let ledger = Ledger::open_read(existing(&path)?).map_err(CliError::run)?;
        ledger.back_up(to).map_err(CliError::run)?;
        let done = Done {
            back_up: Some(to),
            ..Done::default()
        };
        return said(
            args,
            &done,
            &format!("{} is copied into {}", path.display(), to.display()),
        );
    }
    if let Some(from) = &args.restore {
        let path = store::path_made(named)?;
        let ledger = Ledger::restore(existing(from)?, &path).map_err(CliError::run)?;
        let extent = ledger.extent().map_err(CliError::run)?;
        let until = extent.map_or_else(
            || "it has no records".to_owned(),
            |[_, end]| format!("its last period ended {}", format::time(Some(end))),
        );
        let done = Done {
            restored: Some(&path),
            ..Done::default()
        };
        return said(
            args,
            &done,
            &format!("{} is restored: {until}", path.display()),
        );
    }
    if let Some(name) = &args.erase {
        let mut ledger = Ledger::open(existing(&path)?).map_err(CliError::run)?;
        let erased = ledger.erase(name).map_err(CliError::run)?;
        let done = Done {
            erased: Some(erased),
            ..Done::default()
        };
        let text = if erased == 0 {
            format!("{} has no subscriber {name}", path.display())
        } else {
            format!(
                "{}: {name} is erased from the records of {}. Spools, what outputs have had, and \
                 back-ups still have the name",
                path.display(),
                format::counted(erased, "session"),
            )
        };
        return said(args, &done, &text);
    }
    if let Some(before) = &args.delete_before {
        let before = time::parse(before, &time::zone(None)?)?;
        let mut ledger = Ledger::open(existing(&path)?).map_err(CliError::run)?;
        let deleted = ledger.delete_before(before).map_err(CliError::run)?;
        let done = Done {
            deleted: Some(deleted),
            ..Done::default()
        };
        let chunks = format::counted(deleted, "chunk");
        let text = format!(
            "{}: {chunks} that ended before {} deleted; what an output lacks stays",
            path.display(),
            format::time(Some(before)),
        );
        return said(args, &done, &text);
    }
    let (Some(name), Some(config)) = (&args.replay, config) else {
        return Ok(false);
    };
    let mut outputs = config.outputs.iter();
    let Some(output) = outputs.find(|output| output.name == *name) else {
        let names: Vec<&str> = config.outputs.iter().map(|it| &*it.name).collect();
        return Err(CliError::refused(format!(
            "--replay {name}: the configuration has no such output; it has: {}",
            names.join(", ")
        )));
    };
    let zone = time::zone(None)?;
    let at = |text: &Option<String>| text.as_deref().map(|text| time::parse(text, &zone));
    let which = Replay {
        since_unix_ns: at(&args.since).transpose()?,
        until_unix_ns: at(&args.until).transpose()?,
        period: args.period,
        counter: args.counter.clone(),
    };
    if which == Replay::default() {
        return Err(CliError::refused(
            "--replay: which periods? give --period, --counter, --since or --until",
        ));
    }
    let mut ledger = Ledger::open(existing(&path)?).map_err(CliError::run)?;
    let given = ledger.replay(output, &which).map_err(CliError::run)?;
    let done = Done {
        records: Some(given.records),
        file: given.path.as_deref(),
        ..Done::default()
    };
    let records = format::counted(given.records, "record");
    let text = match &given.path {
        Some(path) => format!("{records} in {}", path.display()),
        None => format!("output {name} was given {records}; what a database has already stays"),
    };
    said(args, &done, &text)
}

/// A file that must be there: none is made in its place.
fn existing(path: &Path) -> Result<&Path, CliError> {
    if path.exists() {
        return Ok(path);
    }
    Err(CliError::run(format!(
        "{}: there is no such file",
        path.display()
    )))
}

fn said(args: &Args, done: &Done<'_>, text: &str) -> Result<bool, CliError> {
    let line = if args.json {
        serde_json::to_string(done).map_err(CliError::run)?
    } else {
        harmless(text)
    };
    writeln!(std::io::stdout(), "{line}").map_err(CliError::output)?;
    Ok(true)
}
