//! Error messages as libpcap gives them: a status, and a text in a buffer of a fixed size.

use crate::types::{ERRBUF_SIZE, ERROR, ERROR_PERM_DENIED};
use libc::{c_char, c_int};
use std::ffi::CString;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use weir_broker::PortError;
use weir_broker::protocol::ErrorKind;

/// A status and its text.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: c_int,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure {
            status: ERROR,
            text: text.into(),
        }
    }
}

impl From<PortError> for Failure {
    fn from(error: PortError) -> Failure {
        let denied = matches!(
            &error,
            PortError::Refused(refusal) if refusal.kind == ErrorKind::Denied
        );
        Failure {
            status: if denied { ERROR_PERM_DENIED } else { ERROR },
            text: error.to_string(),
        }
    }
}

/// A text that the application reads by a pointer while others may be written.
#[derive(Debug)]
pub(crate) struct ErrorText([AtomicU8; ERRBUF_SIZE]);

impl ErrorText {
    pub(crate) const fn new() -> ErrorText {
        ErrorText([const { AtomicU8::new(0) }; ERRBUF_SIZE])
    }

    pub(crate) fn set(&self, text: &str) {
        for (place, byte) in self.0.iter().zip(padded(text)) {
            place.store(byte, Relaxed);
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut c_char {
        self.0.as_ptr().cast_mut().cast()
    }

    pub(crate) fn to_text(&self) -> String {
        let bytes = self.0.iter().map(|byte| byte.load(Relaxed));
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A text in the room of an error message: cut between characters, and ended by a NUL.
fn padded(text: &str) -> [u8; ERRBUF_SIZE] {
    let mut bytes = [0; ERRBUF_SIZE];
    let text = &text[..text.floor_char_boundary(ERRBUF_SIZE - 1)];
    let text = text.bytes().map(|byte| if byte == 0 { b' ' } else { byte });
    for (to, byte) in bytes.iter_mut().zip(text) {
        *to = byte;
    }
    bytes
}

/// Writes a text to the caller's buffer.
///
/// # Safety
/// The pointer is null, or of `PCAP_ERRBUF_SIZE` writable bytes.
pub(crate) unsafe fn write(errbuf: *mut c_char, text: &str) {
    if !errbuf.is_null() {
        // SAFETY: the caller's promise.
        unsafe { errbuf.cast::<[u8; ERRBUF_SIZE]>().write(padded(text)) };
    }
}

/// A text as a C string.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "ä".repeat(200);
        let error = ErrorText::new();
        error.set(&text);
        assert_eq!(error.to_text(), "ä".repeat(127));
        error.set("short");
        assert_eq!(error.to_text(), "short");
    }
}
