//! A security association (SA), in one direction, and the packet format of ESP.
//!
//! ```text
//!  SPI 4 │ sequence 4 │ IV 8 │ payload … │ padding 0–3 │ pad length 1 │ next header 1 │ ICV 16
//!                            └──────────────────── encrypted ─────────────────────────┘
//!  └───────── authenticated, with the high half of an extended sequence number ───────┘
//! ```

use crate::algorithm::{Algorithm, Cipher, ICV, IV, Keymat};
use crate::replay::{Refused, Window};
use std::ops::Range;
use weir_wire::field::{array, read_u32};

/// Length of SPI, sequence number and IV, in bytes.
pub const HEADER: usize = 8 + IV;

/// Length of pad length and next header, in bytes.
const TRAILER: usize = 2;

/// The largest payload of a packet of `room` bytes from the SPI on.
pub fn payload_max(room: usize) -> usize {
    let encrypted = room.saturating_sub(HEADER + ICV) & !3;
    encrypted.saturating_sub(TRAILER)
}

/// How long an SA may be used. Behind a limit it is refused (RFC 4301 §4.4.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetime {
    /// Packets, at most.
    pub packets_max: u64,
    /// Bytes of payload, at most.
    pub bytes_max: u64,
    /// Time after the SA was installed, in ns.
    pub age_max: u64,
}

impl Lifetime {
    /// Without a limit but that of the sequence number.
    pub const UNLIMITED: Lifetime = Lifetime {
        packets_max: u64::MAX,
        bytes_max: u64::MAX,
        age_max: u64::MAX,
    };
}

/// The parameters of an SA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaConfig {
    /// The security parameters index: above 255 (RFC 4303 §2.1).
    pub spi: u32,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Key and salt.
    pub keymat: Keymat,
    /// Extended sequence numbers, of 64 bits.
    pub is_extended: bool,
    /// Size of the anti-replay window, in packets; of an inbound SA.
    pub window: u32,
    /// Limits.
    pub lifetime: Lifetime,
    /// Outbound, the number before the first one that is sent; inbound, the
    /// highest number that came. 0 of a new SA.
    pub sequence: u64,
}

/// The reason why an SA does not process a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaError {
    /// A limit of its lifetime is reached.
    Expired,
    /// All its sequence numbers are used: a further packet would repeat a nonce.
    SequenceExhausted,
    /// The packet is longer than IP allows.
    TooLong,
    /// The packet is cut short, or its length is not that of ESP.
    Malformed,
    /// A packet with this sequence number came before.
    Replayed,
    /// The sequence number is left of the window.
    TooOld,
    /// The ICV is wrong.
    Icv,
    /// The padding is not 1, 2, 3, … (RFC 4303 §2.4).
    Padding,
}

impl SaError {
    /// The reason as drops are counted by it.
    pub fn name(self) -> &'static str {
        match self {
            SaError::Expired => "sa-expired",
            SaError::SequenceExhausted => "sequence-exhausted",
            SaError::TooLong => "too-long",
            SaError::Malformed => "esp-malformed",
            SaError::Replayed => "replayed",
            SaError::TooOld => "replay-too-old",
            SaError::Icv => "icv",
            SaError::Padding => "padding",
        }
    }
}

impl From<Refused> for SaError {
    fn from(refused: Refused) -> SaError {
        match refused {
            Refused::Replayed => SaError::Replayed,
            Refused::TooOld => SaError::TooOld,
        }
    }
}

/// The use of an SA.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Packets.
    pub packets: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

/// The common part of both directions.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) spi: u32,
    pub(crate) fingerprint: [u8; 32],
    cipher: Cipher,
    is_extended: bool,
    lifetime: Lifetime,
    installed: u64,
    usage: Usage,
}

