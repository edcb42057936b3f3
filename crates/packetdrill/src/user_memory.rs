//! Access to the caller's memory, as by the kernel: an invalid pointer causes
//! the error `EFAULT`, not a crash.

use crate::{Answer, Errno};
use libc::{c_void, iovec};

/// Largest number of bytes in one call; more is truncated, as calls may do.
const LEN_MAX: usize = 1 << 24;

/// Reads the caller's bytes at an address.
pub(crate) fn take(at: usize, len: usize) -> Answer<Vec<u8>> {
    let len = len.min(LEN_MAX);
    let mut bytes = vec![0; len];
    if len == 0 {
        return Ok(bytes);
    }
    let ours = piece(bytes.as_mut_ptr() as usize, len);
    let theirs = piece(at, len);
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, and reads the
    // caller's memory only where it is readable.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &ours, 1, &theirs, 1, 0) };
    whole(copied, len).map(|()| bytes)
}

/// Writes bytes to the caller's memory.
pub(crate) fn give(at: usize, bytes: &[u8]) -> Answer<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let ours = piece(bytes.as_ptr() as usize, bytes.len());
    let theirs = piece(at, bytes.len());
    // SAFETY: the kernel only reads `bytes`; the caller has passed the address
    // as a buffer to be written, and unwritable memory is an error.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &ours, 1, &theirs, 1, 0) };
    whole(copied, bytes.len())
}

/// Reads from one of the caller's files.
pub(crate) fn of_file(fd: i32, offset: u64, count: usize) -> Answer<Vec<u8>> {
    let mut bytes = vec![0; count.min(LEN_MAX)];
    // SAFETY: the kernel writes at most the length of `bytes`, and checks the
    // descriptor.
    let read = unsafe {
        libc::pread(
            fd,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            offset as libc::off_t,
        )
    };
    let read = usize::try_from(read).map_err(|_| Errno(libc::EBADF))?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Reads a number from the caller's memory.
pub(crate) fn take_u32(at: usize) -> Answer<u32> {
    let bytes = take(at, 4)?;
    Ok(u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
}

/// A NUL-terminated string, as far as it is readable.
pub(crate) fn take_text(at: usize, len_max: usize) -> String {
    let mut text = Vec::new();
    while at != 0 && text.len() < len_max {
        match take(at + text.len(), 1).as_deref() {
            Ok([byte]) if *byte != 0 => text.push(*byte),
            _ => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn piece(at: usize, len: usize) -> iovec {
    iovec {
        iov_base: at as *mut c_void,
        iov_len: len,
    }
}

fn whole(copied: isize, len: usize) -> Answer<()> {
    match usize::try_from(copied) {
        Ok(copied) if copied == len => Ok(()),
        _ => Err(Errno(libc::EFAULT)),
    }
}
