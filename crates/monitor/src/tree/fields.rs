//! A view's input and output.

use super::{Field, Layer, Next};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use weir_wire::ethernet::Address;

/// Largest number of characters of one value.
const VALUE_MAX: usize = 400;

/// The bytes of a layer, and the fields that were found in it.
#[derive(Debug)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    /// The layer's offset in the frame.
    offset: usize,
    fields: Vec<Field>,
    fields_max: usize,
    depth: u8,
    summary: String,
    /// Where the layer with its payload ends, if its header says so.
    end: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8], offset: usize, fields_max: usize) -> Fields<'a> {
        Fields {
            bytes,
            offset,
            fields: Vec::new(),
            fields_max,
            depth: 0,
            summary: String::new(),
            end: bytes.len(),
        }
    }

    /// The bytes from the layer's first to the end of what was captured of it.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The byte at an offset in the layer; `None` if it was not captured.
    pub fn byte(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    /// This many bytes at an offset.
    pub fn slice(&self, at: usize, len: usize) -> Option<&'a [u8]> {
        self.bytes.get(at..at.checked_add(len)?)
    }

    /// The 16 bits at an offset.
    pub fn half(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// The 24 bits at an offset.
    pub fn triple(&self, at: usize) -> Option<u32> {
        let [a, b, c] = self.array(at)?;
        Some(u32::from_be_bytes([0, a, b, c]))
    }

    /// The 32 bits at an offset.
    pub fn word(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// The Ethernet address at an offset.
    pub fn mac(&self, at: usize) -> Option<Address> {
        self.array(at).map(Address)
    }

    /// The IPv4 address at an offset.
    pub fn ipv4(&self, at: usize) -> Option<Ipv4Addr> {
        self.array::<4>(at).map(Ipv4Addr::from)
    }

    /// The IPv6 address at an offset.
    pub fn ipv6(&self, at: usize) -> Option<Ipv6Addr> {
        self.array::<16>(at).map(Ipv6Addr::from)
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..)?.first_chunk().copied()
    }

    /// Adds a field at a place in the layer. Beyond the limit of fields it is left out.
    pub fn field(&mut self, range: Range<usize>, name: impl Into<String>, value: impl ToString) {
        if self.fields.len() >= self.fields_max {
            return;
        }
        let mut value = value.to_string();
        if let Some((cut, _)) = value.char_indices().nth(VALUE_MAX) {
            value.truncate(cut);
            value.push('…');
        }
        let len = self.bytes.len();
        self.fields.push(Field {
            depth: self.depth,
            name: name.into(),
            value,
            range: self.offset + range.start.min(len)..self.offset + range.end.min(len),
        });
    }

    /// Adds what `parts` adds one level deeper.
    pub fn under(&mut self, parts: impl FnOnce(&mut Fields<'a>) -> Option<()>) -> Option<()> {
        self.depth += 1;
        let read = parts(self);
        self.depth -= 1;
        read
    }

    /// Sets the line that stands for the whole header.
    pub fn summary(&mut self, text: impl Into<String>) {
        self.summary = text.into();
    }

    /// Says that the layer with its payload has that many bytes: what is behind is padding.
    pub fn ends_at(&mut self, len: usize) {
        self.end = self.end.min(len);
    }

    /// The layer, and where its payload ends in the frame.
    pub(super) fn layer(
        self,
        name: &'static str,
        next: Option<Next>,
        is_cut: bool,
    ) -> (Layer, usize) {
        let len = match next {
            Some(Next::Payload(at, _) | Next::Data(at)) => at.min(self.bytes.len()),
            Some(Next::End) => self.end,
            None => self.bytes.len(),
        };
        // A header of no bytes would be decoded for ever.
        let len = len.max(1).min(self.bytes.len());
        let layer = Layer {
            name,
            summary: self.summary,
            range: self.offset..self.offset + len,
            fields: self.fields,
            is_cut,
        };
        (layer, self.offset + self.end)
    }
}

/// Text from a frame: printable ASCII as it is, other bytes escaped.
pub fn harmless(text: &[u8]) -> String {
    text[..text.len().min(VALUE_MAX)].escape_ascii().to_string()
}

/// `name (number)`, or the number alone.
pub(super) fn named(number: impl ToString, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{name} ({})", number.to_string()),
        None => number.to_string(),
    }
}
