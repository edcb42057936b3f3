//! Lists of subscribers: CSV with a subscriber and its keys in each line.
//!
//! ```text
//! # subscriber,key,key,…
//! alice,192.0.2.1,2001:db8:1::/56
//! "Bob, at the corner",vlan:7.12
//! carol,mac:02:00:00:00:00:01,pppoe:17
//! ```
//!
//! A field `policy:NAME` names the subscriber's policy instead of a key.
//!
//! A field may stand in double quotes (RFC 4180); a quote within is doubled. Blanks around fields,
//! empty lines and lines that begin with `#` do not count, and a first line `subscriber,key` (or
//! `keys`) is a heading. A subscriber may have several lines, whose keys are all its own. A key
//! belongs to one subscriber. A list with errors is refused as a whole.

use crate::policy::Policy;
use crate::sessions::KEYS_MAX;
use crate::{Key, KeyKind, SessionInfo};
use ahash::RandomState;
use std::fmt;

/// Largest size of a list, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of a subscriber's name, at most.
pub const NAME_BYTES_MAX: usize = 253;
/// Errors of a list that are kept to be reported; further ones are counted.
pub const ERRORS_MAX: usize = 20;

/// An error in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// The line, from 1.
    pub line: usize,
    /// The column of the field, in bytes, from 1.
    pub column: usize,
    /// The fault, and the correct form.
    pub message: String,
}

/// The errors of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListErrors {
    /// The first [`ERRORS_MAX`] of them.
    pub first: Vec<LineError>,
    /// How many there are.
    pub count: usize,
}

impl ListErrors {
    fn add(&mut self, line: usize, column: usize, message: impl fmt::Display) {
        self.count += 1;
        if self.first.len() < ERRORS_MAX {
            let message = message.to_string();
            self.first.push(LineError {
                line,
                column,
                message,
            });
        }
    }

    /// The lines that a person reads: `FILE:LINE:COLUMN: why` for each error.
    pub fn of(&self, file: impl fmt::Display) -> String {
        let each = self.first.iter().map(|error| {
            let LineError {
                line,
                column,
                message,
            } = error;
            format!("{file}:{line}:{column}: {message}")
        });
        let mut lines: Vec<String> = each.collect();
        let beyond = self.count - self.first.len();
        if beyond > 0 {
            lines.push(format!(
                "{file}: and {beyond} more errors; nothing of the list is used"
            ));
        }
        lines.join("\n")
    }
}

type Map<K, V> = hashbrown::HashMap<K, V, RandomState>;

/// Reads a list: a session for each subscriber, whose identifier is `list/` and its name. Keys must
/// be of `kinds`, which the counter looks up, and the subscribers at most `capacity`.
///
/// # Errors
/// All errors of the list, up to a limit.
pub fn read(
    text: &[u8],
    kinds: &[KeyKind],
    capacity: usize,
    seed: u64,
) -> Result<Vec<SessionInfo>, ListErrors> {
    read_with_policies(text, kinds, &[], capacity, seed)
}

/// As [`read`]; subscribers may have these policies.
///
/// # Errors
/// As there.
pub fn read_with_policies(
    text: &[u8],
    kinds: &[KeyKind],
    policies: &[Policy],
    capacity: usize,
    seed: u64,
) -> Result<Vec<SessionInfo>, ListErrors> {
    let hash = RandomState::with_seed(seed as usize);
    let mut list = List {
        kinds,
        policies,
        sessions: Vec::new(),
        errors: ListErrors::default(),
        lines: Map::with_hasher(hash.clone()),
        by_name: Map::with_hasher(hash),
    };
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut has_begun = false;
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let trimmed = line.trim_ascii();
        if trimmed.is_empty() || trimmed.starts_with(b"#") {
            continue;
        }
        let is_heading =
            !has_begun && (trimmed == b"subscriber,key" || trimmed == b"subscriber,keys");
        has_begun = true;
        if !is_heading {
            list.line(number + 1, line);
        }
    }
    if list.sessions.len() > capacity {
        let count = list.sessions.len();
        let why = format!("{count} subscribers, and `capacity` is {capacity}: raise it");
        list.errors.add(1, 1, why);
    }
    if list.errors.count > 0 {
        return Err(list.errors);
    }
    Ok(list.sessions)
}

struct List<'a> {
    kinds: &'a [KeyKind],
    policies: &'a [Policy],
    sessions: Vec<SessionInfo>,
    errors: ListErrors,
    /// The line of each key.
    lines: Map<Key, usize>,
    by_name: Map<String, usize>,
}

