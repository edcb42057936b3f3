//! The anti-replay window (RFC 4303 §3.4.3), and the high half of extended
//! sequence numbers (appendix A2).
//!
//! The window is a ring of bits with a word to spare (RFC 6479): it advances by
//! clearing words, and no bit is shifted.

/// Largest window, in packets.
pub const WINDOW_MAX: u32 = 1 << 22;

/// The window of a new SA unless it is configured, in packets (RFC 4303 §3.4.3
/// asks for 32, and prefers 64 or more).
pub const WINDOW_DEFAULT: u32 = 1024;

/// The reason why a sequence number is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A packet with this number came before.
    Replayed,
    /// The number is left of the window: whether it came before is unknown.
    TooOld,
}

/// The sequence numbers that came.
#[derive(Clone, Debug)]
pub struct Window {
    /// Highest number that came; 0 if none did.
    top: u64,
    size: u64,
    bits: Box<[u64]>,
}

impl Window {
    /// A window of this many packets, at least 1 and at most [`WINDOW_MAX`], in
    /// which `top` is the highest number that came.
    pub fn new(size: u32, top: u64) -> Window {
        let size = size.clamp(1, WINDOW_MAX);
        let words = (size as usize).div_ceil(64) + 1;
        let mut window = Window {
            top,
            size: size.into(),
            bits: vec![0; words.next_power_of_two()].into(),
        };
        if top > 0 {
            // Earlier numbers are unknown: none of them is accepted.
            window.bits.fill(u64::MAX);
            window.clear_above();
        }
        window
    }

    /// The highest number that came; 0 if none did.
    pub fn top(&self) -> u64 {
        self.top
    }

    /// Its size, in packets.
    pub fn size(&self) -> u32 {
        self.size as u32
    }

    /// Goes on where another window is. If the sizes differ, what is left of the
    /// highest number counts as having come.
    pub(crate) fn take_over(&mut self, old: Window) {
        *self = if old.size == self.size {
            old
        } else {
            Window::new(self.size(), old.top)
        };
    }

    /// The whole of a number of which the packet has the lower half (appendix
    /// A2.2): the one nearest to the window. `None` before the first number.
    #[inline]
    pub fn extend(&self, low: u32) -> Option<u64> {
        let (top_high, top_low) = (self.top >> 32, self.top as u32);
        let bottom = top_low.wrapping_sub(self.size as u32 - 1);
        let high = if u64::from(top_low) >= self.size - 1 {
            // The window is within one half.
            top_high + u64::from(low < bottom)
        } else {
            // It spans two.
            if low >= bottom {
                top_high.checked_sub(1)?
            } else {
                top_high
            }
        };
        (high <= u32::MAX.into()).then_some(high << 32 | u64::from(low))
    }

    fn place(&self, number: u64) -> (usize, u64) {
        let word = (number >> 6) as usize & (self.bits.len() - 1);
        (word, 1 << (number & 63))
    }

    /// Whether a packet of this number may be new.
    ///
    /// # Errors
    /// Why it is not.
    #[inline]
    pub fn check(&self, number: u64) -> Result<(), Refused> {
        if number > self.top {
            return Ok(());
        }
        // 0 is never sent.
        if number == 0 || self.top - number >= self.size {
            return Err(Refused::TooOld);
        }
        let (word, bit) = self.place(number);
        match self.bits[word] & bit {
            0 => Ok(()),
            _ => Err(Refused::Replayed),
        }
    }

    /// Notes that an authentic packet of this number came, which
    /// [`check`](Self::check) has let through.
    #[inline]
    pub fn note(&mut self, number: u64) {
        if number > self.top {
            let passed = (number >> 6) - (self.top >> 6);
            for step in 1..=passed.min(self.bits.len() as u64) {
                let (word, _) = self.place(((self.top >> 6) + step) << 6);
                self.bits[word] = 0;
            }
            self.top = number;
        }
        let (word, bit) = self.place(number);
        self.bits[word] |= bit;
    }

    /// Clears what is above the top in its word.
    fn clear_above(&mut self) {
        let (word, _) = self.place(self.top);
        let above = (self.top & 63) + 1;
        self.bits[word] &= u64::MAX.checked_shr(64 - above as u32).unwrap_or(0);
    }
}
