//! How long a response's body is, and its bytes (RFC 9112 §6, §7).

use super::{FIELDS_MAX, lists, values};
use std::io::{self, Read};

/// How a body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Length {
    /// After this many bytes.
    Known(u64),
    /// It says so itself, chunk by chunk.
    Chunked,
    /// With the connection.
    UntilClosed,
}

impl Length {
    /// Of the response with these fields.
    pub(crate) fn of(
        status: u16,
        to_head: bool,
        fields: &[httparse::Header<'_>],
    ) -> Result<Length, String> {
        if to_head || matches!(status, 100..200 | 204 | 304) {
            return Ok(Length::Known(0));
        }
        // `identity` is no coding (RFC 7230 §4 removed it).
        let codings = values(fields, "transfer-encoding").flat_map(|all| all.split(|b| *b == b','));
        let codings = codings.map(<[u8]>::trim_ascii);
        let codings: Vec<&[u8]> = codings
            .filter(|one| !one.is_empty() && !one.eq_ignore_ascii_case(b"identity"))
            .collect();
        match codings[..] {
            [] => {}
            [only] if only.eq_ignore_ascii_case(b"chunked") => return Ok(Length::Chunked),
            _ => {
                let all = codings.join(&b", "[..]);
                let all = String::from_utf8_lossy(&all);
                return Err(format!(
                    "the body is coded as `{all}`, which we do not read"
                ));
            }
        }
        let mut known = None;
        for value in values(fields, "content-length").flat_map(|all| all.split(|b| *b == b',')) {
            let text = std::str::from_utf8(value.trim_ascii()).unwrap_or_default();
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let length = text.parse::<u64>().ok().filter(|_| digits);
            let length = length.ok_or_else(|| format!("Content-Length is `{text}`"))?;
            if known.is_some_and(|known| known != length) {
                return Err("the response has two lengths".to_owned());
            }
            known = Some(length);
        }
        Ok(known.map_or(Length::UntilClosed, Length::Known))
    }
}

/// Whether the other side wants the connection to stay (RFC 9112 §9.3).
pub(crate) fn persists(version: u8, fields: &[httparse::Header<'_>]) -> bool {
    match version {
        0 => lists(fields, "connection", "keep-alive"),
        _ => !lists(fields, "connection", "close"),
    }
}

/// Bytes of a line that gives a chunk's size, and of the fields after the
/// last.
const LINE_LEN_MAX: usize = 16 << 10;

/// A stream whose first bytes were read with the head.
pub(crate) struct Body<R> {
    input: R,
    /// Bytes that were read and not used yet.
    ahead: Vec<u8>,
    at: usize,
    state: Where,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    /// Number of bytes that remain.
    Left(u64),
    ToTheEnd,
    /// A chunk's size comes; of the first, or after the line that ends one.
    Size {
        first: bool,
    },
    Chunk(u64),
    Over,
}

fn broken(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl<R: Read> Body<R> {
    pub(crate) fn new(input: R, ahead: Vec<u8>, length: Length) -> Body<R> {
        let state = match length {
            Length::Known(left) => Where::Left(left),
            Length::Chunked => Where::Size { first: true },
            Length::UntilClosed => Where::ToTheEnd,
        };
        Body {
            input,
            ahead,
            at: 0,
            state,
        }
    }

    /// Bytes as they come, framing and all.
    fn raw(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let ahead = &self.ahead[self.at..];
        if ahead.is_empty() {
            return self.input.read(out);
        }
        let count = ahead.len().min(out.len());
        out[..count].copy_from_slice(&ahead[..count]);
        self.at += count;
        Ok(count)
    }

    /// At most `left` of them; the end is an error.
    fn read_part(&mut self, out: &mut [u8], left: u64) -> io::Result<usize> {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        match self.raw(&mut out[..most])? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the connection ended {left} bytes early"),
            )),
            count => Ok(count),
        }
    }

