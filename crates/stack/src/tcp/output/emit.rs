//! Writes a segment: straight into the link's buffer, segmented by the link if it is longer
//! than the path allows, or into the queue for an unresolved next hop.

use crate::iface::{BURST_MAX, BurstFrame, Gso, Header, HeaderCache, Interface, TxMeta};
use crate::stack::TxSink;
use crate::tcp::buffer::send_buffer::SendBuffer;
use crate::tcp::seq::Seq;
use weir_wire::checksum::Sum;
use weir_wire::tcp::{Flags, Options, Plain, Repr};
use weir_wire::{ethernet, ipv4, ipv6};

/// Length in bytes of the longest headers: Ethernet, IPv6, TCP with all options.
const HEADERS_MAX: usize = ethernet::Repr::LEN + ipv6::Repr::LEN + 60;

/// Limit on the payload, in bytes, of a frame that the link segments: with all headers it fits
/// the length field of an IP packet.
pub(in crate::tcp) const GSO_BYTES_MAX: usize = 65_535 - 60 - 60;

/// Length of such a frame, in bytes: a multiple of full segments of `most`.
pub(in crate::tcp) fn frame_len(most: usize) -> usize {
    (GSO_BYTES_MAX / most).max(1) * most
}

/// A segment to be written.
pub(in crate::tcp) struct TxSegment<'a> {
    pub(in crate::tcp) start: Seq,
    pub(in crate::tcp) payload_len: usize,
    /// The urgent pointer; 0 for none. A segment with one has `options`.
    pub(in crate::tcp) urgent: u16,
    pub(in crate::tcp) traffic_class: u8,
    pub(in crate::tcp) header: Plain,
    /// The options, unless they are timestamps alone.
    pub(in crate::tcp) options: Option<&'a Options>,
    /// Length of all options, in bytes.
    pub(in crate::tcp) options_len: usize,
}