impl Common {
    fn new(config: &SaConfig, now: u64) -> Option<Common> {
        Some(Common {
            spi: config.spi,
            fingerprint: config.keymat.fingerprint(),
            cipher: Cipher::new(config.algorithm, &config.keymat)?,
            is_extended: config.is_extended,
            lifetime: config.lifetime,
            installed: now,
            usage: Usage::default(),
        })
    }

    #[inline]
    fn check(&self, now: u64, bytes: usize) -> Result<(), SaError> {
        let (limit, usage) = (&self.lifetime, &self.usage);
        let is_over = usage.packets >= limit.packets_max
            || usage.bytes.saturating_add(bytes as u64) > limit.bytes_max
            || now.saturating_sub(self.installed) >= limit.age_max;
        if is_over {
            Err(SaError::Expired)
        } else {
            Ok(())
        }
    }

    fn count(&mut self, bytes: usize) {
        self.usage.packets += 1;
        self.usage.bytes = self.usage.bytes.saturating_add(bytes as u64);
    }

    /// The authenticated data that is not sent encrypted (RFC 4106 §5): SPI, and
    /// the sequence number, whole. Returns its length too.
    #[inline]
    fn aad(&self, sequence: u64) -> ([u8; 12], usize) {
        let mut aad = [0; 12];
        aad[..4].copy_from_slice(&self.spi.to_be_bytes());
        if self.is_extended {
            aad[4..].copy_from_slice(&sequence.to_be_bytes());
            (aad, 12)
        } else {
            aad[4..8].copy_from_slice(&(sequence as u32).to_be_bytes());
            (aad, 8)
        }
    }

    /// Takes over the state of an SA with the same key: its use and age go on.
    pub(crate) fn follow(&mut self, old: &Common) {
        self.usage = old.usage;
        self.installed = old.installed;
    }
}

/// An SA by which packets leave.
#[derive(Debug)]
pub struct OutboundSa {
    pub(crate) common: Common,
    /// The last number that was sent.
    pub(crate) sequence: u64,
    /// The mask that makes the IV of the sequence number.
    iv_mask: u64,
}

impl OutboundSa {
    /// An SA; `None` if the keying material has another length than the
    /// algorithm's. `iv_mask` is a random number: should the process start again
    /// with the same key, which it should not, the IVs differ all the same.
    pub fn new(config: &SaConfig, now: u64, iv_mask: u64) -> Option<OutboundSa> {
        Some(OutboundSa {
            common: Common::new(config, now)?,
            sequence: config.sequence,
            iv_mask,
        })
    }

    /// The SPI.
    pub fn spi(&self) -> u32 {
        self.common.spi
    }

    /// The last sequence number that was sent.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The SA's use.
    pub fn usage(&self) -> Usage {
        self.common.usage
    }

    pub(crate) fn iv_mask(&self) -> u64 {
        self.iv_mask
    }

    /// Goes on behind what was sent with the same key.
    pub(crate) fn resume(&mut self, sequence: u64, iv_mask: u64) {
        self.sequence = self.sequence.max(sequence);
        self.iv_mask = iv_mask;
    }

    /// Appends the ESP packet of a payload, from the SPI on.
    ///
    /// # Errors
    /// If the SA must not be used further, or the packet is too long. Then `out`
    /// is as before.
    #[inline]
    pub fn seal(
        &mut self,
        now: u64,
        payload: &[u8],
        next_header: u8,
        out: &mut Vec<u8>,
    ) -> Result<(), SaError> {
        self.common.check(now, payload.len())?;
        let last = if self.common.is_extended {
            u64::MAX
        } else {
            u32::MAX.into()
        };
        if self.sequence >= last {
            return Err(SaError::SequenceExhausted);
        }
        if payload.len() > payload_max(65_535) {
            return Err(SaError::TooLong);
        }
        let sequence = self.sequence + 1;
        let (aad, aad_len) = self.common.aad(sequence);
        let iv = (sequence ^ self.iv_mask).to_be_bytes();
        let start = out.len();
        let padding = (payload.len() + TRAILER).next_multiple_of(4) - payload.len() - TRAILER;
        out.reserve(HEADER + payload.len() + padding + TRAILER + ICV);
        out.extend_from_slice(&self.common.spi.to_be_bytes());
        out.extend_from_slice(&(sequence as u32).to_be_bytes());
        out.extend_from_slice(&iv);
        out.extend_from_slice(payload);
        out.extend_from_slice(&[1, 2, 3][..padding]);
        out.extend_from_slice(&[padding as u8, next_header]);
        // The number is used, whatever happens now.
        self.sequence = sequence;
        let text = &mut out[start + HEADER..];
        let Some(icv) = self.common.cipher.seal(iv, &aad[..aad_len], text) else {
            out.truncate(start);
            return Err(SaError::TooLong);
        };
        out.extend_from_slice(&icv);
        self.common.count(payload.len());
        Ok(())
    }
}

