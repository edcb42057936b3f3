//! The algorithms: AES-GCM for ESP (RFC 4106) and ChaCha20-Poly1305 for ESP
//! (RFC 7634). Both encrypt and authenticate, with a nonce of the SA's salt and
//! the packet's IV, and an ICV of 16 bytes.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::digest;
use std::fmt;
use zeroize::Zeroizing;

/// Length of the salt, which follows the key in the keying material, in bytes
/// (RFC 4106 §8.1, RFC 7634 §2).
pub const SALT: usize = 4;

/// Length of the IV in a packet, in bytes.
pub const IV: usize = 8;

/// Length of the ICV in a packet, in bytes.
pub const ICV: usize = 16;

/// An algorithm of an SA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// AES-GCM with a key of 128 bits.
    Aes128Gcm,
    /// AES-GCM with a key of 256 bits.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 3] = [
        Algorithm::Aes128Gcm,
        Algorithm::Aes256Gcm,
        Algorithm::ChaCha20Poly1305,
    ];

    /// The name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Aes128Gcm => "aes128gcm",
            Algorithm::Aes256Gcm => "aes256gcm",
            Algorithm::ChaCha20Poly1305 => "chacha20poly1305",
        }
    }

    /// The algorithm of this name; `None` if there is none.
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Length of the keying material, in bytes: key and salt.
    pub fn keymat_len(self) -> usize {
        match self {
            Algorithm::Aes128Gcm => 16 + SALT,
            Algorithm::Aes256Gcm | Algorithm::ChaCha20Poly1305 => 32 + SALT,
        }
    }
}

/// Keying material: a key, then its salt. Erased when dropped; never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Keymat(Zeroizing<Vec<u8>>);

impl Keymat {
    /// The material of these bytes.
    pub fn new(bytes: Zeroizing<Vec<u8>>) -> Keymat {
        Keymat(bytes)
    }

    /// Reads hexadecimal digits, with or without `0x`; `None` if they are none.
    pub fn of_hex(text: &str) -> Option<Keymat> {
        let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
        let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
        let (pairs, rest) = digits.as_chunks::<2>();
        if !rest.is_empty() {
            return None;
        }
        for [high, low] in pairs {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            bytes.push((digit(*high)? << 4 | digit(*low)?) as u8);
        }
        Some(Keymat(bytes))
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number that identifies a key without showing it: the SHA-256 of the
    /// key without its salt.
    pub fn fingerprint(&self) -> [u8; 32] {
        let key = &self.0[..self.0.len().saturating_sub(SALT)];
        let hash = digest::digest(&digest::SHA256, key);
        *hash.as_ref().first_chunk().expect("SHA-256 has 32 bytes")
    }
}

impl fmt::Debug for Keymat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keymat({} bytes)", self.0.len())
    }
}

/// A key ready for use, with its salt. `aws-lc-rs` erases the key when dropped,
/// and chooses the processor's instructions at run time.
pub(crate) struct Cipher {
    key: LessSafeKey,
    salt: [u8; SALT],
}

impl Cipher {
    /// `None` if the keying material has another length than the algorithm's.
    pub(crate) fn new(algorithm: Algorithm, keymat: &Keymat) -> Option<Cipher> {
        if keymat.len() != algorithm.keymat_len() {
            return None;
        }
        let (key, salt) = keymat.0.split_last_chunk::<SALT>()?;
        let kind = match algorithm {
            Algorithm::Aes128Gcm => &AES_128_GCM,
            Algorithm::Aes256Gcm => &AES_256_GCM,
            Algorithm::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        Some(Cipher {
            key: LessSafeKey::new(UnboundKey::new(kind, key).ok()?),
            salt: *salt,
        })
    }

    /// The nonce: salt, then IV (RFC 4106 §4, RFC 7634 §2).
    fn nonce(&self, iv: [u8; IV]) -> Nonce {
        let [s0, s1, s2, s3] = self.salt;
        let [i0, i1, i2, i3, i4, i5, i6, i7] = iv;
        Nonce::assume_unique_for_key([s0, s1, s2, s3, i0, i1, i2, i3, i4, i5, i6, i7])
    }

    /// Encrypts in place and returns the ICV; `None` if the text is too long.
    #[inline]
    pub(crate) fn seal(&self, iv: [u8; IV], aad: &[u8], text: &mut [u8]) -> Option<[u8; ICV]> {
        let sealed = self
            .key
            .seal_in_place_separate_tag(self.nonce(iv), Aad::from(aad), text);
        sealed.ok()?.as_ref().first_chunk().copied()
    }

    /// Decrypts in place a text with its ICV behind it; returns whether the ICV
    /// is right. If it is not, the bytes are undefined.
    #[inline]
    pub(crate) fn open(&self, iv: [u8; IV], aad: &[u8], text: &mut [u8]) -> bool {
        // `open_in_place` would move the text to where it is.
        text.split_last_chunk_mut::<ICV>()
            .is_some_and(|(text, icv)| {
                let key = &self.key;
                key.open_in_place_separate_tag(self.nonce(iv), Aad::from(aad), icv, text)
                    .is_ok()
            })
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher(…)")
    }
}
