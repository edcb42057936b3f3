//! Errors of a router's configuration, and where their tables and keys stand in its
//! text.

use std::fmt;
use toml::de::DeTable;

/// The reason why a configuration is rejected, with the place and a remedy.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// The text is not TOML, or has an unknown key or a value of the wrong
    /// type.
    #[error("{message}")]
    Form {
        /// The byte offset of the error in the text; `None` if unknown.
        at: Option<usize>,
        /// The parser's message.
        message: String,
    },
    /// A value that is invalid.
    #[error("{place}{key} = {value}: {remedy}")]
    Value {
        /// The table with the value.
        place: TableRef,
        /// The key of the value in its table.
        key: &'static str,
        /// The value.
        value: String,
        /// The remedy: a value that would be valid.
        remedy: String,
    },
}

/// A table of a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableRef {
    /// The top level, before the first table.
    Top,
    /// A table that occurs once, such as `[kernel]`.
    Section(&'static str),
    /// An array table such as `[[route]]`, with the index from 0.
    Table(&'static str, usize),
}

impl fmt::Display for TableRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableRef::Top => Ok(()),
            TableRef::Section(name) => write!(f, "[{name}]: "),
            TableRef::Table(name, number) => write!(f, "[[{name}]] {}: ", number + 1),
        }
    }
}

impl ConfigError {
    /// The byte offset of the table in the configuration's text; `None` if the
    /// text does not contain it, as with an interface given on the command
    /// line.
    pub fn at(&self, text: &str) -> Option<usize> {
        match self {
            ConfigError::Form { at, .. } => *at,
            ConfigError::Value { place, key, .. } => {
                let document = DeTable::parse(text).ok()?;
                let top = document.get_ref();
                let (table, begin) = match place {
                    TableRef::Top => (top, None),
                    TableRef::Section(name) => {
                        let table = top.get(*name)?;
                        (table.get_ref().as_table()?, Some(table.span().start))
                    }
                    TableRef::Table(name, number) => {
                        let table = top.get(*name)?.get_ref().as_array()?.get(*number)?;
                        (table.get_ref().as_table()?, Some(table.span().start))
                    }
                };
                table.get(*key).map(|value| value.span().start).or(begin)
            }
        }
    }
}

/// The byte offset of the key `host` of `[kernel]` in a configuration's text;
/// `None` if it is absent.
pub fn host_at(text: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let kernel = document.get_ref().get("kernel")?;
    let host = kernel.get_ref().as_table()?.get("host")?;
    Some(host.span().start)
}

/// The byte offset of the link name `interface` in a configuration's text;
/// `None` if it is absent.
pub fn link_at(text: &str, interface: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let links = document.get_ref().get("link")?.get_ref().as_array()?;
    let names = links
        .iter()
        .filter_map(|link| link.get_ref().as_table()?.get("name"));
    let mut names = names.filter(|name| name.get_ref().as_str() == Some(interface));
    names.next().map(|name| name.span().start)
}
