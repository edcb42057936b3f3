//! VICI, strongSwan's control protocol: packets without their length prefix, as
//! its documentation of `libvici` lays them out.

/// Longest packet, in bytes (strongSwan's own limit).
pub const PACKET_MAX: usize = 512 << 10;

/// Sections in each other, at most.
const DEPTH_MAX: usize = 8;

// Packets.
const CMD_REQUEST: u8 = 0;
const CMD_RESPONSE: u8 = 1;
const EVENT_REGISTER: u8 = 3;
const EVENT_CONFIRM: u8 = 5;
const EVENT: u8 = 7;

// Elements of a message.
const SECTION_START: u8 = 1;
const SECTION_END: u8 = 2;
const KEY_VALUE: u8 = 3;
const LIST_START: u8 = 4;
const LIST_ITEM: u8 = 5;
const LIST_END: u8 = 6;

/// An element with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// Other elements.
    Section(Section),
    /// A text.
    Value(String),
    /// Texts.
    List(Vec<String>),
}

/// Elements, in order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Section(pub Vec<(String, Node)>);

impl Section {
    fn get(&self, name: &str) -> Option<&Node> {
        self.0
            .iter()
            .find(|(it, _)| it == name)
            .map(|(_, node)| node)
    }

    /// A text; `None` if there is none of this name.
    pub fn value(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Node::Value(text) => Some(text),
            _ => None,
        }
    }

    /// The texts of a list; none if there is no such list.
    pub fn list(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(Node::List(items)) => items,
            _ => &[],
        }
    }

    /// The section of this name; `None` if there is none.
    pub fn section(&self, name: &str) -> Option<&Section> {
        match self.get(name)? {
            Node::Section(section) => Some(section),
            _ => None,
        }
    }

    /// All sections, with their names.
    pub fn sections(&self) -> impl Iterator<Item = (&str, &Section)> {
        self.0.iter().filter_map(|(name, node)| match node {
            Node::Section(section) => Some((name.as_str(), section)),
            _ => None,
        })
    }
}

/// A packet from strongSwan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packet {
    /// The end of a command.
    Response(Section),
    /// An event was registered.
    Confirmed,
    /// An event, by its name.
    Event(String, Section),
}

/// The packet that begins a command without a message, or with texts.
pub fn command(name: &str, values: &[(&str, &str)]) -> Vec<u8> {
    let mut packet = named(CMD_REQUEST, name);
    for (key, value) in values {
        packet.push(KEY_VALUE);
        packet.push(key.len() as u8);
        packet.extend_from_slice(key.as_bytes());
        packet.extend_from_slice(&(value.len() as u16).to_be_bytes());
        packet.extend_from_slice(value.as_bytes());
    }
    packet
}

/// The packet that asks for an event.
pub fn register(event: &str) -> Vec<u8> {
    named(EVENT_REGISTER, event)
}

fn named(kind: u8, name: &str) -> Vec<u8> {
    let mut packet = vec![kind, name.len() as u8];
    packet.extend_from_slice(name.as_bytes());
    packet
}

/// Reads a packet; `None` if it is damaged, or says that a command or event is
/// unknown.
pub fn packet(bytes: &[u8]) -> Option<Packet> {
    let (kind, mut rest) = bytes.split_first()?;
    match *kind {
        CMD_RESPONSE => Some(Packet::Response(section(&mut rest, 0)?)),
        EVENT_CONFIRM => Some(Packet::Confirmed),
        EVENT => {
            let name = short(&mut rest)?;
            Some(Packet::Event(name, section(&mut rest, 0)?))
        }
        _ => None,
    }
}

/// A text behind a length of one byte.
fn short(rest: &mut &[u8]) -> Option<String> {
    let len = usize::from(*rest.first()?);
    text(rest, 1, len)
}

/// A text behind a length of two bytes.
fn long(rest: &mut &[u8]) -> Option<String> {
    let len = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    text(rest, 2, len)
}

fn text(rest: &mut &[u8], at: usize, len: usize) -> Option<String> {
    let bytes = rest.get(at..at + len)?;
    *rest = &rest[at + len..];
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// The elements up to the end of a section, or of the packet at depth 0.
fn section(rest: &mut &[u8], depth: usize) -> Option<Section> {
    let mut made = Section::default();
    if depth > DEPTH_MAX {
        return None;
    }
    while let Some((kind, behind)) = rest.split_first() {
        *rest = behind;
        match *kind {
            SECTION_START => {
                let name = short(rest)?;
                made.0
                    .push((name, Node::Section(section(rest, depth + 1)?)));
            }
            SECTION_END => return (depth > 0).then_some(made),
            KEY_VALUE => {
                let name = short(rest)?;
                made.0.push((name, Node::Value(long(rest)?)));
            }
            LIST_START => {
                let name = short(rest)?;
                let mut items = Vec::new();
                while let Some((&LIST_ITEM, behind)) = rest.split_first() {
                    *rest = behind;
                    items.push(long(rest)?);
                }
                let (&LIST_END, behind) = rest.split_first()? else {
                    return None;
                };
                *rest = behind;
                made.0.push((name, Node::List(items)));
            }
            _ => return None,
        }
    }
    (depth == 0).then_some(made)
}
