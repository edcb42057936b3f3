//! `[[output]]` of `mediator.toml`.

use super::{Wrong, check_name, check_path};
use jiff::tz::TimeZone;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Spanned;
use weir_ledger::{Column, Filter, Format, Group, Output, Shape, Span, Target};
use weir_meter::{Direction, OwnerKind};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputTable {
    name: Spanned<String>,
    format: Spanned<String>,
    folder: Option<Spanned<PathBuf>>,
    collector: Option<Spanned<String>>,
    connection: Option<Spanned<String>>,
    table: Option<Spanned<String>>,
    #[serde(default)]
    filter: FilterTable,
    #[serde(default)]
    classes: BTreeMap<String, String>,
    by: Option<Vec<Spanned<String>>>,
    span: Option<Spanned<String>>,
    zone: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilterTable {
    counters: Option<Vec<String>>,
    owners: Option<Vec<Spanned<String>>>,
    subscribers: Option<Vec<String>>,
    services: Option<Vec<String>>,
    direction: Option<Spanned<String>>,
}

/// The name of the format that is no format of files.
const POSTGRESQL: &str = "postgresql";
/// The table of records, if the file does not say.
const TABLE: &str = "weir_usage";
/// Bytes of a part of a table's name at most: PostgreSQL has 63, and the table of chunks has six more.
const TABLE_LEN_MAX: usize = 57;
/// The name in `classes` that stands for all services that are not named.
const OTHERS: &str = "*";

/// An output, and the place of its name.
pub(super) fn read(text: &str, table: &Spanned<OutputTable>) -> Result<(usize, Output), Wrong> {
    let output = table.get_ref();
    check_name(text, "output", &output.name)?;
    let target = target(text, table)?;
    let shape = Shape {
        filter: filter(text, &output.filter)?,
        classes: named(&output.classes),
        other_class: output.classes.get(OTHERS).cloned(),
        by: by(text, output.by.as_deref())?,
        span: span(text, output)?,
    };
    let output = Output {
        name: output.name.get_ref().clone(),
        target,
        shape,
    };
    Ok((table.get_ref().name.span().start, output))
}

fn named(classes: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let named = classes.iter().filter(|(service, _)| *service != OTHERS);
    named
        .map(|(service, class)| (service.clone(), class.clone()))
        .collect()
}

fn target(text: &str, table: &Spanned<OutputTable>) -> Result<Target, Wrong> {
    let output = table.get_ref();
    let at = |why: &str| Wrong::at(text, table.span().start, why);
    let name = &**output.format.get_ref();
    // Keys that another format has.
    let foreign = |key: &str, place: Option<usize>| match place {
        Some(place) => {
            let why = format!("`{key}` means nothing to an output of format {name}: leave it out");
            Err(Wrong::at(text, place, why))
        }
        None => Ok(()),
    };
    let start = |key: &Option<Spanned<String>>| key.as_ref().map(|key| key.span().start);
    if name == POSTGRESQL {
        foreign("folder", output.folder.as_ref().map(|key| key.span().start))?;
        foreign("collector", start(&output.collector))?;
        return postgres(text, output, at);
    }
    foreign("connection", start(&output.connection))?;
    foreign("table", start(&output.table))?;
    let Some(format) = Format::ALL.iter().find(|format| format.name() == name) else {
        let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
        let names = names.join(", ");
        let why = format!("there is no format `{name}`: give {names} or {POSTGRESQL}");
        return Err(Wrong::at(text, output.format.span().start, why));
    };
    if let Some(collector) = &output.collector {
        if *format != Format::Ipfix {
            foreign("collector", start(&output.collector))?;
        }
        let place = collector.span().start;
        if output.folder.is_some() {
            let why = "give `folder` or `collector`, not both: an output each";
            return Err(Wrong::at(text, place, why));
        }
        let address = collector.get_ref();
        let port = address
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty())
            .and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) {
            let why = format!("`{address}` is no collector: give host and port, as ipfix:4739");
            return Err(Wrong::at(text, place, why));
        }
        let address = address.clone();
        return Ok(Target::Collector { address });
    }
    let Some(folder) = &output.folder else {
        return Err(at("where do its files go? give `folder`"));
    };
    Ok(Target::Files {
        format: *format,
        folder: check_path(text, "folder", folder)?,
    })
}

