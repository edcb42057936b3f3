//! Messages of IPFIX (RFC 7011 §3).

/// The protocol's version.
pub const VERSION: u16 = 10;
/// Bytes of a message's header.
pub const HEADER_LEN: usize = 16;
/// The Set ID of templates.
pub const TEMPLATE_SET: u16 = 2;
/// Bytes of a set's header.
pub const SET_HEADER_LEN: usize = 4;
/// The length of a field whose length is variable (RFC 7011 §7).
pub const VARIABLE: u16 = 65535;

/// A message that is written: sets of templates and of data records.
///
/// ```
/// use weir_wire::ipfix::Message;
///
/// let mut message = Message::default();
/// // sourceIPv4Address, octetDeltaCount.
/// message.template(256, [(8, 4), (1, 8)]);
/// message.record(256, &[192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 5, 0xdc]);
/// assert_eq!(message.finish(1_700_000_000, 0, 1).len(), 16 + 16 + 16);
/// ```
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
    /// Where the current set begins, and its Set ID.
    set: Option<(usize, u16)>,
}

impl Default for Message {
    fn default() -> Message {
        Message {
            bytes: vec![0; HEADER_LEN],
            set: None,
        }
    }
}

impl Message {
    /// Its length so far in bytes, the header's included; at most 65,535 are a message.
    pub fn wire_len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no set yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER_LEN
    }

    /// Adds a Template Record: its Template ID; each field's Information Element and length.
    pub fn template(&mut self, id: u16, fields: impl IntoIterator<Item = (u16, u16)>) {
        self.begin_set(TEMPLATE_SET);
        let start = self.bytes.len();
        self.bytes.extend(id.to_be_bytes());
        self.bytes.extend([0; 2]);
        let mut count = 0u16;
        for (element, length) in fields {
            self.bytes.extend(element.to_be_bytes());
            self.bytes.extend(length.to_be_bytes());
            count += 1;
        }
        self.put(start + 2, count);
    }

    /// Adds a Data Record of a template.
    pub fn record(&mut self, template: u16, record: &[u8]) {
        self.begin_set(template);
        self.bytes.extend(record);
    }

    /// The whole message: its export time in seconds since 1970, Data Records sent before it, and
    /// its Observation Domain.
    ///
    /// # Panics
    /// If it is longer than 65,535 bytes.
    pub fn finish(&mut self, export_s: u32, sequence: u32, domain: u32) -> &[u8] {
        self.end_set();
        let len = u16::try_from(self.bytes.len()).expect("a message that its length can say");
        self.put(0, VERSION);
        self.put(2, len);
        for (at, value) in [(4, export_s), (8, sequence), (12, domain)] {
            self.bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        &self.bytes
    }

    /// Begins another message with the same memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(HEADER_LEN);
        self.set = None;
    }

    /// Begins a set unless it is the current one.
    fn begin_set(&mut self, id: u16) {
        if self.set.is_none_or(|(_, current)| current != id) {
            self.end_set();
            self.set = Some((self.bytes.len(), id));
            self.bytes.extend(id.to_be_bytes());
            self.bytes.extend([0; 2]);
        }
    }

    fn end_set(&mut self) {
        if let Some((start, _)) = self.set.take() {
            self.put(start + 2, (self.bytes.len() - start) as u16);
        }
    }

    fn put(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_sets_with_their_lengths() {
        let mut message = Message::default();
        assert!(message.is_empty());
        message.template(256, [(8, 4)]);
        message.template(257, [(27, 16), (1, 8)]);
        message.record(256, &[1, 2, 3, 4]);
        message.record(256, &[5, 6, 7, 8]);
        #[rustfmt::skip]
        let expected = [
            0, 10, 0, 52, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0, 0, 1,
            0, 2, 0, 24,
            1, 0, 0, 1, 0, 8, 0, 4,
            1, 1, 0, 2, 0, 27, 0, 16, 0, 1, 0, 8,
            1, 0, 0, 12, 1, 2, 3, 4, 5, 6, 7, 8,
        ];
        assert_eq!(message.wire_len(), expected.len());
        assert_eq!(message.finish(9, 7, 1), expected);
        message.clear();
        assert!(message.is_empty());
        assert_eq!(message.finish(0, 0, 0).len(), 16);
    }
}
