//! VMTP packets (RFC 1045 §4).
//!
//! ```text
//!   0  client 8
//!   8  version 3 bits │ domain 13 │ HCO EPG MPG │ length 13
//!  12  NRS APG NSR NER NRT MDG CMG STI DRT │ retransmit count 3 │ forward count 4
//!      │ interpacket gap 8 │ priority 4 │ zero 3 │ R 1
//!  16  transaction 4
//!  20  packet delivery 4: a bit for each block that the packet carries
//!  24  server 8
//!  32  CMD DGM MDM SDA - CRE MRD PIC │ request or response code 24 bits
//!  36  co-resident entity 8
//!  44  user data 12
//!  56  message delivery 4: a mask, in the notifications of managers
//!  60  segment size 4
//!  64  segment data, the packet's blocks; `length` counts its 32-bit words
//!      checksum 4
//! ```
//!
//! All fields are big-endian. The checksum is sent as 0, which means none: the
//! implementations that the 1987 paper measured had none either (§6.3), and
//! Ethernet has its own. A packet with another value is refused.

use crate::Entity;
use crate::segment::{self, SEGMENT_LEN_MAX};
use weir_wire::Error;
use weir_wire::field::{array, read_u32, write};

/// The EtherType of VMTP directly on Ethernet.
pub const ETHER_TYPE: u16 = 0x805b;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 64;
/// Length of the checksum behind the segment data, in bytes.
pub const CHECKSUM_LEN: usize = 4;
/// Length of the longest packet: a whole segment, in bytes.
pub const PACKET_LEN_MAX: usize = HEADER_LEN + SEGMENT_LEN_MAX + CHECKSUM_LEN;

const HEADER: &str = "a VMTP header";
/// The one domain: entities that contain an IPv4 address.
const DOMAIN: u32 = 1;
/// EPG, encrypted packet group.
const ENCRYPTED: u32 = 1 << 14;
/// MPG, multicast packet group.
const MULTICAST: u32 = 1 << 13;
/// Bits of the length.
const LENGTH: u32 = (1 << 13) - 1;
/// APG, acknowledge the packet group.
const ACKNOWLEDGE: u32 = 1 << 30;
/// NRS, NSR, NER, CMG and STI: streaming.
const STREAMING: u32 = 1 << 31 | 1 << 29 | 1 << 28 | 1 << 25 | 1 << 24;
/// R: the packet is of a response.
const RESPONSE: u32 = 1;

/// Flags before the code of a message.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub u8);

impl Flags {
    /// DGM. In a request: no response is expected. In a response: the request is
    /// idempotent, so the server keeps no response.
    pub const DATAGRAM: Flags = Flags(0x40);
    /// MDM: the message delivery mask names blocks of a sparse segment.
    pub const SPARSE: Flags = Flags(0x20);
    /// SDA: segment data is appended.
    pub const SEGMENT: Flags = Flags(0x10);
    /// CRE: the co-resident entity counts.
    pub const CO_RESIDENT: Flags = Flags(0x04);
    /// MRD: multiple responses are desired, of the servers of a group.
    pub const MULTIPLE: Flags = Flags(0x02);
    /// PIC: the code is that of a public interface; here, of the managers.
    pub const PUBLIC: Flags = Flags(0x01);

    /// Both sets of flags.
    #[must_use]
    pub const fn with(self, more: Flags) -> Flags {
        Flags(self.0 | more.0)
    }

    /// Whether all flags of `some` are set.
    pub const fn has(self, some: Flags) -> bool {
        self.0 & some.0 == some.0
    }
}

/// Request codes of VMTP managers, which all have the flag
/// [`PUBLIC`](Flags::PUBLIC) (RFC 1045, appendix on management).
pub mod manager {
    /// ProbeEntity: is the co-resident entity alive, and what is its
    /// transaction?
    pub const PROBE: u32 = 0x101;
    /// NotifyVmtpClient: informs a client about its request.
    pub const NOTIFY_CLIENT: u32 = 0x10f;
    /// NotifyVmtpServer: informs a server about its response.
    pub const NOTIFY_SERVER: u32 = 0x110;
}