impl List<'_> {
    fn line(&mut self, number: usize, line: &[u8]) {
        let line = match std::str::from_utf8(line) {
            Ok(line) => line,
            Err(error) => {
                let at = error.valid_up_to();
                let byte = line[at];
                return self.errors.add(
                    number,
                    at + 1,
                    format!("the byte {byte:#04x} is no UTF-8"),
                );
            }
        };
        let fields = match fields(line) {
            Ok(fields) => fields,
            Err((column, why)) => return self.errors.add(number, column, why),
        };
        let (column, name) = &fields[0];
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            let why = format!(
                "a subscriber's name has 1 to {NAME_BYTES_MAX} bytes, none a control character"
            );
            return self.errors.add(number, *column, why);
        }
        if fields.len() < 2 {
            let why = format!("`{}` has no key: write it behind a comma", short(name));
            return self.errors.add(number, line.len() + 1, why);
        }
        let errors_before = self.errors.count;
        let mut keys = Vec::new();
        let mut policy = None;
        for (column, text) in &fields[1..] {
            let read = match text.strip_prefix("policy:") {
                Some(name) => self.policy(name).map(|name| policy = Some(name)),
                None => self.key(number, text).map(|key| keys.push(key)),
            };
            if let Err(why) = read {
                self.errors.add(number, *column, why);
            }
        }
        if self.errors.count > errors_before {
            return;
        }
        let session = match self.by_name.get(&**name) {
            Some(at) => *at,
            None => {
                self.by_name.insert(name.clone(), self.sessions.len());
                self.sessions.push(SessionInfo {
                    id: format!("list/{name}"),
                    subscriber: name.clone(),
                    keys: Vec::new(),
                    ..SessionInfo::default()
                });
                self.sessions.len() - 1
            }
        };
        let known = &mut self.sessions[session].policy;
        if policy.is_some() && known.is_some() && *known != policy {
            let why = format!("`{}` has another policy in an earlier line", short(name));
            return self.errors.add(number, *column, why);
        }
        *known = policy.or(known.take());
        let own = &mut self.sessions[session].keys;
        own.extend(keys);
        if own.len() > KEYS_MAX {
            let why = format!("`{}` has more than {KEYS_MAX} keys", short(name));
            self.errors.add(number, *column, why);
        }
    }

    fn policy(&self, name: &str) -> Result<String, String> {
        if self.policies.iter().any(|policy| policy.name == name) {
            return Ok(name.to_owned());
        }
        let name = short(name);
        Err(format!(
            "there is no policy `{name}`: add [policy.{name}] to the configuration"
        ))
    }

    fn key(&mut self, number: usize, text: &str) -> Result<Key, String> {
        let key: Key = text.parse().map_err(|error| format!("{error}"))?;
        let kind = key.kind();
        if !self.kinds.contains(&kind) {
            let name = kind.name();
            return Err(format!(
                "{key} is never looked up: add \"{name}\" to `keys`"
            ));
        }
        match self.lines.insert(key, number) {
            None => Ok(key),
            Some(before) => {
                self.lines.insert(key, before);
                Err(format!(
                    "{key} is in line {before} already: a key belongs to one subscriber"
                ))
            }
        }
    }
}

fn short(name: &str) -> String {
    name.chars().take(60).collect()
}

/// The fields of a line, each with its column.
///
/// # Errors
/// The column of a quote that is not closed or not followed by a comma, and why.
fn fields(line: &str) -> Result<Vec<(usize, String)>, (usize, &'static str)> {
    let mut fields = Vec::new();
    let mut at = 0;
    loop {
        let rest = &line[at..];
        let start = at + (rest.len() - rest.trim_start().len());
        let (field, end) = if line[start..].starts_with('"') {
            quoted(line, start)?
        } else {
            let end = line[start..]
                .find(',')
                .map_or(line.len(), |comma| start + comma);
            (line[start..end].trim_end().to_owned(), end)
        };
        fields.push((start + 1, field));
        if end == line.len() {
            return Ok(fields);
        }
        at = end + 1;
    }
}

