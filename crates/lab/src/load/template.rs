//! A generator's template: one frame, and the fields that differ from frame to
//! frame.

use std::net::Ipv4Addr;
use weir_wire::ethernet::{self, Address};
use weir_wire::{EtherType, Protocol, checksum, ipv4};

/// Minimum length of an Ethernet frame, without its FCS, in bytes.
pub const FRAME_BYTES_MIN: usize = 60;

/// Maximum length of a frame: a page, less the kernel's head and tail room.
pub const FRAME_BYTES_MAX: usize = 3520;

/// Bytes from the start that the generator writes for each frame.
pub(super) const RENEWED_BYTES: usize = 64;

/// A big-endian number in the frame, computed from the flow: `base + step *
/// (flow / divisor % modulus)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Offset in the frame, in bytes.
    pub offset: usize,
    /// Width in bytes: 2 or 4.
    pub width: usize,
    /// The lowest value.
    pub base: u32,
    /// The difference between successive values.
    pub step: u32,
    /// Number of successive flows with the same value; at least 1.
    pub divisor: u32,
    /// Number of values; at least 1.
    pub modulus: u32,
    /// Offset of the IPv4 header checksum that covers the field, if it is in an
    /// IPv4 header. At most one field may have it.
    pub checksum: Option<usize>,
}

/// The order of a generator's flows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// One frame of each flow in turn, repeatedly.
    InTurn,
    /// Pseudorandom, the same in every run.
    Scattered,
}

/// A frame and its variable fields.
///
/// The generator writes the first 64 bytes for each frame, so that a receiver's
/// changes there do not reappear.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    /// The frame, of [`FRAME_BYTES_MIN`] to [`FRAME_BYTES_MAX`] bytes.
    pub frame: Vec<u8>,
    /// Number of flows; at least 1.
    pub flows: u32,
    /// The order of the flows.
    pub order: Order,
    /// The fields that differ between flows.
    pub fields: Vec<Field>,
    /// Offset of the frame's number, from 0, as eight big-endian bytes.
    pub number_at: Option<usize>,
    /// Offset of the time at which the frame was passed to the device, on the
    /// monotonic clock, in nanoseconds: eight bytes in the machine's order.
    pub time_at: Option<usize>,
}

/// UDP datagrams of many flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// The source MAC address.
    pub src_mac: Address,
    /// The destination MAC address.
    pub dst_mac: Address,
    /// The first source address.
    pub src: Ipv4Addr,
    /// The destination address.
    pub dst: Ipv4Addr,
    /// The first source port.
    pub src_port: u16,
    /// The first destination port.
    pub dst_port: u16,
    /// Number of destination ports, from the first.
    pub dst_ports: u32,
    /// Number of source ports, from the first.
    pub src_ports: u32,
    /// Number of source addresses, from the first.
    pub src_addresses: u32,
    /// Number of destination addresses, from the first; only one of
    /// `src_addresses` and `dst_addresses` may exceed 1.
    pub dst_addresses: u32,
    /// Difference between successive destination addresses.
    pub dst_step: u32,
    /// The order of the flows. With [`Order::InTurn`], successive flows differ
    /// first in the destination port, then in the source port, then in the
    /// addresses.
    pub order: Order,
    /// Length of a frame without its FCS, in bytes.
    pub frame_bytes: usize,
}

impl Udp {
    /// One flow of minimum-length frames.
    pub fn new(src_mac: Address, dst_mac: Address, src: Ipv4Addr, dst: Ipv4Addr) -> Udp {
        Udp {
            src_mac,
            dst_mac,
            src,
            dst,
            src_port: 1024,
            dst_port: 5000,
            dst_ports: 1,
            src_ports: 1,
            src_addresses: 1,
            dst_addresses: 1,
            dst_step: 1,
            order: Order::InTurn,
            frame_bytes: FRAME_BYTES_MIN,
        }
    }
}

/// Offsets in an Ethernet frame of IPv4 without options and UDP.
const IP: usize = weir_wire::ethernet::Repr::LEN;
const IP_CHECKSUM: usize = IP + 10;
const IP_SRC: usize = IP + 12;
const IP_DST: usize = IP + 16;
const UDP: usize = IP + ipv4::Repr::LEN;
const PAYLOAD: usize = UDP + 8;

