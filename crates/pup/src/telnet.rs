//! Pup Telnet: characters as bytes of a stream, and marks for the rest (Pup Telnet
//! Protocol).

/// Marks; a byte of argument follows the first three in the stream.
pub mod mark {
    /// The width of the user's lines, in characters.
    pub const LINE_WIDTH: u8 = 2;
    /// The length of the user's pages, in lines.
    pub const PAGE_LENGTH: u8 = 3;
    /// The type of the user's terminal.
    pub const TERMINAL_TYPE: u8 = 4;
    /// A question that [`TIMING_REPLY`] answers, once all before it is displayed.
    pub const TIMING: u8 = 5;
    /// The answer to [`TIMING`].
    pub const TIMING_REPLY: u8 = 6;
}

/// Data and commands from a Telnet peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A character.
    Character(u8),
    /// A setting: one of the first three marks, and its argument.
    Setting(u8, u8),
    /// Answer with [`mark::TIMING_REPLY`].
    Timing,
    /// The answer to a timing mark.
    TimingReply,
}

/// Reads the stream of a Telnet peer.
#[derive(Clone, Copy, Default, Debug)]
pub struct Parser {
    /// A mark whose argument is awaited.
    pending: Option<u8>,
}

impl Parser {
    /// Takes a mark; `None` if its argument follows, or the mark is unknown.
    pub fn mark(&mut self, mark: u8) -> Option<Event> {
        self.pending = None;
        match mark {
            mark::LINE_WIDTH | mark::PAGE_LENGTH | mark::TERMINAL_TYPE => {
                self.pending = Some(mark);
                None
            }
            mark::TIMING => Some(Event::Timing),
            mark::TIMING_REPLY => Some(Event::TimingReply),
            _ => None,
        }
    }

    /// Takes a byte.
    pub fn byte(&mut self, byte: u8) -> Event {
        match self.pending.take() {
            Some(mark) => Event::Setting(mark, byte),
            None => Event::Character(byte),
        }
    }
}