/// Response codes (RFC 1045, appendix I).
pub mod code {
    /// The request succeeded; in a notification: it was received.
    pub const OK: u32 = 0;
    /// Send the blocks that the message delivery mask lacks.
    pub const RETRY: u32 = 1;
    /// Send all blocks.
    pub const RETRY_ALL: u32 = 2;
    /// The receiver has no room now; try again later.
    pub const BUSY: u32 = 3;
    /// There is no such entity.
    pub const NONEXISTENT_ENTITY: u32 = 4;
    /// The client may not do this.
    pub const NO_PERMISSION: u32 = 6;
    /// The request breaks the protocol.
    pub const VMTP_ERROR: u32 = 8;
    /// The response is no longer kept.
    pub const RESPONSE_DISCARDED: u32 = 15;

    /// The RFC's name of a code.
    pub fn name(code: u32) -> Option<&'static str> {
        Some(match code {
            OK => "OK",
            RETRY => "RETRY",
            RETRY_ALL => "RETRY_ALL",
            BUSY => "BUSY",
            NONEXISTENT_ENTITY => "NONEXISTENT_ENTITY",
            NO_PERMISSION => "NO_PERMISSION",
            VMTP_ERROR => "VMTP_ERROR",
            RESPONSE_DISCARDED => "RESPONSE_DISCARDED",
            _ => return None,
        })
    }
}

/// View of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8]);

impl<'a> Packet<'a> {
    /// Checks a packet; the bytes may end with padding.
    ///
    /// # Errors
    /// If the packet is cut short, fields contradict each other, or it uses a
    /// part of VMTP that is [left out](crate).
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        let require = |need| match bytes.len() {
            have if have < need => Err(Error::CutShort {
                header: HEADER,
                need,
                have,
            }),
            _ => Ok(()),
        };
        require(HEADER_LEN + CHECKSUM_LEN)?;
        let refuse = |field, value| {
            Err(Error::Field {
                header: HEADER,
                field,
                value,
            })
        };
        let packet = Packet(bytes);
        let (first, second) = (read_u32(bytes, 8), read_u32(bytes, 12));
        match first >> 16 {
            DOMAIN => {}
            other => return refuse("version and domain", other),
        }
        if first & ENCRYPTED != 0 {
            return refuse("the flag EPG", 1);
        }
        if second & STREAMING != 0 {
            return refuse("flags of streaming", second & STREAMING);
        }
        let size = read_u32(bytes, 60);
        if size as usize > SEGMENT_LEN_MAX {
            return refuse("segment size", size);
        }
        let delivery = packet.delivery();
        if delivery & !segment::all_blocks(size as usize) != 0 {
            return refuse("packet delivery", delivery);
        }
        let data_len = segment::data_len(size as usize, delivery);
        let words = (first & LENGTH) as usize;
        if words != data_len.div_ceil(4) {
            return refuse("length", first & LENGTH);
        }
        let end = HEADER_LEN + words * 4;
        require(end + CHECKSUM_LEN)?;
        match read_u32(bytes, end) {
            0 => {}
            checksum => return refuse("checksum", checksum),
        }
        if packet.flags().has(Flags::SPARSE) {
            return refuse("the flag MDM", 1);
        }
        Ok(packet)
    }

    fn delivery(&self) -> u32 {
        read_u32(self.0, 20)
    }

    /// The flags of the message.
    pub fn flags(&self) -> Flags {
        Flags(self.0[32])
    }

    /// The packet's blocks, without padding.
    pub fn data(&self) -> &'a [u8] {
        let size = read_u32(self.0, 60) as usize;
        let len = segment::data_len(size, self.delivery());
        &self.0[HEADER_LEN..HEADER_LEN + len]
    }
}