impl TxSegment<'_> {
    fn header_len(&self) -> usize {
        Repr::LEN_MIN + self.options_len
    }

    fn repr(&self, options: &Options) -> Repr {
        let urgent = match self.urgent {
            0 => Flags::default(),
            _ => Flags::URG,
        };
        Repr {
            flags: self.header.flags | urgent,
            urgent: self.urgent,
            options: *options,
            ..self.header.repr()
        }
    }

    /// Writes the TCP header; `rest` is the sum of pseudo-header and payload.
    fn emit_summed(&self, header: &mut [u8], rest: Sum) {
        match self.options {
            Some(options) => self.repr(options).emit_summed(header, rest),
            None => self.header.emit(header, |sum| sum.and(rest).finish()),
        }
    }

    /// Writes the TCP header for a link that completes the checksum.
    fn emit_partial(&self, header: &mut [u8], pseudo: Sum) {
        match self.options {
            Some(options) => self.repr(options).emit_partial(header, pseudo),
            None => self.header.emit(header, |_| pseudo.partial()),
        }
    }

    /// Writes the segment to the link. A segment longer than `most` bytes is cut here or by the
    /// link. Returns the number of payload bytes written; `None` if the link is full.
    #[inline]
    pub(in crate::tcp) fn emit(
        &mut self,
        cache: &HeaderCache,
        send: &SendBuffer,
        host: &mut Interface,
        out: &mut dyn TxSink,
        most: usize,
    ) -> Option<usize> {
        let cuts = if cache.is_v6() {
            host.offload.tso6
        } else {
            host.offload.tso4
        };
        let mut done = 0;
        if self.payload_len > most && !cuts {
            done = self.emit_full(cache, send, host, out, most);
            if self.payload_len > most {
                return Some(done).filter(|done| *done > 0);
            }
        }
        if self.payload_len > GSO_BYTES_MAX && cuts {
            return self.emit_burst(cache, send, host, out, most);
        }
        let written = self.emit_rest(cache, send, host, out, most);
        done += if written { self.payload_len } else { 0 };
        Some(done).filter(|done| written || *done > 0)
    }

    /// Writes full segments of `most` bytes, whose headers differ in two fields; returns the number
    /// of bytes written. The rest remains in `self`.
    #[inline(never)]
    fn emit_full(
        &mut self,
        cache: &HeaderCache,
        send: &SendBuffer,
        host: &mut Interface,
        out: &mut dyn TxSink,
        most: usize,
    ) -> usize {
        let (start, header_len) = (cache.len(), self.header_len());
        let mut template = [0; HEADERS_MAX];
        let template = &mut template[..start + header_len];
        let (head, header) = template.split_at_mut(start);
        cache.write(head, self.traffic_class, header_len + most);
        let (first, flags) = (self.header.seq, self.header.flags);
        // FIN and PSH belong to the last segment.
        self.header.flags = Flags(flags.0 & !(Flags::FIN | Flags::PSH).0);
        self.header.seq = 0;
        self.emit_partial(header, Sum::new());
        (self.header.seq, self.header.flags) = (first, flags);
        let rest = cache.pseudo(header_len + most);
        let rest = rest.and(Sum::new().bytes(header));
        let mut done = 0;
        while self.payload_len > most
            && let Some(frame) = out.reserve(template.len() + most)
        {
            let (headers, payload) = frame.split_at_mut(template.len());
            write_headers(headers, template);
            let sum = rest.double(self.header.seq);
            let sum = sum.and(send.payload_summed(self.start, payload));
            let header = &mut headers[start..];
            header[4..8].copy_from_slice(&self.header.seq.to_be_bytes());
            let at = usize::from(Repr::CHECKSUM_AT);
            header[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
            out.submit();
            host.counters.frames_out += 1;
            self.start = self.start.plus(most);
            self.header.seq = self.start.0;
            self.payload_len -= most;
            done += most;
        }
        done
    }

    /// Writes a burst of segments that the link cuts; returns the number of payload bytes written,
    /// `None` if the link is full.
    #[inline(never)]
    fn emit_burst(
        &mut self,
        cache: &HeaderCache,
        send: &SendBuffer,
        host: &mut Interface,
        out: &mut dyn TxSink,
        most: usize,
    ) -> Option<usize> {
        let (each, flags) = (frame_len(most), self.header.flags);
        let (way_len, header_len) = (cache.len(), self.header_len());
        let mut heads = [[0; HEADERS_MAX]; BURST_MAX];
        let mut lens = [0; BURST_MAX];
        let mut left = self.payload_len;
        for (head, len) in heads.iter_mut().zip(&mut lens) {
            *len = left.min(each);
            left -= *len;
            let (head, header) = head[..way_len + header_len].split_at_mut(way_len);
            // Bytes that are sent together are to be read together; a FIN ends the burst.
            self.header.flags = match left {
                0 => flags | Flags::PSH,
                _ => Flags(flags.0 & !(Flags::FIN | Flags::PSH).0),
            };
            cache.write(head, self.traffic_class, header_len + *len);
            self.emit_partial(header, cache.pseudo(header_len + *len));
            self.header.seq = self.header.seq.wrapping_add(*len as u32);
            if left == 0 {
                break;
            }
        }
        let mut start = self.start;
        let run: [BurstFrame<'_>; BURST_MAX] = std::array::from_fn(|at| {
            let payload = send.slices(start, lens[at]);
            start = start.plus(lens[at]);
            BurstFrame {
                head: &heads[at][..way_len + header_len],
                meta: self.tx_meta(cache, most, lens[at] > most),
                payload,
            }
        });
        let count = lens.iter().take_while(|len| **len > 0).count();
        let taken = out.submit_burst(&run[..count]);
        host.counters.frames_out += taken as u64;
        let done = lens[..taken].iter().sum();
        (taken > 0).then_some(done)
    }

    /// The link's work on the segment: checksum, segmentation.
    fn tx_meta(&self, cache: &HeaderCache, most: usize, cut: bool) -> TxMeta {
        TxMeta {
            checksum_start: cache.len() as u16,
            checksum_offset: Repr::CHECKSUM_AT,
            gso: cut.then(|| Gso {
                size: most as u16,
                header_len: (cache.len() + self.header_len()) as u16,
                v6: cache.is_v6(),
            }),
        }
    }

    /// Writes the segment in one frame; false if the link is full.
    #[inline]
    fn emit_rest(
        &mut self,
        cache: &HeaderCache,
        send: &SendBuffer,
        host: &mut Interface,
        out: &mut dyn TxSink,
        most: usize,
    ) -> bool {
        let header_len = self.header_len();
        let len = header_len + self.payload_len;
        // A link that computes the checksum copies the bytes from the send buffer.
        let written = if host.offload.checksum {
            header_len
        } else {
            len
        };
        let Some(frame) = out.reserve(cache.len() + written) else {
            return false;
        };
        let (head, segment) = frame.split_at_mut(cache.len());
        let (header, payload) = segment.split_at_mut(header_len);
        cache.write(head, self.traffic_class, len);
        if host.offload.checksum {
            let cut = self.payload_len > most;
            if cut {
                // Bytes that are sent together are to be read together.
                self.header.flags = self.header.flags | Flags::PSH;
            }
            self.emit_partial(header, cache.pseudo(len));
            let partial = self.tx_meta(cache, most, cut);
            out.submit_partial(partial, send.slices(self.start, self.payload_len));
        } else {
            let sum = send.payload_summed(self.start, payload);
            self.emit_summed(header, cache.pseudo(len).and(sum));
            out.submit();
        }
        host.counters.frames_out += 1;
        true
    }

    /// Queues the segment until the next hop's address is resolved.
    pub(in crate::tcp) fn enqueue_unresolved(
        &self,
        now_ns: u64,
        header: Header,
        send: &SendBuffer,
        host: &mut Interface,
    ) {
        let header_len = self.header_len();
        let ip = Header {
            traffic_class: self.traffic_class,
            ..header
        };
        host.enqueue_unresolved(now_ns, &ip, header_len + self.payload_len, |segment| {
            send.payload(self.start, &mut segment[header_len..]);
            let repr = match self.options {
                Some(options) => self.repr(options),
                None => self.header.repr(),
            };
            repr.emit(segment, ip.addresses);
        });
    }
}

/// Copies headers of the usual length without the cost of a call.
#[inline]
fn write_headers(to: &mut [u8], from: &[u8]) {
    const TIMED_V4: usize = ethernet::Repr::LEN + ipv4::Repr::LEN + Repr::LEN_MIN + 12;
    match (to.as_mut_array::<TIMED_V4>(), from.as_array::<TIMED_V4>()) {
        (Some(to), Some(from)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}
