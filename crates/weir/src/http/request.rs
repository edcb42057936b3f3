//! Requests, as a server reads them.

use super::body::persists;
use super::{FIELDS_MAX, values};

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path, percent-encoding and query included.
    pub(crate) target: String,
    /// Which bytes alone are wanted: the field `Range`.
    pub(crate) range: Option<String>,
    /// The request's conditions.
    pub(crate) conditions: Conditions,
    /// Whether the connection stays.
    pub(crate) persists: bool,
    /// It has a body, which nothing here takes.
    pub(crate) has_body: bool,
}

/// The fields of conditions (RFC 9110 §13.1), as they came.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Conditions {
    pub(crate) if_match: Option<String>,
    pub(crate) if_none_match: Option<String>,
    pub(crate) if_modified_since: Option<String>,
    pub(crate) if_unmodified_since: Option<String>,
    pub(crate) if_range: Option<String>,
}

/// Why there is no request.
#[derive(Debug)]
pub(crate) enum NoRequest {
    /// It cannot be understood: the status to answer with.
    Wrong(u16),
}

/// The request that these bytes begin with, and how many are its head's;
/// `None` if more are to come.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, NoRequest> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Request::new(&mut fields);
    let used = match head.parse(bytes) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(NoRequest::Wrong(431)),
        Err(httparse::Error::Version) => return Err(NoRequest::Wrong(505)),
        Err(_) => return Err(NoRequest::Wrong(400)),
    };
    let fields = &*head.headers;
    let version = head.version.unwrap_or(1);
    let hosts = values(fields, "host").count();
    if hosts > 1 || hosts == 0 && version == 1 {
        return Err(NoRequest::Wrong(400));
    }
    // Nothing here takes a body; one that came would be read as a request.
    let empty = values(fields, "content-length").all(|value| value.trim_ascii() == b"0");
    let has_body = !empty || values(fields, "transfer-encoding").next().is_some();
    let text = |name| {
        let value = values(fields, name).next()?;
        Some(String::from_utf8_lossy(value.trim_ascii()).into_owned())
    };
    let request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        target: path(head.path.unwrap_or_default()).to_owned(),
        range: text("range"),
        conditions: Conditions {
            if_match: text("if-match"),
            if_none_match: text("if-none-match"),
            if_modified_since: text("if-modified-since"),
            if_unmodified_since: text("if-unmodified-since"),
            if_range: text("if-range"),
        },
        persists: persists(version, fields) && !has_body,
        has_body,
    };
    Ok(Some((request, used)))
}

/// The status that answers a head that is longer than [`HEAD_LEN_MAX`](super::HEAD_LEN_MAX): 414 if
/// the target is what is too long (RFC 9112 §3), 431 for the fields (RFC 6585 §5).
pub(crate) fn too_long(head: &[u8]) -> u16 {
    let begin = &head[..head.len().min(super::HEAD_LEN_MAX)];
    match begin.iter().find(|byte| matches!(byte, b' ' | b'\n')) {
        Some(b' ') if !begin.contains(&b'\n') => 414,
        _ => 431,
    }
}

/// The path of a target, which may be a whole URL (RFC 9112 §3.2.2).
fn path(target: &str) -> &str {
    let Some((_, rest)) = target
        .split_once("://")
        .filter(|_| !target.starts_with('/'))
    else {
        return target;
    };
    rest.find('/').map_or("/", |at| &rest[at..])
}

/// The bytes that a `Range` field asks for, of a resource of this many; `None`
/// for all of them (RFC 9110 §14), an error if there are none such.
pub(crate) fn range(field: &str, len: u64) -> Result<Option<std::ops::Range<u64>>, ()> {
    let Some((unit, spec)) = field.split_once('=') else {
        return Ok(None);
    };
    let Some((first, last)) = spec.trim().split_once('-') else {
        return Ok(None);
    };
    // Several ranges at once may be answered with all.
    if !unit.trim().eq_ignore_ascii_case("bytes") || spec.contains(',') {
        return Ok(None);
    }
    let number = |text: &str| {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            text.parse::<u64>().ok()
        } else {
            None
        }
    };
    match (first, number(first), last, number(last)) {
        ("", _, _, Some(count)) if count > 0 && len > 0 => Ok(Some(len.saturating_sub(count)..len)),
        ("", _, _, Some(_)) => Err(()),
        (_, Some(first), "", _) if first < len => Ok(Some(first..len)),
        (_, Some(first), _, Some(last)) if first <= last && first < len => {
            Ok(Some(first..last.saturating_add(1).min(len)))
        }
        (_, Some(first), last_text, last) if first >= len => match last {
            Some(last) if last < first => Ok(None),
            None if !last_text.is_empty() => Ok(None),
            _ => Err(()),
        },
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: &[u8]) -> Result<Request, u16> {
        match parse(bytes) {
            Ok(found) => Ok(found.expect("it is whole").0),
            Err(NoRequest::Wrong(status)) => Err(status),
        }
    }

    #[test]
    fn requests_are_read() {
        let found = request(b"GET http://a/b?c HTTP/1.1\r\nHost: a\r\nRange: bytes=0-\r\n\r\n");
        let found = found.unwrap();
        assert_eq!((&*found.target, found.persists), ("/b?c", true));
        assert_eq!(found.range.as_deref(), Some("bytes=0-"));
        assert!(!request(b"GET / HTTP/1.0\r\n\r\n").unwrap().persists);
        assert!(
            !request(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n")
                .unwrap()
                .persists
        );
        assert_eq!(request(b"GET / HTTP/1.1\r\n\r\n"), Err(400));
        assert_eq!(
            request(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
            Err(400)
        );
        assert_eq!(request(b"nonsense\r\n\r\n"), Err(400));
        assert_eq!(request(b"GET / HTTP/2.0\r\n\r\n"), Err(505));
        let long = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        assert!(request(long).unwrap().has_body);
    }

    #[test]
    fn ranges_are_cut_to_what_there_is() {
        for (field, wanted) in [
            ("bytes=0-4", Ok(Some(0..5))),
            ("bytes=5-", Ok(Some(5..10))),
            ("bytes=-3", Ok(Some(7..10))),
            ("bytes=-30", Ok(Some(0..10))),
            ("bytes=9-99", Ok(Some(9..10))),
            ("bytes=10-", Err(())),
            ("bytes=10-20", Err(())),
            ("bytes=-0", Err(())),
            ("bytes=5-4", Ok(None)),
            ("bytes=a-b", Ok(None)),
            ("bytes=0-1,3-4", Ok(None)),
            ("lines=0-1", Ok(None)),
            ("bytes", Ok(None)),
        ] {
            assert_eq!(range(field, 10), wanted, "{field}");
        }
    }
}