/// Value of a packet's header; by default all zeros.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Repr {
    /// The client of the transaction.
    pub client: Entity,
    /// MPG: the request goes to a group.
    pub multicast: bool,
    /// APG: the receiver shall report the state of the transaction.
    pub acknowledge: bool,
    /// How often the message was sent before, 0 to 7.
    pub retransmit_count: u8,
    /// Whether the packet is of a response.
    pub response: bool,
    /// The transaction of the client.
    pub transaction: u32,
    /// The blocks that the packet carries; bit 0 is the first.
    pub delivery: u32,
    /// The server of the transaction.
    pub server: Entity,
    /// The flags of the message.
    pub flags: Flags,
    /// Request or response code; 24 bits.
    pub code: u32,
    /// The co-resident entity; in a manager's request, whom it is about.
    pub co_resident: Entity,
    /// Three words of the application, or of the managers.
    pub user_data: [u32; 3],
    /// In a notification: the blocks that its sender has.
    pub message_delivery: u32,
    /// Length of the message's segment, in bytes; at most
    /// [`SEGMENT_LEN_MAX`].
    pub segment_size: u32,
}

impl Repr {
    /// Reads all fields of the header.
    pub fn parse(packet: &Packet<'_>) -> Repr {
        let bytes = packet.0;
        let (first, second) = (read_u32(bytes, 8), read_u32(bytes, 12));
        Repr {
            client: Entity(u64::from_be_bytes(array(bytes, 0))),
            multicast: first & MULTICAST != 0,
            acknowledge: second & ACKNOWLEDGE != 0,
            retransmit_count: (second >> 20 & 7) as u8,
            response: second & RESPONSE != 0,
            transaction: read_u32(bytes, 16),
            delivery: packet.delivery(),
            server: Entity(u64::from_be_bytes(array(bytes, 24))),
            flags: packet.flags(),
            code: read_u32(bytes, 32) & 0xff_ffff,
            co_resident: Entity(u64::from_be_bytes(array(bytes, 36))),
            user_data: [44, 48, 52].map(|at| read_u32(bytes, at)),
            message_delivery: read_u32(bytes, 56),
            segment_size: read_u32(bytes, 60),
        }
    }

    /// Appends the packet to `out`, with its blocks of the whole segment.
    ///
    /// # Panics
    /// If the segment's length is not [`segment_size`](Repr::segment_size), or
    /// `delivery` names blocks outside.
    pub fn emit(&self, segment: &[u8], out: &mut Vec<u8>) {
        assert_eq!(
            segment.len(),
            self.segment_size as usize,
            "a segment's size"
        );
        assert_eq!(
            self.delivery & !segment::all_blocks(segment.len()),
            0,
            "blocks outside of the segment"
        );
        let words = segment::data_len(segment.len(), self.delivery).div_ceil(4);
        let start = out.len();
        out.resize(start + HEADER_LEN, 0);
        let header = &mut out[start..];
        let multicast = if self.multicast { MULTICAST } else { 0 };
        let acknowledge = if self.acknowledge { ACKNOWLEDGE } else { 0 };
        let first = DOMAIN << 16 | multicast | words as u32;
        let second =
            acknowledge | u32::from(self.retransmit_count.min(7)) << 20 | u32::from(self.response);
        write(header, 0, &self.client.0.to_be_bytes());
        write(header, 8, &first.to_be_bytes());
        write(header, 12, &second.to_be_bytes());
        write(header, 16, &self.transaction.to_be_bytes());
        write(header, 20, &self.delivery.to_be_bytes());
        write(header, 24, &self.server.0.to_be_bytes());
        let code = u32::from(self.flags.0) << 24 | self.code & 0xff_ffff;
        write(header, 32, &code.to_be_bytes());
        write(header, 36, &self.co_resident.0.to_be_bytes());
        for (index, word) in self.user_data.iter().enumerate() {
            write(header, 44 + 4 * index, &word.to_be_bytes());
        }
        write(header, 56, &self.message_delivery.to_be_bytes());
        write(header, 60, &self.segment_size.to_be_bytes());
        for block in segment::blocks(self.delivery) {
            out.extend_from_slice(&segment[segment::range(segment.len(), block)]);
        }
        // Padding, and the checksum.
        out.resize(start + HEADER_LEN + words * 4 + CHECKSUM_LEN, 0);
    }
}
