//! Ports as given on the command line or in a file.

use crate::config::{self, Wrong};
use crate::error::CliError;
use crate::input::read_limited;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Unexpected, Visitor};
use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use toml::Spanned;
use weir_filter::lang::Language;

/// Largest number of ports of one `weir demux`.
const PORTS_MAX: usize = 1 << 20;
/// Longest name of a port, in bytes; with an extension it is a file name.
const NAME_LEN_MAX: usize = 200;
/// The largest file of ports, in bytes.
const CONFIG_LEN_MAX: u64 = 256 << 20;
/// Bytes of a file of ports that are parsed at a time, if a table ends there.
const PARSE_CHUNK_LEN: usize = 64 << 10;

/// One port, as given by the user.
#[derive(Clone, Debug)]
pub(crate) struct PortSpec {
    pub(crate) name: String,
    pub(crate) filter: String,
    pub(crate) lang: Language,
    /// The given priority; otherwise the text's own (a stack-language text has
    /// one), otherwise 0.
    pub(crate) priority: Option<u16>,
    pub(crate) copy: bool,
    /// The line of its table in the file of ports.
    pub(crate) line: Option<NonZeroU32>,
}

/// The file of ports: TOML, a table `[[port]]` for each.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default, deserialize_with = "tables")]
    port: Vec<Spanned<PortTable>>,
}

#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct PortTable {
    name: String,
    filter: String,
    #[serde(default)]
    lang: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "priority")]
    priority: Option<u16>,
    #[serde(default)]
    copy: bool,
}

/// As serde does it, with a message for users.
fn tables<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Spanned<PortTable>>, D::Error> {
    struct Tables;
    impl<'de> Visitor<'de> for Tables {
        type Value = Vec<Spanned<PortTable>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table `[[port]]`, in two brackets, for each port")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, tables: A) -> Result<Self::Value, A::Error> {
            Deserialize::deserialize(SeqAccessDeserializer::new(tables))
        }
    }
    from.deserialize_any(Tables)
}

fn priority<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    struct Priority;
    impl Visitor<'_> for Priority {
        type Value = Option<u16>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number from 0 to 65535")
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
            let priority = u16::try_from(number);
            priority
                .map(Some)
                .map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
        }
    }
    from.deserialize_any(Priority)
}

/// Reads the ports of a TOML file.
pub(crate) fn from_file(path: &Path) -> Result<Vec<PortSpec>, CliError> {
    let text = read_limited::text(path, CONFIG_LEN_MAX)?;
    let ports = from_toml(&text).map_err(|wrong| wrong.refused(path))?;
    if ports.is_empty() {
        let wrong =
            Wrong::in_all("it has no ports: give each a table `[[port]]` with a name and a filter");
        return Err(wrong.refused(path));
    }
    Ok(ports)
}

