//! SCTP (RFC 9260): its chunks.

use super::ip::Carried;
use super::{byte, flag_letters, half, word};

/// Largest number of chunks, and of ranges of a SACK, shown of one packet.
const CHUNKS_MAX: usize = 16;
const RANGES_MAX: usize = 16;

pub(super) fn packet(carried: &Carried<'_>) -> Option<String> {
    /// Bytes of the common header.
    const HEADER_LEN: usize = 12;
    let mut text = format!("{} SCTP", carried.ends()?);
    let mut rest = carried.bytes.get(HEADER_LEN..).unwrap_or_default();
    for number in 0..CHUNKS_MAX {
        let (Some(kind), Some(flags), Some(len)) = (byte(rest, 0), byte(rest, 1), half(rest, 2))
        else {
            break;
        };
        let len = usize::from(len);
        let chunk = rest.get(..rest.len().min(len)).unwrap_or_default();
        text += if number == 0 { " " } else { ", " };
        text += &chunk_text(kind, flags, chunk);
        if len < 4 {
            break;
        }
        // Chunks are padded to 4 bytes.
        let Some(behind) = rest.get(len.next_multiple_of(4)..) else {
            break;
        };
        rest = behind;
    }
    Some(format!("{text}, length {}", carried.len))
}

fn chunk_text(kind: u8, flags: u8, chunk: &[u8]) -> String {
    let name = match kind {
        0 => "DATA",
        1 => "INIT",
        2 => "INIT ACK",
        3 => "SACK",
        4 => "HEARTBEAT",
        5 => "HEARTBEAT ACK",
        6 => "ABORT",
        7 => "SHUTDOWN",
        8 => "SHUTDOWN ACK",
        9 => "ERROR",
        10 => "COOKIE ECHO",
        11 => "COOKIE ACK",
        12 => "ECNE",
        13 => "CWR",
        14 => "SHUTDOWN COMPLETE",
        15 => "AUTH",
        64 => "I-DATA",
        128 => "ASCONF ACK",
        130 => "RE-CONFIG",
        132 => "PAD",
        192 => "FORWARD TSN",
        193 => "ASCONF",
        194 => "I-FORWARD TSN",
        kind => return format!("chunk {kind}"),
    };
    match details(kind, flags, chunk) {
        Some(details) => format!("{name} ({details})"),
        None => name.to_owned(),
    }
}

/// The fields of a chunk; `None` if it has none, or is cut.
fn details(kind: u8, flags: u8, chunk: &[u8]) -> Option<String> {
    let cause = || Some(format!("cause {}", half(chunk, 4)?));
    match kind {
        0 => {
            let marks = flag_letters(flags, &[(8, "I "), (4, "U "), (2, "B "), (1, "E ")]);
            let (tsn, stream, seq) = (word(chunk, 4)?, half(chunk, 8)?, half(chunk, 10)?);
            let (protocol, len) = (word(chunk, 12)?, half(chunk, 2)?.saturating_sub(16));
            Some(format!(
                "{marks}TSN {tsn}, SID {stream}, SSEQ {seq}, PPID {protocol:#x}, length {len}"
            ))
        }
        1 | 2 => {
            let (tag, window, tsn) = (word(chunk, 4)?, word(chunk, 8)?, word(chunk, 16)?);
            let (streams, streams_max) = (half(chunk, 12)?, half(chunk, 14)?);
            Some(format!(
                "init tag {tag}, rwnd {window}, OS {streams}, MIS {streams_max}, init TSN {tsn}"
            ))
        }
        3 => sack(chunk),
        6 | 9 => cause(),
        7 | 192 => Some(format!("cum ack {}", word(chunk, 4)?)),
        12 | 13 => Some(format!("TSN {}", word(chunk, 4)?)),
        _ => None,
    }
}

/// Gaps are absolute TSNs, as the duplicates.
fn sack(chunk: &[u8]) -> Option<String> {
    let (ack, window) = (word(chunk, 4)?, word(chunk, 8)?);
    let (gaps, duplicates) = (half(chunk, 12)?, half(chunk, 14)?);
    let mut text =
        format!("cum ack {ack}, a_rwnd {window}, gap acks {gaps}, dup tsns {duplicates}");
    let mut at = 16;
    for _ in 0..usize::from(gaps).min(RANGES_MAX) {
        let (start, end) = (half(chunk, at)?, half(chunk, at + 2)?);
        let absolute = |offset: u16| ack.wrapping_add(offset.into());
        text += &format!(", gap ack {} to {}", absolute(start), absolute(end));
        at += 4;
    }
    at = 16 + 4 * usize::from(gaps);
    for _ in 0..usize::from(duplicates).min(RANGES_MAX) {
        text += &format!(", dup TSN {}", word(chunk, at)?);
        at += 4;
    }
    Some(text)
}