    /// The unused bytes hold what `parse` takes, perhaps after more are read.
    fn ahead_of<T>(
        &mut self,
        mut parse: impl FnMut(&[u8]) -> io::Result<Option<(usize, T)>>,
    ) -> io::Result<T> {
        loop {
            if let Some((used, found)) = parse(&self.ahead[self.at..])? {
                self.at += used;
                return Ok(found);
            }
            self.ahead.drain(..self.at);
            self.at = 0;
            if self.ahead.len() > LINE_LEN_MAX {
                return Err(broken("a line between chunks is too long"));
            }
            let mut more = [0; 4096];
            let count = self.input.read(&mut more)?;
            if count == 0 {
                let why = "the connection ended before the last chunk";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            self.ahead.extend_from_slice(&more[..count]);
        }
    }

    /// The next chunk's size; after the last, the fields behind it are read.
    fn size(&mut self, first: bool) -> io::Result<Where> {
        let skip = if first { 0 } else { 2 };
        let size = self.ahead_of(|bytes| {
            let Some(ended) = bytes.get(..skip) else {
                return Ok(None);
            };
            if !ended.is_empty() && ended != b"\r\n" {
                return Err(broken("a chunk is longer than it said"));
            }
            match httparse::parse_chunk_size(&bytes[skip..]) {
                Ok(httparse::Status::Complete((used, size))) => Ok(Some((skip + used, size))),
                Ok(httparse::Status::Partial) => Ok(None),
                Err(_) => Err(broken("a chunk's size is no number")),
            }
        })?;
        if size > 0 {
            return Ok(Where::Chunk(size));
        }
        self.ahead_of(|bytes| {
            let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
            match httparse::parse_headers(bytes, &mut fields) {
                Ok(httparse::Status::Complete((used, _))) => Ok(Some((used, ()))),
                Ok(httparse::Status::Partial) => Ok(None),
                Err(error) => Err(broken(format!("after the last chunk: {error}"))),
            }
        })?;
        Ok(Where::Over)
    }
}

impl<R: Read> Read for Body<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state {
                Where::Left(0) | Where::Over => return Ok(0),
                Where::ToTheEnd => return self.raw(out),
                Where::Left(left) => {
                    let count = self.read_part(out, left)?;
                    self.state = Where::Left(left - count as u64);
                    return Ok(count);
                }
                Where::Chunk(0) => self.state = self.size(false)?,
                Where::Size { first } => self.state = self.size(first)?,
                Where::Chunk(left) => {
                    let count = self.read_part(out, left)?;
                    self.state = Where::Chunk(left - count as u64);
                    return Ok(count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = out.len().min(1);
            self.0.read(&mut out[..count])
        }
    }

    fn read(bytes: &[u8], length: Length) -> io::Result<Vec<u8>> {
        let mut outcomes = (0..=bytes.len().min(40)).map(|ahead| {
            let (ahead, rest) = bytes.split_at(ahead);
            let mut all = Vec::new();
            Body::new(Slow(rest), ahead.to_vec(), length)
                .read_to_end(&mut all)
                .map(|_| all)
                .map_err(|error| error.to_string())
        });
        let first = outcomes.next().unwrap();
        assert!(outcomes.all(|other| other == first), "{first:?}");
        first.map_err(io::Error::other)
    }

    #[test]
    fn chunks_are_joined() {
        let bytes = b"5\r\nhello\r\n1;x=y\r\n \r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\nrest";
        assert_eq!(read(bytes, Length::Chunked).unwrap(), b"hello 0123456789");
        assert_eq!(read(b"0\r\n\r\n", Length::Chunked).unwrap(), b"");
        for (wrong, why) in [
            (&b"5\r\nhelloX\r\n0\r\n\r\n"[..], "longer than it said"),
            (b"x\r\n", "no number"),
            (b"5\r\nhel", "2 bytes early"),
            (b"5\r\nhello\r\n", "before the last chunk"),
            (b"0\r\n", "before the last chunk"),
        ] {
            let error = read(wrong, Length::Chunked).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn lengths_are_kept() {
        assert_eq!(read(b"hello", Length::Known(3)).unwrap(), b"hel");
        assert_eq!(read(b"hello", Length::UntilClosed).unwrap(), b"hello");
        let error = read(b"hello", Length::Known(7)).unwrap_err().to_string();
        assert!(error.contains("2 bytes early"), "{error}");
    }

    fn length(status: u16, to_head: bool, fields: &[(&str, &str)]) -> Result<Length, String> {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| httparse::Header {
                name,
                value: value.as_bytes(),
            })
            .collect();
        Length::of(status, to_head, &fields)
    }

    #[test]
    fn the_length_follows_from_the_fields() {
        let known = |length| Ok(Length::Known(length));
        assert_eq!(length(200, false, &[]), Ok(Length::UntilClosed));
        assert_eq!(length(200, false, &[("content-length", "7")]), known(7));
        assert_eq!(length(200, true, &[("Content-Length", "7")]), known(0));
        assert_eq!(length(304, false, &[("Content-Length", "7")]), known(0));
        assert_eq!(length(200, false, &[("Content-Length", "7, 7")]), known(7));
        let chunked = [("Transfer-Encoding", "Chunked"), ("Content-Length", "7")];
        assert_eq!(length(200, false, &chunked), Ok(Length::Chunked));
        let identity = [("Transfer-Encoding", "identity"), ("Content-Length", "7")];
        assert_eq!(length(200, false, &identity), known(7));
        for wrong in [
            [("Content-Length", "7"), ("Content-Length", "8")],
            [("Content-Length", "+7"), ("X", "y")],
            [("Content-Length", ""), ("X", "y")],
            [("Content-Length", "99999999999999999999"), ("X", "y")],
            [("Transfer-Encoding", "gzip, chunked"), ("X", "y")],
        ] {
            assert!(length(200, false, &wrong).is_err(), "{wrong:?}");
        }
    }
}