#[cfg(feature = "postgres")]
fn postgres(text: &str, output: &OutputTable, at: impl Fn(&str) -> Wrong) -> Result<Target, Wrong> {
    let Some(connection) = &output.connection else {
        return Err(at(
            "which database? give `connection`, as \"host=/run/postgresql dbname=billing user=weir\"",
        ));
    };
    Target::check_connection(connection.get_ref()).map_err(|why| {
        let why = format!("no connection string of PostgreSQL: {why}");
        Wrong::at(text, connection.span().start, why)
    })?;
    let table = output.table.as_ref();
    if let Some(table) = table {
        let parts: Vec<&str> = table.get_ref().split('.').collect();
        let plain = |part: &&str| {
            let mut letters = part.chars();
            let first = letters.next();
            part.len() <= TABLE_LEN_MAX
                && first.is_some_and(|letter| letter.is_ascii_lowercase() || letter == '_')
                && letters.all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_')
        };
        if parts.len() > 2 || !parts.iter().all(plain) {
            let why = format!(
                "`{}` is no name of a table here: give up to {TABLE_LEN_MAX} small letters, digits \
                 and `_`, the first no digit; before it, if need be, a schema and a dot",
                table.get_ref()
            );
            return Err(Wrong::at(text, table.span().start, why));
        }
    }
    Ok(Target::Postgres {
        connection: connection.get_ref().clone(),
        table: table.map_or(TABLE, |table| table.get_ref()).to_owned(),
    })
}

#[cfg(not(feature = "postgres"))]
fn postgres(_: &str, _: &OutputTable, at: impl Fn(&str) -> Wrong) -> Result<Target, Wrong> {
    Err(at(
        "this weir was built without PostgreSQL: build it with the feature `postgres`",
    ))
}

fn filter(text: &str, table: &FilterTable) -> Result<Filter, Wrong> {
    let owners = table.owners.as_ref().map(|owners| {
        let kind = |owner: &Spanned<String>| match &**owner.get_ref() {
            "session" => Ok(OwnerKind::Session),
            "unattributed" => Ok(OwnerKind::Unattributed),
            "overflow" => Ok(OwnerKind::Overflow),
            other => {
                let why = format!("no owner is `{other}`: give session, unattributed or overflow");
                Err(Wrong::at(text, owner.span().start, why))
            }
        };
        owners.iter().map(kind).collect::<Result<Vec<_>, _>>()
    });
    let direction = table
        .direction
        .as_ref()
        .map(|given| match &**given.get_ref() {
            "up" => Ok(Direction::Up),
            "down" => Ok(Direction::Down),
            other => {
                let why = format!("no direction is `{other}`: give up or down");
                Err(Wrong::at(text, given.span().start, why))
            }
        });
    Ok(Filter {
        counters: table.counters.clone(),
        owners: owners.transpose()?,
        subscribers: table.subscribers.clone(),
        services: table.services.clone(),
        direction: direction.transpose()?,
    })
}

fn by(text: &str, names: Option<&[Spanned<String>]>) -> Result<Option<Vec<Column>>, Wrong> {
    let Some(names) = names else { return Ok(None) };
    let column = |name: &Spanned<String>| {
        Column::of_name(name.get_ref()).ok_or_else(|| {
            let why = format!(
                "records cannot be told apart by `{}`: give subscriber, session, service or direction",
                name.get_ref()
            );
            Wrong::at(text, name.span().start, why)
        })
    };
    names.iter().map(column).collect::<Result<_, _>>().map(Some)
}

fn span(text: &str, output: &OutputTable) -> Result<Option<Span>, Wrong> {
    let zone = match &output.zone {
        None => TimeZone::UTC,
        Some(zone) => TimeZone::get(zone.get_ref()).map_err(|_| {
            let why = format!(
                "there is no time zone `{}`: give a name as Europe/Berlin",
                zone.get_ref()
            );
            Wrong::at(text, zone.span().start, why)
        })?,
    };
    let Some(span) = &output.span else {
        return Ok(None);
    };
    let group = match &**span.get_ref() {
        "hour" => Group::Hour,
        "day" => Group::Day,
        "month" => Group::Month,
        other => {
            let why = format!("there is no span `{other}`: give hour, day or month");
            return Err(Wrong::at(text, span.span().start, why));
        }
    };
    Ok(Some(Span { group, zone }))
}