/// A payload that an SA decrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Where it is in the packet.
    pub payload: Range<usize>,
    /// The protocol of the payload.
    pub next_header: u8,
}

/// An SA by which packets come.
#[derive(Debug)]
pub struct InboundSa {
    pub(crate) common: Common,
    pub(crate) window: Window,
}

impl InboundSa {
    /// An SA; `None` if the keying material has another length than the
    /// algorithm's.
    pub fn new(config: &SaConfig, now: u64) -> Option<InboundSa> {
        Some(InboundSa {
            common: Common::new(config, now)?,
            window: Window::new(config.window, config.sequence),
        })
    }

    /// The SPI.
    pub fn spi(&self) -> u32 {
        self.common.spi
    }

    /// The highest sequence number that came.
    pub fn sequence(&self) -> u64 {
        self.window.top()
    }

    /// The SA's use.
    pub fn usage(&self) -> Usage {
        self.common.usage
    }

    /// Goes on where an SA with the same key is.
    pub(crate) fn follow(&mut self, old: InboundSa) {
        self.common.follow(&old.common);
        self.window.take_over(old.window);
    }

    /// Continues the replay window of the same key.
    pub(crate) fn resume(&mut self, top: u64) {
        self.window = Window::new(self.window.size(), self.window.top().max(top));
    }

    /// Decrypts an ESP packet in place, from the SPI on (RFC 4303 §3.4).
    ///
    /// # Errors
    /// Why the packet is dropped. Its bytes are undefined then.
    #[inline]
    pub fn open(&mut self, now: u64, packet: &mut [u8]) -> Result<Opened, SaError> {
        let encrypted = packet
            .len()
            .checked_sub(HEADER + ICV)
            .ok_or(SaError::Malformed)?;
        if encrypted < 4 || !encrypted.is_multiple_of(4) {
            return Err(SaError::Malformed);
        }
        let low = read_u32(packet, 4);
        let sequence = if self.common.is_extended {
            self.window.extend(low).ok_or(SaError::TooOld)?
        } else {
            low.into()
        };
        self.window.check(sequence)?;
        // Its length is not known yet.
        self.common.check(now, 1)?;
        let (aad, aad_len) = self.common.aad(sequence);
        let iv = array::<IV>(packet, 8);
        let text = &mut packet[HEADER..];
        if !self.common.cipher.open(iv, &aad[..aad_len], text) {
            return Err(SaError::Icv);
        }
        self.window.note(sequence);
        let text = &text[..encrypted];
        let [.., padding, next_header] = *text else {
            return Err(SaError::Malformed);
        };
        let end = encrypted
            .checked_sub(TRAILER + usize::from(padding))
            .ok_or(SaError::Padding)?;
        let pad = &text[end..encrypted - TRAILER];
        if !(1..=u8::MAX)
            .zip(pad)
            .all(|(expected, byte): (u8, &u8)| expected == *byte)
        {
            return Err(SaError::Padding);
        }
        self.common.count(end);
        Ok(Opened {
            payload: HEADER..HEADER + end,
            next_header,
        })
    }
}
