//! One connection of a server: requests, and files for answers.

use super::files::{Folder, Found, Served};
use super::request::{self, Conditions, NoRequest, Request};
use jiff::Timestamp;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Requests on one connection; then it is closed.
const REQUESTS_MAX: usize = 10_000;
/// Bytes that are read of a file at once.
const BLOCK_LEN: usize = 256 << 10;

/// What was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answered {
    /// Empty if the request was not understood.
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) status: u16,
    /// Of the body, as were sent.
    pub(crate) bytes: u64,
}

/// What an answer is made of.
struct Answer {
    status: u16,
    fields: Vec<(&'static str, String)>,
    body: Payload,
}

enum Payload {
    Text(String),
    File(Served, std::ops::Range<u64>),
}

/// Answers requests until one side wants no more; tells `log` of each.
///
/// # Errors
/// If the connection breaks.
pub(crate) fn serve<S: Read + Write>(
    stream: &mut S,
    folder: &Folder,
    mut log: impl FnMut(&Answered),
) -> io::Result<()> {
    let mut ahead = Vec::new();
    let mut block = Vec::new();
    for count in 1..=REQUESTS_MAX {
        let (request, answer) = match request::read(&mut *stream, &mut ahead) {
            Ok(request) => {
                let answer = answer(folder, &request);
                (Some(request), answer)
            }
            Err(NoRequest::Ended) => return Ok(()),
            Err(NoRequest::Wrong(status)) => (None, Answer::of(status)),
            Err(NoRequest::Io(error)) => return Err(error),
        };
        let stays = request.as_ref().is_some_and(|one| one.persists) && count < REQUESTS_MAX;
        let to_head = request.as_ref().is_some_and(|one| one.method == "HEAD");
        let status = answer.status;
        let bytes = send(stream, answer, to_head, stays, &mut block)?;
        let (method, target) =
            request.map_or_else(Default::default, |one| (one.method, one.target));
        log(&Answered {
            method,
            target,
            status,
            bytes,
        });
        if !stays {
            return Ok(());
        }
    }
    Ok(())
}

impl Answer {
    fn of(status: u16) -> Answer {
        let reason = reason(status);
        Answer {
            status,
            fields: vec![("Content-Type", "text/plain; charset=utf-8".to_owned())],
            body: Payload::Text(format!("{status} {reason}\n")),
        }
    }
}

fn answer(folder: &Folder, request: &Request) -> Answer {
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        let mut answer = Answer::of(405);
        answer.fields.push(("Allow", "GET, HEAD".to_owned()));
        return answer;
    }
    if request.has_body {
        return Answer::of(413);
    }
    match folder.find(&request.target) {
        Found::File(served) => file(served, request),
        Found::Nothing(status) => Answer::of(status),
        Found::Folder => {
            let (path, query) = match request.target.split_once('?') {
                Some((path, query)) => (path, format!("?{query}")),
                None => (&*request.target, String::new()),
            };
            let mut answer = Answer::of(301);
            answer.fields.push(("Location", format!("{path}/{query}")));
            answer
        }
    }
}

fn file(served: Served, request: &Request) -> Answer {
    let modified = date(served.modified);
    let mut fields = vec![
        ("Content-Type", served.kind.to_owned()),
        ("Last-Modified", modified.clone()),
        ("Accept-Ranges", "bytes".to_owned()),
    ];
    match status_of(&request.conditions, served.modified, &modified) {
        Some(304) => {
            return Answer {
                status: 304,
                fields,
                body: Payload::Text(String::new()),
            };
        }
        Some(status) => return Answer::of(status),
        None => {}
    }
    let len = served.len;
    // Ranges are defined for GET alone (RFC 9110 §14.2).
    let wanted = request.range.as_deref().filter(|_| request.method == "GET");
    let wanted = wanted.filter(|_| is_same(&request.conditions, served.modified, &modified));
    let range = wanted.map(|field| request::range(field, len));
    let (status, range) = match range {
        Some(Err(())) => {
            let mut answer = Answer::of(416);
            answer
                .fields
                .push(("Content-Range", format!("bytes */{len}")));
            return answer;
        }
        Some(Ok(Some(range))) => (206, range),
        _ => (200, 0..len),
    };
    if status == 206 {
        let (first, last) = (range.start, range.end - 1);
        fields.push(("Content-Range", format!("bytes {first}-{last}/{len}")));
    }
    Answer {
        status,
        fields,
        body: Payload::File(served, range),
    }
}

