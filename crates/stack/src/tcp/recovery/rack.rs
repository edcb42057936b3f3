//! Loss by time: RACK and tail loss probes (RFC 8985).

use super::scoreboard::{Scoreboard, Sent};
use crate::tcp::seq::Seq;

/// Round trips for which a larger reordering window stays (§6.2: 16).
const REO_WND_PERSIST: u8 = 16;
/// Number of reordered segments from which on no reordering window is waited for (§6.2: DupThresh).
const DUP_THRESH: usize = 3;

/// The latest delivered segment, and the extent of reordering.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct Rack {
    /// When the latest-sent delivered segment was sent, and where it ends (RACK.xmit_ts,
    /// RACK.end_seq).
    sent_ns: u64,
    end: Option<Seq>,
    rtt_ns: u64,
    /// The highest delivered sequence number (RACK.fack).
    fack: Option<Seq>,
    /// Largest distance, in sequence numbers, by which a segment was delivered late.
    reordering_bytes: u32,
    /// Multiplier of the reordering window, raised once in each round trip with a needless
    /// retransmission.
    reo_wnd_mult: u8,
    reo_wnd_persist: u8,
    dsack_round: Option<Seq>,
}

/// The connection's state, as loss detection needs it.
#[derive(Clone, Copy)]
pub(in crate::tcp) struct RackInput {
    pub(in crate::tcp) now_ns: u64,
    pub(in crate::tcp) srtt_ns: u64,
    pub(in crate::tcp) min_rtt_ns: u64,
    pub(in crate::tcp) in_recovery: bool,
    pub(in crate::tcp) mss: usize,
}

impl Rack {
    /// Updates RACK for a delivered segment (§6.2, steps 2 and 3); `echo_ns` is the time of the
    /// segment that the peer's timestamp echoes.
    pub(in crate::tcp) fn delivered(
        &mut self,
        sent: &Sent,
        now_ns: u64,
        min_rtt_ns: u64,
        echo_is_older: bool,
    ) {
        match self.fack {
            Some(fack) if !fack.before(sent.end) => {
                if !sent.retransmitted {
                    let far = fack.since(sent.start) as u32;
                    self.reordering_bytes = self.reordering_bytes.max(far);
                }
            }
            _ => self.fack = Some(sent.end),
        }
        let rtt_ns = now_ns.saturating_sub(sent.sent_ns);
        // Perhaps the first transmission was delivered, not this one.
        if sent.retransmitted && (echo_is_older || rtt_ns < min_rtt_ns) {
            return;
        }
        let later = self.end.is_none_or(|end| sent.is_after(self.sent_ns, end));
        if later {
            (self.sent_ns, self.end, self.rtt_ns) = (sent.sent_ns, Some(sent.end), rtt_ns);
        }
    }

    /// Extent of reordering, in bytes; zero without any.
    pub(in crate::tcp) fn reordering_bytes(&self) -> usize {
        self.reordering_bytes as usize
    }

