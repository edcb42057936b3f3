//! `http` URLs (RFC 3986, RFC 9110 §4.2.1).

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Where a resource is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Url {
    /// A name or an address, that of IPv6 without its brackets, its zone
    /// behind a `%`.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query, as the request has it.
    pub(crate) target: String,
}

/// The longest URL, in bytes.
const LEN_MAX: usize = 8 << 10;

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let wrong = |why: &str| Err(format!("`{text}` {why}"));
        if text.len() > LEN_MAX {
            return Err(format!("a URL of {} bytes is too long", text.len()));
        }
        if let Some(bad) = text.chars().find(|c| !c.is_ascii_graphic()) {
            return wrong(&format!("has {bad:?} in it: write it as %XX"));
        }
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) => {
                return wrong(&format!("is of {scheme}: only http is spoken here"));
            }
            None => text,
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return wrong("has a user in it: give it with -H 'Authorization: …'");
        }
        let (host, port) = split_port(authority);
        let host = match host.strip_prefix('[') {
            Some(inner) => match inner.strip_suffix(']').and_then(v6) {
                Some(host) => host,
                None => return wrong("has no IPv6 address in brackets: write [2001:db8::1]"),
            },
            None if host.contains(':') => {
                return wrong("has an IPv6 address without brackets: write [2001:db8::1]");
            }
            None => host.to_owned(),
        };
        if host.is_empty() || host.contains(['[', ']']) {
            return wrong("names no host: write http://HOST[:PORT]/PATH");
        }
        let port = match port {
            None | Some("") => 80,
            // A number of Rust's may have a sign.
            Some(port) => match port.parse() {
                Ok(number) if number > 0 && !port.starts_with('+') => number,
                _ => return wrong(&format!("has `{port}` for a port: give 1 to 65535")),
            },
        };
        let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        Ok(Url {
            host,
            port,
            target: without_dot_segments(path) + query,
        })
    }
}

/// A path without the segments `.` and `..`, and the segments that the latter
/// lead back over (RFC 3986 section 5.2.4). It begins with a slash.
fn without_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_dots = [".", ".."].contains(&segment);
        if segment == ".." {
            kept.pop();
        }
        if !is_dots {
            kept.push(segment);
        } else if segments.peek().is_none() {
            // A folder is meant: its name ends in a slash.
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

/// An address of IPv6, the link that it is on behind a `%`, which is `%25` in a
/// URL (RFC 6874) and plain to many.
fn v6(text: &str) -> Option<String> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, zone.strip_prefix("25").unwrap_or(zone)),
        None => (text, ""),
    };
    address.parse::<Ipv6Addr>().ok()?;
    Some(match zone {
        "" => address.to_owned(),
        zone => format!("{address}%{zone}"),
    })
}

/// Host and port; the colons within brackets belong to the host.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

impl Url {
    /// The field `Host`.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            // The zone means nothing to the other side.
            format!("[{}]", self.host.split('%').next().unwrap_or_default())
        } else {
            self.host.clone()
        };
        match self.port {
            80 => host,
            port => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        for (text, host, port, target) in [
            ("http://192.0.2.1/", "192.0.2.1", 80, "/"),
            ("http://192.0.2.1", "192.0.2.1", 80, "/"),
            ("HTTP://a:8080/b/c?d=e#f", "a", 8080, "/b/c?d=e"),
            ("http://[2001:db8::1]:81?x", "2001:db8::1", 81, "/?x"),
            ("http://[2001:db8::1]", "2001:db8::1", 80, "/"),
            ("a.example:/x", "a.example", 80, "/x"),
            ("http://[fe80::1%25tap0]/", "fe80::1%tap0", 80, "/"),
            ("a/b/../c", "a", 80, "/c"),
            ("a/../b", "a", 80, "/b"),
            ("a/b/../../../c/./d?x=/../y", "a", 80, "/c/d?x=/../y"),
            ("a/b/..", "a", 80, "/"),
            ("a/b/c/..", "a", 80, "/b/"),
            ("a/b/.", "a", 80, "/b/"),
            ("a/.", "a", 80, "/"),
            ("a//b//../c", "a", 80, "//b/c"),
            ("a/b/.../..c", "a", 80, "/b/.../..c"),
            ("a?/../b", "a", 80, "/?/../b"),
            ("http://[fe80::1%tap0]:81", "fe80::1%tap0", 81, "/"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(
                (&*url.host, url.port, &*url.target),
                (host, port, target),
                "{text}"
            );
        }
        let url: Url = "http://[::1]:81/x".parse().unwrap();
        assert_eq!(url.to_string(), "http://[::1]:81/x");
        let url: Url = "http://[fe80::1%25tap0]/".parse().unwrap();
        assert_eq!(url.authority(), "[fe80::1]");
    }

    #[test]
    fn others_are_refused() {
        for (text, why) in [
            ("https://a/", "only http"),
            ("http:///x", "names no host"),
            ("http://a b/", "' '"),
            ("http://a/\r\nX: y", "'\\r'"),
            ("http://a:0/", "`0`"),
            ("http://a:99999/", "`99999`"),
            ("http://u:p@a/", "has a user"),
            ("http://[::1/", "no IPv6 address in brackets"),
            ("http://[]/", "no IPv6 address in brackets"),
            ("http://[192.0.2.1]/", "no IPv6 address in brackets"),
            ("http://2001:db8::1/", "without brackets"),
            ("http://2001:db8::1:80/", "without brackets"),
            ("http://a:+80/", "`+80`"),
            ("http://a]/", "names no host"),
            ("http://é/", "'é'"),
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
