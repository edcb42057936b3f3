//! A server's answers.

use super::files::{Folder, Resource, Served};
use super::request::{self, Conditions, Request};
use jiff::Timestamp;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};

/// A record of an answer, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answered {
    /// Empty if the request was not understood.
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) status: u16,
    /// Of the body, as were sent.
    pub(crate) bytes: u64,
}

/// The parts of an answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    fields: Vec<(&'static str, String)>,
    pub(crate) body: Payload,
}

pub(crate) enum Payload {
    Text(String),
    File(Served, std::ops::Range<u64>),
}

impl Answer {
    pub(crate) fn of(status: u16) -> Answer {
        let reason = reason(status);
        Answer {
            status,
            fields: vec![("Content-Type", "text/plain; charset=utf-8".to_owned())],
            body: Payload::Text(format!("{status} {reason}\n")),
        }
    }
}

/// The answer to a request.
pub(crate) fn answer(folder: &Folder, request: &Request) -> Answer {
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        let mut answer = Answer::of(405);
        answer.fields.push(("Allow", "GET, HEAD".to_owned()));
        return answer;
    }
    if request.has_body {
        return Answer::of(413);
    }
    match folder.find(&request.target) {
        Resource::File(served) => file(served, request),
        Resource::Nothing(status) => Answer::of(status),
        Resource::Folder => {
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

/// The answer in place of the file, in the order of RFC 9110 §13.2.2. Files have no entity tags.
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

/// Writes an answer's head behind what is in `out`; gives the bytes of its
/// body, were it not to a HEAD.
pub(crate) fn head(answer: &Answer, stays: bool, out: &mut Vec<u8>) -> u64 {
    let len = match &answer.body {
        Payload::Text(text) => text.len() as u64,
        Payload::File(_, range) => range.end - range.start,
    };
    let status = answer.status;
    let mut head = format!("HTTP/1.1 {status} {}\r\nDate: ", reason(status));
    now(|date| head.push_str(date));
    head.push_str("\r\nServer: weir\r\n");
    for (name, value) in &answer.fields {
        for part in [name, ": ", value, "\r\n"] {
            head.push_str(part);
        }
    }
    if status != 304 {
        head.push_str("Content-Length: ");
        head.push_str(&len.to_string());
        head.push_str("\r\n");
    }
    head.push_str(if stays {
        "Connection: keep-alive\r\n\r\n"
    } else {
        "Connection: close\r\n\r\n"
    });
    out.extend_from_slice(head.as_bytes());
    len
}

/// The date of now as fields have it, written once a second.
fn now(take: impl FnOnce(&str)) {
    thread_local! {
        static LAST: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
    }
    let seconds = Timestamp::now().as_second();
    LAST.with_borrow_mut(|(at, text)| {
        if *at != seconds {
            (*at, *text) = (seconds, date(seconds));
        }
        take(text);
    });
}

/// A file from this byte on.
///
/// # Errors
/// As the system says.
pub(crate) fn from(mut file: File, start: u64) -> io::Result<File> {
    if start > 0 {
        file.seek(SeekFrom::Start(start))?;
    }
    Ok(file)
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
        414 => "URI Too Long",
        416 => "Range Not Satisfiable",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}
