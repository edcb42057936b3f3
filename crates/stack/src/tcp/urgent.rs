//! Urgent data (RFC 9293 §3.8.5): one mark in each direction, after the last urgent byte. The
//! bytes stay in order with all others, as RFC 6093 recommends.

use super::input::Arrived;
use super::pcb::{Pcb, State};
use super::seq::Seq;
use super::{Tcp, TcpError, TcpId};
use weir_wire::tcp::Flags;

/// The urgent marks of one connection; few connections have any.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Urgent {
    /// The mark in sent data (SND.UP), until it is acknowledged.
    sent: Option<Seq>,
    /// The mark in received data (RCV.UP), until it is read.
    came: Option<Seq>,
}

impl Pcb {
    /// Whether sent urgent data waits to be sent or acknowledged.
    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        let sent = self.urgent.as_ref().and_then(|urgent| urgent.sent);
        sent.is_some() && !self.is_opening()
    }

    /// The urgent pointer of a segment that begins at `start`; 0 if it has none.
    pub(super) fn urgent_pointer(&self, start: Seq) -> u16 {
        match self.urgent.as_ref().and_then(|urgent| urgent.sent) {
            Some(mark) if start.before(mark) && !self.is_opening() => {
                u16::try_from(mark.since(start)).unwrap_or(u16::MAX)
            }
            _ => 0,
        }
    }

    /// Processes the urgent pointer of a segment (RFC 9293 §3.10.7.4, sixth).
    pub(super) fn take_urgent(&mut self, arrived: &Arrived<'_>) {
        let receives = matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        );
        if !receives || !arrived.has(Flags::URG) {
            return;
        }
        let mark = arrived.data_seq().plus(arrived.repr.urgent.into());
        if self.unread().before(mark) {
            let urgent = self.urgent.get_or_insert_default();
            let later = urgent.came.is_none_or(|came| came.before(mark));
            urgent.came = if later { Some(mark) } else { urgent.came };
        }
    }

    /// Clears the marks that were passed.
    #[inline]
    pub(super) fn forget_urgent(&mut self) {
        if self.urgent.is_some() {
            self.forget_passed();
        }
    }

    #[inline(never)]
    fn forget_passed(&mut self) {
        let (una, unread) = (self.send.una, self.unread());
        if let Some(urgent) = &mut self.urgent {
            urgent.sent = urgent.sent.filter(|mark| una.before(*mark));
            urgent.came = urgent.came.filter(|mark| unread.before(*mark));
            if urgent.sent.is_none() && urgent.came.is_none() {
                self.urgent = None;
            }
        }
    }

    /// Sequence number of the next byte to be read.
    fn unread(&self) -> Seq {
        let end = u32::from(self.receive.has_finished());
        self.receive.nxt.minus(end + self.receive.readable() as u32)
    }
}

impl Tcp {
    /// Writes bytes, the last of which is the last urgent one.
    pub(crate) fn write_urgent(&mut self, id: TcpId, bytes: &[u8]) -> Result<usize, TcpError> {
        let written = self.write(id, bytes)?;
        if let Some(pcb) = self.pcbs.get_mut(id.0).filter(|_| written > 0) {
            // Urgent data does not wait to fill a segment.
            pcb.send.sws_override = true;
            let end = pcb.send.end();
            pcb.urgent.get_or_insert_default().sent = Some(end);
        }
        Ok(written)
    }

    /// Number of bytes to read up to and including the last urgent one; `None` without a mark.
    pub(crate) fn urgent(&self, id: TcpId) -> Option<usize> {
        let pcb = self.pcbs.get(id.0).filter(|pcb| !pcb.user.orphaned)?;
        let (mark, unread) = (pcb.urgent.as_ref()?.came?, pcb.unread());
        unread.before(mark).then(|| mark.since(unread))
    }
}
