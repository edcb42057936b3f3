//! A request and its response.

use super::body::{Body, Length};
use super::url::Url;
use std::io::{self, Read, Write};

/// Bytes of a response's head, and its fields, as curl takes them.
const HEAD_LEN_MAX: usize = 300 << 10;
const FIELDS_MAX: usize = 5000;

/// The response's head.
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The whole head, as it came.
    pub(crate) head: Vec<u8>,
    pub(crate) fields: Vec<(String, String)>,
    length: Length,
    ahead: Vec<u8>,
}

/// A field that a request has besides its own: `Name: value`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl std::str::FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Field, String> {
        let wrong = || format!("`{}` is no field: write 'Name: value'", text.escape_debug());
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(token) || value.chars().any(char::is_control) {
            return Err(wrong());
        }
        Ok(Field {
            name: name.to_owned(),
            value: value.trim().to_owned(),
        })
    }
}

/// The request's bytes. What the caller gives stands for our own fields.
pub(crate) fn request(method: &str, url: &Url, fields: &[Field]) -> Vec<u8> {
    let mut text = format!("{method} {} HTTP/1.1\r\n", url.target);
    let authority = url.authority();
    let agent = concat!("weir/", env!("CARGO_PKG_VERSION"));
    let own = [
        ("Host", &*authority),
        ("User-Agent", agent),
        ("Accept", "*/*"),
        ("Connection", "close"),
    ];
    for (name, value) in own {
        if !fields
            .iter()
            .any(|field| field.name.eq_ignore_ascii_case(name))
        {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    for Field { name, value } in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// Sends a request and reads the head of its response, those that only say
/// that one will come left out.
pub(crate) fn send_request(
    mut stream: impl Read + Write,
    request: &[u8],
    to_head: bool,
) -> io::Result<Response> {
    stream.write_all(request)?;
    let mut bytes = Vec::new();
    loop {
        if let Some(response) = parse(&mut bytes, to_head)? {
            return Ok(response);
        }
        if bytes.len() > HEAD_LEN_MAX {
            let why = format!("the response's head is longer than {HEAD_LEN_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut more = [0; 16 << 10];
        let count = stream.read(&mut more)?;
        if count == 0 {
            let why = if bytes.is_empty() {
                "the connection ended without a response"
            } else {
                "the connection ended within the response's head"
            };
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        bytes.extend_from_slice(&more[..count]);
    }
}

/// The head, if all of it is there.
fn parse(bytes: &mut Vec<u8>, to_head: bool) -> io::Result<Option<Response>> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    loop {
        let mut fields = vec![httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Response::new(&mut fields);
        // Lines that go on in the next (RFC 9112 §5.2), and blanks before a colon.
        let mut parser = httparse::ParserConfig::default();
        parser.allow_obsolete_multiline_headers_in_responses(true);
        parser.allow_spaces_after_header_name_in_responses(true);
        let parsed = parser.parse_response(&mut head, bytes);
        let parsed = parsed.map_err(|error| wrong(format!("no response of HTTP/1: {error}")))?;
        let httparse::Status::Complete(len) = parsed else {
            return Ok(None);
        };
        let status = head.code.unwrap_or(0);
        if matches!(status, 100..200) && status != 101 {
            bytes.drain(..len);
            continue;
        }
        let length = Length::of(status, to_head, head.headers).map_err(wrong)?;
        let text = |field: &httparse::Header<'_>| {
            let value = String::from_utf8_lossy(field.value);
            let value = value.lines().map(str::trim).collect::<Vec<_>>().join(" ");
            (field.name.to_owned(), value)
        };
        let fields = head.headers.iter().map(text).collect();
        let ahead = bytes.split_off(len);
        return Ok(Some(Response {
            status,
            head: std::mem::take(bytes),
            fields,
            length,
            ahead,
        }));
    }
}

impl Response {
    /// The body, whose first bytes came with the head.
    pub(crate) fn body<R: Read>(&mut self, input: R) -> Body<R> {
        Body::new(input, std::mem::take(&mut self.ahead), self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(bytes: &[u8]) -> io::Result<Response> {
        let mut bytes = bytes.to_vec();
        parse(&mut bytes, false).map(|response| response.expect("it is whole"))
    }

    #[test]
    fn heads_are_parsed() {
        let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 404 Not Found\r\nA: b\r\n\r\nbody";
        let response = answer(bytes).unwrap();
        assert_eq!((response.status, &*response.ahead), (404, &b"body"[..]));
        assert_eq!(response.fields, [("A".to_owned(), "b".to_owned())]);
        assert!(response.head.starts_with(b"HTTP/1.0 404"));
        let folded = b"HTTP/1.1 200 OK\r\nA: b\r\n\t c\r\nContent-Length : 1\r\n\r\nx";
        let response = answer(folded).unwrap();
        assert_eq!(response.fields[0].1, "b c");
        assert_eq!(response.length, Length::Known(1));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(4000));
        assert_eq!(answer(many.as_bytes()).unwrap().fields.len(), 4000);
        assert!(answer(b"SSH-2.0-OpenSSH\r\n\r\n").is_err());
        assert!(
            parse(&mut b"HTTP/1.1 200 OK\r\nA: b\r\n".to_vec(), false)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn requests_have_the_callers_fields() {
        let url = "http://[::1]:81/x?y".parse().unwrap();
        let fields = [
            "accept: text/plain".parse().unwrap(),
            "X: y".parse().unwrap(),
        ];
        let text = String::from_utf8(request("GET", &url, &fields)).unwrap();
        assert!(
            text.starts_with("GET /x?y HTTP/1.1\r\nHost: [::1]:81\r\n"),
            "{text}"
        );
        assert!(!text.contains("*/*") && text.ends_with("accept: text/plain\r\nX: y\r\n\r\n"));
        assert!("X: a\r\nY: b".parse::<Field>().is_err() && "a b: c".parse::<Field>().is_err());
    }
}
