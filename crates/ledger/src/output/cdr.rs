//! CDRs as CGRateS takes them: its `ExternalCDR` as JSON, one a line.

use super::given::count;
use super::lines::Line;
use crate::prove::PeriodKey;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use weir_meter::{Direction, Totals};

/// The fields of an ExternalCDR that are not empty.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ExternalCdr<'a> {
    /// Unique with `OriginHost`: the record's identity.
    #[serde(rename = "OriginID")]
    origin_id: String,
    origin_host: &'a str,
    source: &'static str,
    #[serde(rename = "ToR")]
    tor: &'static str,
    request_type: &'static str,
    tenant: &'static str,
    category: &'static str,
    account: &'a str,
    subject: &'a str,
    destination: &'a str,
    setup_time: &'a str,
    answer_time: &'a str,
    /// Bytes.
    usage: String,
    extra_fields: Extra<'a>,
}

/// Values are text: the type is a map of strings.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Extra<'a> {
    boot_epoch: &'a str,
    period: String,
    end_time: &'a str,
    direction: &'a str,
    packets: String,
    flags: String,
    session: &'a str,
    keys: &'a str,
    class: &'a str,
    chargeable_user: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Read {
    origin_host: String,
    usage: String,
    extra_fields: ReadExtra,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ReadExtra {
    boot_epoch: String,
    period: String,
    direction: String,
    packets: String,
}

fn name(direction: Option<Direction>) -> &'static str {
    match direction {
        Some(Direction::Up) => "up",
        Some(Direction::Down) => "down",
        None => "",
    }
}

pub(super) fn line(out: &mut impl Write, line: &Line<'_>) -> io::Result<()> {
    let chunk = line.chunk;
    let account = if line.subscriber.is_empty() {
        "unattributed"
    } else {
        line.subscriber
    };
    let cdr = ExternalCdr {
        origin_id: format!(
            "{}/{}/{}/{}/{}",
            chunk.counter, chunk.boot_epoch_hex, chunk.period, chunk.number, line.record
        ),
        origin_host: &chunk.counter,
        source: "weir",
        tor: "*data",
        request_type: "*postpaid",
        tenant: "cgrates.org",
        category: "data",
        account,
        subject: account,
        destination: line.service,
        setup_time: &chunk.times[0],
        answer_time: &chunk.times[0],
        usage: line.bytes.to_string(),
        extra_fields: Extra {
            boot_epoch: &chunk.boot_epoch_hex,
            period: chunk.period.to_string(),
            end_time: &chunk.times[1],
            direction: name(line.direction),
            packets: line.packets.to_string(),
            flags: line.flags.0.to_string(),
            session: line.session,
            keys: line.keys,
            class: line.class,
            chargeable_user: line.chargeable_user,
        },
    };
    serde_json::to_writer(&mut *out, &cdr)?;
    out.write_all(b"\n")
}

pub(super) fn totals(file: File) -> Result<BTreeMap<PeriodKey, Totals>, String> {
    let mut totals: BTreeMap<PeriodKey, Totals> = BTreeMap::new();
    for line in BufReader::new(file).lines() {
        let line = line.map_err(|error| error.to_string())?;
        let cdr: Read = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        let extra = cdr.extra_fields;
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        let epoch =
            u64::from_str_radix(&extra.boot_epoch, 16).map_err(|error| error.to_string())?;
        let key = (cdr.origin_host, epoch, number(&extra.period)?);
        let direction = match &*extra.direction {
            "down" => Some(Direction::Down),
            _ => Some(Direction::Up),
        };
        let (packets, bytes) = (number(&extra.packets)?, number(&cdr.usage)?);
        count(totals.entry(key).or_default(), direction, packets, bytes);
    }
    Ok(totals)
}