/// A field in quotes that starts at `start`, and where the comma behind it stands.
fn quoted(line: &str, start: usize) -> Result<(String, usize), (usize, &'static str)> {
    let mut field = String::new();
    let mut at = start + 1;
    loop {
        let Some(quote) = line[at..].find('"') else {
            return Err((start + 1, "the quote is not closed in this line"));
        };
        field.push_str(&line[at..at + quote]);
        at += quote + 1;
        if !line[at..].starts_with('"') {
            break;
        }
        field.push('"');
        at += 1;
    }
    let rest = line[at..].trim_start();
    if rest.is_empty() {
        return Ok((field, line.len()));
    }
    if !rest.starts_with(',') {
        return Err((
            at + 1,
            "a comma must follow the closing quote; a quote in a field is doubled",
        ));
    }
    Ok((field, line.len() - rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Vec<SessionInfo>, ListErrors> {
        super::read(text, &KeyKind::ALL, 10, 1)
    }

    #[test]
    fn a_list_is_read() {
        let text = "\u{feff}subscriber,keys\r\n# comment\r\n\r\nalice , 192.0.2.1 ,2001:db8::/56\r\n\"Bob, \"\"B\"\"\" ,vlan:7.12\nalice,pppoe:1";
        let sessions = read(text.as_bytes()).unwrap();
        let names: Vec<&str> = sessions
            .iter()
            .map(|session| &*session.subscriber)
            .collect();
        assert_eq!(names, ["alice", "Bob, \"B\""]);
        assert_eq!(sessions[0].id, "list/alice");
        let keys: Vec<String> = sessions[0].keys.iter().map(Key::to_string).collect();
        assert_eq!(keys, ["192.0.2.1", "2001:db8::/56", "pppoe:1"]);
        assert_eq!(read(b"").unwrap(), []);
    }

    #[test]
    fn a_field_may_name_a_policy() {
        let policy = |name: &str| Policy {
            name: name.to_owned(),
            rates: [None; 2],
            over: Default::default(),
            quota_bytes: Some(1),
            spent: Default::default(),
            spent_request: None,
        };
        let policies = [policy("slow"), policy("fast")];
        let read = |text: &str| {
            super::read_with_policies(text.as_bytes(), &KeyKind::ALL, &policies, 10, 1)
        };
        let sessions = read("a,policy:slow,192.0.2.1\nb,192.0.2.2\na,192.0.2.3").unwrap();
        assert_eq!(sessions[0].policy.as_deref(), Some("slow"));
        assert_eq!(sessions[0].keys.len(), 2);
        assert_eq!(sessions[1].policy, None);
        let errors = read("a,192.0.2.1,policy:none").unwrap_err();
        assert_eq!((errors.first[0].line, errors.first[0].column), (1, 13));
        assert!(errors.first[0].message.contains("add [policy.none]"));
        let errors = read("a,192.0.2.1,policy:slow\na,policy:fast").unwrap_err();
        assert!(errors.first[0].message.contains("another policy"));
    }

    #[test]
    fn every_error_has_its_line_and_column() {
        for (text, line, column, why) in [
            (&b"alice"[..], 1, 6, "has no key"),
            (b"\n,192.0.2.1", 2, 1, "1 to 253 bytes"),
            (b"a,192.0.2.1,x", 1, 13, "`x` is no key"),
            (b"a,", 1, 3, "`` is no key"),
            (
                b"a,192.0.2.1\nb,192.0.2.2\nc, 192.0.2.1",
                3,
                4,
                "in line 1 already",
            ),
            (b"\"a,192.0.2.1", 1, 1, "not closed"),
            (b"\"a\"b,192.0.2.1", 1, 4, "a comma must follow"),
            (b"a,\xff", 1, 3, "0xff is no UTF-8"),
            (b"subscriber,key\nsubscriber,key", 2, 12, "`key` is no key"),
            (b"a\x07,192.0.2.1", 1, 1, "control character"),
        ] {
            let errors = read(text).unwrap_err();
            assert_eq!(errors.count, 1);
            let error = &errors.first[0];
            assert_eq!((error.line, error.column), (line, column), "{error:?}");
            assert!(error.message.contains(why), "{error:?}");
        }
        let errors = super::read(b"a,vlan:1", &[KeyKind::Mac], 10, 1).unwrap_err();
        assert!(
            errors
                .of("a.csv")
                .contains("a.csv:1:3: vlan:1 is never looked up: add \"vlan\"")
        );
        let errors = super::read(b"a,vlan:1\nb,vlan:2", &[KeyKind::Vlan], 1, 1).unwrap_err();
        assert!(errors.first[0].message.contains("2 subscribers"));
    }

    #[test]
    fn a_million_lines_are_read_and_their_errors_found() {
        use std::fmt::Write;
        let mut text = String::new();
        for number in 0..1_000_000u32 {
            let [_, a, b, c] = number.to_be_bytes();
            let wrong = if number % 20_000 == 19_999 { "x" } else { "" };
            writeln!(text, "subscriber-{number},10.{a}.{b}.{c}{wrong}").unwrap();
        }
        let errors = super::read(text.as_bytes(), &KeyKind::ALL, 1 << 20, 1).unwrap_err();
        assert_eq!((errors.count, errors.first.len()), (50, ERRORS_MAX));
        assert_eq!(
            (errors.first[0].line, errors.first[1].line),
            (20_000, 40_000)
        );
        let told = errors.of("list.csv");
        assert!(
            told.starts_with("list.csv:20000:18: `10.0.78.31x` is no key"),
            "{told}"
        );
        assert!(told.ends_with("list.csv: and 30 more errors; nothing of the list is used"));
    }
}
