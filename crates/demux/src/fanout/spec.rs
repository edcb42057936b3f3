//! What a port asks for: a share, or to be a member of a group.

use super::{BUCKETS, MEMBERS_MAX};
use std::fmt;
use std::str::FromStr;

/// The largest length of a group's name, in bytes.
const NAME_LEN_MAX: usize = 32;

/// How a port takes part in a fan-out. As text `I/N` or a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fanout {
    /// A share that stays the same, whether or not there are ports for the others.
    Share(Share),
    /// One of the ports of a group, which share all frames among them.
    Group(Group),
}

/// Share number `index`, from 0, of `of` equal ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Share {
    index: u32,
    of: u32,
}

/// A group, by its name. A number as the name is also the most members it may
/// have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Group(String);

/// Why a text says nothing of a fan-out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FanoutError {
    /// There is no such share.
    #[error(
        "`{0}` is no share of a fan-out: write I/N, N from 1 to {MEMBERS_MAX} and I from 0 to N-1, such as 0/4"
    )]
    Share(String),
    /// There can be no group of this name.
    #[error(
        "`{0}` is no group of a fan-out: write a name of at most {NAME_LEN_MAX} letters, digits, `-`, `_` and `.`, \
         a number of members from 1 to {MEMBERS_MAX}, or a share such as 0/4"
    )]
    Group(String),
}

impl Share {
    /// Share number `index` of `of`; `None` if there is none.
    pub fn new(index: u32, of: u32) -> Option<Share> {
        let is_one = (1..=MEMBERS_MAX).contains(&of) && index < of;
        is_one.then_some(Share { index, of })
    }

    /// The number of the share.
    pub fn index(self) -> u32 {
        self.index
    }

    /// How many shares there are.
    pub fn of(self) -> u32 {
        self.of
    }

    /// Whether a bucket belongs to the share.
    pub fn has(self, bucket: usize) -> bool {
        bucket * self.of as usize / BUCKETS == self.index as usize
    }
}

impl Group {
    /// The group's name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The most members that the group may have.
    pub fn members_max(&self) -> u32 {
        self.0.parse().unwrap_or(MEMBERS_MAX)
    }
}

impl FromStr for Share {
    type Err = FanoutError;

    fn from_str(text: &str) -> Result<Share, FanoutError> {
        let numbers = text.split_once('/');
        let numbers = numbers.and_then(|(index, of)| Some((number(index)?, number(of)?)));
        let share = numbers.and_then(|(index, of)| Share::new(index, of));
        share.ok_or_else(|| FanoutError::Share(shown(text)))
    }
}

impl FromStr for Fanout {
    type Err = FanoutError;

    fn from_str(text: &str) -> Result<Fanout, FanoutError> {
        if text.contains('/') {
            return text.parse().map(Fanout::Share);
        }
        let fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=NAME_LEN_MAX).contains(&text.len()) && text.bytes().all(fit);
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let counts = number(text).is_some_and(|count| (1..=MEMBERS_MAX).contains(&count));
        if is_name && (counts || !is_number) {
            return Ok(Fanout::Group(Group(text.to_owned())));
        }
        Err(FanoutError::Group(shown(text)))
    }
}

/// A number of digits alone, without leading zeros: one number has one text.
fn number(text: &str) -> Option<u32> {
    let is_plain = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| is_plain)
}

/// A text for a message, truncated if it is long.
fn shown(text: &str) -> String {
    text.chars().take(2 * NAME_LEN_MAX).collect()
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl fmt::Display for Fanout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fanout::Share(share) => share.fmt(f),
            Fanout::Group(group) => f.write_str(group.name()),
        }
    }
}