    /// Records a D-SACK: a retransmission was needless (§6.2, step 4). `una` and `nxt` identify the
    /// round trip.
    pub(in crate::tcp) fn on_dsack(&mut self, una: Seq, nxt: Seq) {
        if self.dsack_round.is_none_or(|round| round.at_most(una)) {
            self.dsack_round = Some(nxt);
            self.reo_wnd_mult = self.reo_wnd_mult.saturating_add(1);
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Ends a recovery: without needless retransmissions the reordering window is reset after a
    /// while.
    pub(in crate::tcp) fn recovered(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 0;
        }
    }

    /// Time by which a segment may be overtaken before it counts as lost (RACK_reo_wnd).
    fn reo_wnd_ns(&self, view: RackInput, sacked: usize) -> u64 {
        let segments = sacked.div_ceil(view.mss.max(1));
        if self.reordering_bytes == 0 && (view.in_recovery || segments >= DUP_THRESH) {
            return 0;
        }
        let widened = u64::from(self.reo_wnd_mult) + 1;
        (widened * (view.min_rtt_ns / 4)).min(view.srtt_ns)
    }

    /// Marks lost segments (§6.2, step 5) and calls `each` for every one; returns their length, and
    /// when further ones may be lost.
    pub(in crate::tcp) fn detect_loss(
        &self,
        board: &mut Scoreboard,
        view: RackInput,
        each: impl FnMut(&Sent),
    ) -> (usize, Option<u64>) {
        let Some(end) = self.end.filter(|_| board.is_disordered()) else {
            return (0, None);
        };
        let wait_ns = self.rtt_ns + self.reo_wnd_ns(view, board.sacked());
        let mut next_ns: Option<u64> = None;
        let is_lost = |sent: &Sent| {
            if sent.is_after(self.sent_ns, end) || (sent.sent_ns, sent.end) == (self.sent_ns, end) {
                return false;
            }
            let until_ns = sent.sent_ns.saturating_add(wait_ns);
            let lost = until_ns <= view.now_ns;
            if !lost {
                next_ns = Some(next_ns.map_or(until_ns, |next_ns| next_ns.max(until_ns)));
            }
            lost
        };
        let lost = board.mark_lost_with(is_lost, each);
        (lost, next_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const VIEW: RackInput = RackInput {
        now_ns: 0,
        srtt_ns: 100 * MS,
        min_rtt_ns: 100 * MS,
        in_recovery: false,
        mss: 1000,
    };

    /// Ten segments, one a millisecond.
    fn board() -> Scoreboard {
        let mut board = Scoreboard::default();
        for index in 0..10 {
            board.push(
                Seq(1000 * index),
                Seq(1000 * (index + 1)),
                u64::from(index) * MS,
            );
        }
        board
    }

    fn sack(board: &mut Scoreboard, rack: &mut Rack, from: u32, to: u32, now_ns: u64) {
        board.sack(Seq(from), Seq(to), 1000, |sent| {
            rack.delivered(sent, now_ns, 100 * MS, false)
        });
    }

    #[test]
    fn a_gap_is_lost_after_a_quarter_round_trip_or_three_segments() {
        let (mut board, mut rack) = (board(), Rack::default());
        sack(&mut board, &mut rack, 1000, 2000, 101 * MS);
        let (lost, next_ns) = rack.detect_loss(
            &mut board,
            RackInput {
                now_ns: 101 * MS,
                ..VIEW
            },
            |_| {},
        );
        // Sent at 0, a round trip of 100 and a quarter of it.
        assert_eq!((lost, next_ns), (0, Some(125 * MS)));
        let (lost, next_ns) = rack.detect_loss(
            &mut board,
            RackInput {
                now_ns: 125 * MS,
                ..VIEW
            },
            |_| {},
        );
        assert_eq!((lost, next_ns), (1000, None));

        let (mut board, mut rack) = (self::board(), Rack::default());
        sack(&mut board, &mut rack, 1000, 4000, 103 * MS);
        let (lost, _) = rack.detect_loss(
            &mut board,
            RackInput {
                now_ns: 103 * MS,
                ..VIEW
            },
            |_| {},
        );
        assert_eq!(lost, 1000, "three segments are enough without reordering");
    }

    #[test]
    fn reordering_is_waited_for_and_needless_repetition_widens() {
        let (mut board, mut rack) = (board(), Rack::default());
        sack(&mut board, &mut rack, 3000, 4000, 103 * MS);
        sack(&mut board, &mut rack, 1000, 3000, 104 * MS);
        let view = RackInput {
            now_ns: 104 * MS,
            ..VIEW
        };
        assert_eq!(
            rack.detect_loss(&mut board, view, |_| {}),
            (0, Some(125 * MS))
        );
        rack.on_dsack(Seq(0), Seq(10_000));
        rack.on_dsack(Seq(0), Seq(10_000));
        assert_eq!(
            rack.detect_loss(&mut board, view, |_| {}),
            (0, Some(150 * MS)),
            "once a round trip"
        );
        for _ in 0..REO_WND_PERSIST {
            rack.recovered();
        }
        assert_eq!(
            rack.detect_loss(&mut board, view, |_| {}),
            (0, Some(125 * MS))
        );
    }

    #[test]
    fn a_lost_retransmission_is_found_by_later_deliveries() {
        let (mut board, mut rack) = (board(), Rack::default());
        sack(&mut board, &mut rack, 1000, 4000, 103 * MS);
        let recovering = |now_ns| RackInput {
            now_ns,
            in_recovery: true,
            ..VIEW
        };
        assert_eq!(
            rack.detect_loss(&mut board, recovering(103 * MS), |_| {}).0,
            1000
        );
        board.on_retransmit(Seq(0), 103 * MS);
        // An echo of an earlier segment says nothing about it.
        sack(&mut board, &mut rack, 4000, 10_000, 109 * MS);
        assert_eq!(
            rack.detect_loss(&mut board, recovering(110 * MS), |_| {}),
            (0, None)
        );
        board.push(Seq(10_000), Seq(11_000), 110 * MS);
        sack(&mut board, &mut rack, 10_000, 11_000, 210 * MS);
        assert_eq!(
            rack.detect_loss(&mut board, recovering(210 * MS), |_| {}).0,
            1000
        );
    }
}