/// Parses the ports of a TOML text.
///
/// A parsed document takes many times the memory of its text, so a long text is
/// parsed in chunks. The error is always that of the whole text.
pub(crate) fn from_toml(text: &str) -> Result<Vec<PortSpec>, Wrong> {
    let mut ports = Vec::new();
    let mut lines = 0;
    for piece in table_chunks(text) {
        match parsed(piece, lines) {
            Ok(more) => ports.extend(more),
            Err(_) => return parsed(text, 0),
        }
        lines += newlines(piece);
    }
    Ok(ports)
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// Splits a text before lines that look like the start of a `[[port]]` table.
///
/// If such a line is inside a string or an array, the chunk before it is not
/// valid TOML, since a string or array does not end in it.
fn table_chunks(text: &str) -> impl Iterator<Item = &str> {
    const BEGIN: &str = "\n[[port]]";
    let mut rest = text;
    std::iter::from_fn(move || {
        let skipped = rest.floor_char_boundary(PARSE_CHUNK_LEN);
        let cut = rest[skipped..].find(BEGIN);
        let len = cut.map_or(rest.len(), |at| skipped + at + 1);
        let piece;
        (piece, rest) = rest.split_at(len);
        (!piece.is_empty()).then_some(piece)
    })
}

/// The ports of a complete TOML document, before which there are `lines_before`
/// lines.
fn parsed(text: &str, lines_before: usize) -> Result<Vec<PortSpec>, Wrong> {
    let config: Config = config::parse(text)?;
    // Tables are in the order of their lines.
    let (mut lines, mut counted) = (lines_before, 0);
    let ports = config.port.into_iter().map(|table| {
        let at = table.span().start;
        lines += newlines(&text[counted..at.max(counted)]);
        counted = at.max(counted);
        let table = table.into_inner();
        let lang = match &table.lang {
            None => Language::Expr,
            Some(lang) => lang.get_ref().parse().map_err(|error| {
                let why = format!("port `{}`: {error}", table.name);
                Wrong::at(text, lang.span().start, why)
            })?,
        };
        Ok(PortSpec {
            name: table.name,
            filter: table.filter,
            lang,
            priority: table.priority,
            copy: table.copy,
            line: NonZeroU32::new(u32::try_from(lines + 1).unwrap_or(0)),
        })
    });
    ports.collect()
}

/// `NAME=FILTER`, as `--port` takes it.
pub(crate) fn from_argument(text: &str) -> Result<PortSpec, String> {
    let (name, filter) = text.split_once('=').ok_or_else(|| {
        format!("`{text}` has no `=`: say NAME=FILTER, such as dns='udp port 53'")
    })?;
    Ok(PortSpec {
        name: name.to_owned(),
        filter: filter.to_owned(),
        lang: Language::Expr,
        priority: None,
        copy: false,
        line: None,
    })
}

/// `NAME=N`, as `--priority` takes it.
pub(crate) fn priority_argument(text: &str) -> Result<(String, u16), String> {
    let (name, number) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` has no `=`: say NAME=N, such as dns=10"))?;
    let priority = number
        .parse()
        .map_err(|_| format!("`{number}` is not a priority: a number from 0 to 65535"))?;
    Ok((name.to_owned(), priority))
}

/// Makes the named ports copies. The word `all`, unless a port has that name,
/// means every port.
pub(crate) fn set_copies(ports: &mut [PortSpec], names: &[String]) -> Result<(), CliError> {
    for name in names {
        if name == "all" && !ports.iter().any(|port| port.name == "all") {
            ports.iter_mut().for_each(|port| port.copy = true);
        } else {
            named(ports, name, "--copy")?.copy = true;
        }
    }
    Ok(())
}

/// Sets the priorities of the named ports.
pub(crate) fn set_priorities(
    ports: &mut [PortSpec],
    priorities: &[(String, u16)],
) -> Result<(), CliError> {
    for (name, priority) in priorities {
        named(ports, name, "--priority")?.priority = Some(*priority);
    }
    Ok(())
}

fn named<'p>(
    ports: &'p mut [PortSpec],
    name: &str,
    option: &str,
) -> Result<&'p mut PortSpec, CliError> {
    const NAMES_SHOWN: usize = 10;
    if let Some(place) = ports.iter().position(|port| port.name == name) {
        return Ok(&mut ports[place]);
    }
    let names = ports.iter().map(|port| port.name.as_str());
    let names: Vec<&str> = names.take(NAMES_SHOWN).collect();
    let more = if ports.len() > NAMES_SHOWN {
        ", …"
    } else {
        ""
    };
    Err(CliError::refused(format!(
        "{option} {name}: no port has this name; the ports are {}{more}",
        names.join(", ")
    )))
}

impl PortSpec {
    /// The port's position, as the prefix of a message: `FILE:LINE: `, or empty
    /// for a port of the command line.
    pub(crate) fn location(&self, file: Option<&Path>) -> String {
        let place = file.zip(self.line);
        let place = place.map(|(file, line)| format!("{}:{line}: ", config::name(file)));
        place.unwrap_or_default()
    }
}

/// Checks names and number of ports: each name is unique and valid as a file
/// name. Ports with a line number are from `file`.
pub(crate) fn check(ports: &[PortSpec], file: Option<&Path>) -> Result<(), CliError> {
    if ports.is_empty() {
        return Err(CliError::refused(
            "no ports: give --port NAME=FILTER, or --config FILE with [[port]] tables",
        ));
    }
    if ports.len() > PORTS_MAX {
        return Err(CliError::refused(format!(
            "{} ports; at most {PORTS_MAX} are allowed",
            ports.len()
        )));
    }
    for port in ports {
        let refuse = |why| CliError::refused(format!("{}{why}", port.location(file)));
        check_name(&port.name).map_err(refuse)?;
    }
    let mut sorted: Vec<&PortSpec> = ports.iter().collect();
    // Stable: of two ports with one name, the earlier comes first.
    sorted.sort_by_key(|port| port.name.as_str());
    let twice = sorted.windows(2).find(|pair| pair[0].name == pair[1].name);
    let Some([first, second]) = twice else {
        return Ok(());
    };
    let before = match first.line {
        Some(line) if second.line.is_some() => format!("is in line {line} already"),
        _ => "is given twice".to_owned(),
    };
    Err(CliError::refused(format!(
        "{}port `{}` {before}: give each port a name of its own (one port may join filters with `or`)",
        second.location(file),
        second.name
    )))
}

fn check_name(name: &str) -> Result<(), String> {
    let fit = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | ':' | '@');
    let trouble = if name.is_empty() {
        "it is empty".into()
    } else if name.len() > NAME_LEN_MAX {
        format!(
            "it has {} bytes, at most {NAME_LEN_MAX} are allowed",
            name.len()
        )
    } else if name.starts_with(['.', '-']) {
        "it starts with a dot or a dash".into()
    } else if let Some(unfit) = name.chars().find(|c| !fit(*c)) {
        format!(
            "only letters, digits and -_.+:@ are allowed, not `{}`",
            unfit.escape_debug()
        )
    } else {
        return Ok(());
    };
    let shown: String = name.chars().take(40).collect();
    let dots = if shown.len() < name.len() { "…" } else { "" };
    Err(format!(
        "the port name `{}{dots}` cannot name a file, too: {trouble}",
        shown.escape_debug()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(names: &[&str]) -> Vec<PortSpec> {
        let argument = |name: &&str| from_argument(&format!("{name}=udp")).unwrap();
        names.iter().map(argument).collect()
    }

    #[test]
    fn a_filter_may_hold_equal_signs() {
        let port = from_argument("a=ip[0] = 5").unwrap();
        assert_eq!(
            (port.name.as_str(), port.filter.as_str()),
            ("a", "ip[0] = 5")
        );
        assert!(from_argument("udp").unwrap_err().contains("no `=`"));
    }

    #[test]
    fn names_are_checked() {
        assert!(check(&ports(&["a", "b"]), None).is_ok());
        let long = "n".repeat(300);
        for (bad, fault) in [
            ("", "empty"),
            ("../x", "starts with a dot"),
            ("a/b", "not `/`"),
            (".hidden", "starts with a dot"),
            ("-x", "or a dash"),
            ("a b", "not ` `"),
            ("a\nb", r"`a\nb`"),
            ("a\u{202e}b", r"not `\u{202e}`"),
            (&long, "300 bytes, at most 200"),
        ] {
            let error = check(&ports(&[bad]), None).unwrap_err().to_string();
            assert!(error.contains(fault), "{bad}: {error}");
            assert!(!error.contains('\n') && error.len() < 200, "{error}");
        }
        assert!(check(&ports(&["日本", "é-1_2.3+4:5@6"]), None).is_ok());
        assert!(check(&ports(&["a", "b", "a"]), None).is_err());
        assert!(check(&[], None).is_err());
    }

    /// A file of that many ports: more than one chunk.
    fn long_file(ports: usize) -> String {
        let table = |n| format!("[[port]]\nname = 'p{n}'\nfilter = 'udp dst port {n}'\n");
        (0..ports).map(table).collect()
    }

    #[test]
    fn a_long_file_is_read_in_pieces() {
        const PORTS: usize = 5000;
        let text = long_file(PORTS);
        let lens: Vec<usize> = table_chunks(&text).map(str::len).collect();
        assert!(lens.len() > 2 && lens.iter().all(|len| *len < PARSE_CHUNK_LEN + 100));
        assert_eq!(lens.iter().sum::<usize>(), text.len());
        let ports = from_toml(&text).unwrap();
        assert!(ports.len() == PORTS && ports[PORTS - 1].filter == "udp dst port 4999");
        let lines = ports.iter().map(|port| port.line.unwrap().get());
        assert!(lines.eq((0..PORTS as u32).map(|port| 3 * port + 1)));
        assert!(table_chunks("").next().is_none() && from_toml("").unwrap().is_empty());
    }

    #[test]
    fn an_error_in_a_late_piece_has_its_line() {
        let mut text = long_file(4000);
        for (end, fault) in [
            ("[[port]]\nname = 5\n", ":12002:8: invalid type"),
            ("[[port]]\nname = 'a'\n", "missing field `filter`"),
            ("[port]\nname = 'a'\n", ":12001:"),
            ("[[ports]]\n", "unknown field `ports`"),
        ] {
            let len = text.len();
            text += end;
            let error = from_toml(&text).unwrap_err();
            let said = error.of("ports.toml");
            assert!(said.contains(fault), "{said}");
            assert_eq!(error, parsed(&text, 0).unwrap_err());
            text.truncate(len);
        }
    }

    #[test]
    fn what_is_wrong_with_a_port_of_a_file_has_its_line() {
        let file = Some(Path::new("ports.toml"));
        let port = |name| format!("\n[[port]]\nname = '{name}'\nfilter = ''\n");
        for (names, said) in [
            (["a", "b/c"], "ports.toml:6: the port name `b/c`"),
            (["a", "a"], "ports.toml:6: port `a` is in line 2 already"),
        ] {
            let text: String = names.map(port).concat();
            let error = check(&from_toml(&text).unwrap(), file)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(said), "{error}");
        }
        // A port of the command line comes first, and has no line number.
        let mut both = ports(&["a"]);
        both.extend(from_toml(&port("a")).unwrap());
        let error = check(&both, file).unwrap_err().to_string();
        assert!(
            error.starts_with("ports.toml:2: port `a` is given twice"),
            "{error}"
        );
        let error = from_toml(&(port("a") + "lang = 'perl'")).unwrap_err();
        assert!(
            error.of("f").starts_with("f:5:8: port `a`: `perl`"),
            "{error:?}"
        );
    }

    #[test]
    fn a_table_in_a_string_is_no_table() {
        // The chunk would end inside the string.
        let filter = format!(
            "{}[[port]]\nname = 'b'\nfilter = ''\n",
            "\n".repeat(PARSE_CHUNK_LEN)
        );
        let text = format!("[[port]]\nname = 'a'\nfilter = \'\'\'{filter}\'\'\'\n");
        let ports = from_toml(&text).unwrap();
        assert_eq!((ports.len(), ports[0].name.as_str()), (1, "a"));
        assert_eq!(ports[0].filter, filter[1..]);
        let text = format!("port = [\n{}[[port]]\n]\n", "\n".repeat(PARSE_CHUNK_LEN));
        assert_eq!(from_toml(&text).unwrap_err(), parsed(&text, 0).unwrap_err());
    }

    #[test]
    fn all_is_a_port_first_and_every_port_else() {
        let mut named = ports(&["a", "all"]);
        set_copies(&mut named, &["all".into()]).unwrap();
        assert_eq!(
            named.iter().map(|port| port.copy).collect::<Vec<_>>(),
            [false, true]
        );
        let mut unnamed = ports(&["a", "b"]);
        set_copies(&mut unnamed, &["all".into()]).unwrap();
        assert!(unnamed.iter().all(|port| port.copy));
        assert!(set_copies(&mut unnamed, &["c".into()]).is_err());
    }

    #[test]
    fn a_file_of_ports_is_checked_word_by_word() {
        let ports = from_toml(
            "[[port]]\nname = 'web'\nfilter = 'tcp port 80'\npriority = 10\n\n[[port]]\nname = 'all'\nfilter = ''\ncopy = true\n",
        )
        .unwrap();
        assert_eq!((ports[0].priority, ports[0].copy), (Some(10), false));
        assert_eq!((ports[1].priority, ports[1].copy), (None, true));
        for (text, fault) in [
            ("[[port]]\nname = 'a'\n", "filter"),
            ("[[port]]\nname = 'a'\nfilter = ''\nprio = 1\n", "prio"),
            (
                "[[port]]\nname = 'a'\nfilter = ''\npriority = -1\n",
                "`-1`, expected a number from 0 to 65535",
            ),
            (
                "[[port]]\nname = 'a'\nfilter = ''\npriority = 65536\n",
                "65535",
            ),
            (
                "[[port]]\nname = 'a'\nfilter = ''\npriority = 'high'\n",
                "65535",
            ),
            (
                "[[port]]\nname = 'a'\nfilter = ''\ncopy = 'yes'\n",
                "true or false",
            ),
            ("[port]\nname = 'a'\nfilter = ''\n", "`[[port]]`"),
            ("port = 'a'\n", "`[[port]]`"),
            ("[[port]]\nname = 'a'\nfilter = ''\nlang = 'c'\n", "c"),
            ("[[ports]]\n", "ports"),
        ] {
            let error = from_toml(text).unwrap_err();
            assert!(error.why.contains(fault), "{text}: {error:?}");
        }
    }
}