/// What answers instead of the file, in the order of RFC 9110 §13.2.2. Files
/// have no entity tags.
fn status_of(conditions: &Conditions, modified: i64, as_field: &str) -> Option<u16> {
    let Conditions {
        if_match,
        if_none_match,
        if_modified_since,
        if_unmodified_since,
        ..
    } = conditions;
    let later = |field: &String| seconds(field).is_some_and(|since| modified > since);
    let fails = match (if_match, if_unmodified_since) {
        (Some(tags), _) => tags != "*",
        (None, Some(since)) => later(since),
        (None, None) => false,
    };
    let is_had = match (if_none_match, if_modified_since) {
        (Some(tags), _) => tags == "*",
        (None, since) => since.as_deref() == Some(as_field),
    };
    match (fails, is_had) {
        (true, _) => Some(412),
        (false, true) => Some(304),
        (false, false) => None,
    }
}

/// Whether the client has a part of this version of the file (RFC 9110
/// §13.1.5). What was modified in this second may be so again.
fn is_same(conditions: &Conditions, modified: i64, as_field: &str) -> bool {
    let is_settled = modified < Timestamp::now().as_second();
    let field = conditions.if_range.as_deref();
    field.is_none_or(|field| field == as_field && is_settled)
}

/// Seconds since 1970 of a time as fields have it.
fn seconds(field: &str) -> Option<i64> {
    let time = DateTimeParser::new().parse_timestamp(field);
    time.ok().map(Timestamp::as_second)
}

/// A time as fields have it (RFC 9110 §5.6.7), of seconds since 1970.
fn date(seconds: i64) -> String {
    let time = Timestamp::from_second(seconds).unwrap_or_default();
    let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&time);
    text.unwrap_or_default()
}

/// Sends an answer; gives the bytes of its body that were sent.
fn send<S: Write>(
    stream: &mut S,
    answer: Answer,
    to_head: bool,
    stays: bool,
    block: &mut Vec<u8>,
) -> io::Result<u64> {
    let len = match &answer.body {
        Payload::Text(text) => text.len() as u64,
        Payload::File(_, range) => range.end - range.start,
    };
    let status = answer.status;
    let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    head.push_str(&format!("Date: {}\r\n", date(Timestamp::now().as_second())));
    head.push_str("Server: weir\r\n");
    for (name, value) in &answer.fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if status != 304 {
        head.push_str(&format!("Content-Length: {len}\r\n"));
    }
    head.push_str(if stays {
        "Connection: keep-alive\r\n\r\n"
    } else {
        "Connection: close\r\n\r\n"
    });
    let mut first = head.into_bytes();
    if to_head || len == 0 {
        stream.write_all(&first)?;
        return Ok(0);
    }
    match answer.body {
        Payload::Text(text) => {
            first.extend_from_slice(text.as_bytes());
            stream.write_all(&first)?;
        }
        Payload::File(mut served, range) => {
            served.file.seek(SeekFrom::Start(range.start))?;
            block.resize(BLOCK_LEN, 0);
            // The head goes out with the file's first bytes.
            let mut left = len;
            while left > 0 {
                let most = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_LEN);
                let count = served.file.read(&mut block[..most])?;
                if count == 0 {
                    // It has become shorter: only the connection's end says so.
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if first.is_empty() {
                    stream.write_all(&block[..count])?;
                } else {
                    first.extend_from_slice(&block[..count]);
                    stream.write_all(&first)?;
                    first.clear();
                }
                left -= count as u64;
            }
        }
    }
    Ok(len)
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        301 => "Moved Permanently",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        416 => "Range Not Satisfiable",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}