/// The frame's number is at the start of the payload. There is no UDP checksum,
/// which IPv4 allows (RFC 768).
impl From<&Udp> for Template {
    fn from(udp: &Udp) -> Template {
        let len = udp.frame_bytes.clamp(FRAME_BYTES_MIN, FRAME_BYTES_MAX);
        let mut frame = vec![0; len];
        let header = ethernet::Repr {
            dst: udp.dst_mac,
            src: udp.src_mac,
            ether_type: EtherType::IPV4,
        };
        header.emit(&mut frame);
        let header = ipv4::Repr {
            src: udp.src,
            dst: udp.dst,
            protocol: Protocol::UDP,
            ttl: 64,
            traffic_class: 0,
            identification: 0,
            dont_fragment: true,
            payload_len: len - UDP,
        };
        header.emit(&mut frame[IP..]);
        frame[UDP..UDP + 2].copy_from_slice(&udp.src_port.to_be_bytes());
        frame[UDP + 2..UDP + 4].copy_from_slice(&udp.dst_port.to_be_bytes());
        frame[UDP + 4..UDP + 6].copy_from_slice(&((len - UDP) as u16).to_be_bytes());
        let [dst_ports, src_ports, src_addresses, dst_addresses] = [
            udp.dst_ports,
            udp.src_ports,
            udp.src_addresses,
            udp.dst_addresses,
        ]
        .map(|count| count.max(1));
        let field = |offset, width, base, divisor, modulus| Field {
            offset,
            width,
            base,
            step: 1,
            divisor,
            modulus,
            checksum: None,
        };
        let ports = dst_ports.saturating_mul(src_ports);
        let sources = ports.saturating_mul(src_addresses);
        let fields = [
            field(UDP + 2, 2, udp.dst_port.into(), 1, dst_ports),
            field(UDP, 2, udp.src_port.into(), dst_ports, src_ports),
            Field {
                checksum: Some(IP_CHECKSUM),
                ..field(IP_SRC, 4, udp.src.to_bits(), ports, src_addresses)
            },
            Field {
                checksum: Some(IP_CHECKSUM),
                step: udp.dst_step,
                ..field(IP_DST, 4, udp.dst.to_bits(), sources, dst_addresses)
            },
        ];
        Template {
            frame,
            flows: sources.saturating_mul(dst_addresses),
            order: udp.order,
            fields: fields.into_iter().filter(|f| f.modulus > 1).collect(),
            number_at: Some(PAYLOAD),
            time_at: None,
        }
    }
}

/// Why a template is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TemplateError {
    /// The frame is too short or too long.
    #[error("a frame of {len} bytes: it must have {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}")]
    Length {
        /// Its length, in bytes.
        len: usize,
    },
    /// A field is outside the frame.
    #[error("{width} bytes at {offset} are not inside the frame of {len} bytes")]
    Outside {
        /// Its offset.
        offset: usize,
        /// Its width, in bytes.
        width: usize,
        /// The frame's length, in bytes.
        len: usize,
    },
    /// A field's width is not supported.
    #[error("a field of {width} bytes: it must have 2 or 4")]
    Width {
        /// Its bytes.
        width: usize,
    },
    /// A count or divisor is 0 or too large.
    #[error("{count} {what}: the number must be 1 to 2147483647")]
    Count {
        /// The count's name.
        what: &'static str,
        /// Its value.
        count: u32,
    },
    /// Two fields refer to one checksum.
    #[error("more than one field has a checksum: at most one is possible")]
    Checksums,
    /// Frames to be sent in turn differ outside the bytes that the generator
    /// writes.
    #[error(
        "frames that are sent in turn must have one length and differ in their first {RENEWED_BYTES} bytes only"
    )]
    Unlike,
}

impl Template {
    /// Checks that the template is valid.
    pub(super) fn check(&self) -> Result<(), TemplateError> {
        let len = self.frame.len();
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&len) {
            return Err(TemplateError::Length { len });
        }
        let count = |what, count: u32| match count {
            1..=0x7fff_ffff => Ok(()),
            _ => Err(TemplateError::Count { what, count }),
        };
        let inside = |offset: usize, width: usize| match offset.checked_add(width) {
            Some(end) if end <= len => Ok(()),
            _ => Err(TemplateError::Outside { offset, width, len }),
        };
        count("flows", self.flows)?;
        for offset in [self.number_at, self.time_at].into_iter().flatten() {
            inside(offset, 8)?;
        }
        for field in &self.fields {
            if !matches!(field.width, 2 | 4) {
                return Err(TemplateError::Width { width: field.width });
            }
            inside(field.offset, field.width)?;
            count("flows that share a value", field.divisor)?;
            count("values of a field", field.modulus)?;
            if let Some(offset) = field.checksum {
                inside(offset, 2)?;
            }
        }
        let covered = self.fields.iter().filter(|f| f.checksum.is_some());
        if covered.count() > 1 {
            return Err(TemplateError::Checksums);
        }
        Ok(())
    }

    /// Checks that frames of `other` can be sent in turn with this template's.
    pub(super) fn check_compatible(&self, other: &Template) -> Result<(), TemplateError> {
        let rest = |template: &Template| template.frame.get(RENEWED_BYTES..).map(<[u8]>::to_vec);
        let like = self.frame.len() == other.frame.len() && rest(self) == rest(other);
        like.then_some(()).ok_or(TemplateError::Unlike)
    }

    /// The folded sum of 16-bit words of the header with the checksum at that
    /// offset, without the checksum and the `width` bytes of `field`.
    pub(super) fn sum_without(&self, field: &Field, checksum: usize) -> u16 {
        // The checksum is at bytes 10 and 11 of a header of 20.
        let start = checksum.saturating_sub(10);
        let mut header = self.frame[start..self.frame.len().min(start + 20)].to_vec();
        for (offset, width) in [(checksum, 2), (field.offset, field.width)] {
            let range = offset.saturating_sub(start)..(offset + width).saturating_sub(start);
            if let Some(bytes) = header.get_mut(range) {
                bytes.fill(0);
            }
        }
        !checksum::internet_checksum(&header)
    }
}
