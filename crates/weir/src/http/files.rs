//! Files below a folder, as a server gives them.

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A folder whose files are served, and nothing outside: the kernel resolves
/// each path below it, symbolic links included.
pub(crate) struct Folder(OwnedFd);

/// What a path leads to.
pub(crate) enum Resource {
    File(Served),
    /// A folder, whose name lacks the slash at its end.
    Folder,
    /// Nothing, or nothing that is served: the status that says so.
    Nothing(u16),
}

/// A file to be sent.
pub(crate) struct Served {
    pub(crate) file: File,
    pub(crate) len: u64,
    /// Seconds since 1970.
    pub(crate) modified: i64,
    pub(crate) kind: &'static str,
}

/// The longest path, in bytes, as the kernel has it.
const PATH_LEN_MAX: usize = 4095;

impl Folder {
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Folder(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// What the path of a request leads to; of a folder its `index.html`.
    pub(crate) fn find(&self, target: &str) -> Resource {
        let Some(path) = relative(target) else {
            return Resource::Nothing(400);
        };
        let hidden = |part: &str| part.starts_with('.') && part != ".well-known";
        if path.split('/').any(hidden) {
            return Resource::Nothing(404);
        }
        let is_folder = path.is_empty() || path.ends_with('/');
        let path = if is_folder {
            format!("{path}index.html")
        } else {
            path
        };
        match self.file(&path) {
            Ok(found) => found,
            Err(Errno::ACCESS | Errno::PERM) => Resource::Nothing(403),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO) => Resource::Nothing(503),
            Err(_) => Resource::Nothing(404),
        }
    }

    fn file(&self, path: &str) -> Result<Resource, Errno> {
        // Not to be held up by a FIFO.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&self.0, path, flags, Mode::empty(), resolve)?;
        let facts = fstat(&file)?;
        let kind = rustix::fs::FileType::from_raw_mode(facts.st_mode);
        if kind.is_dir() {
            return Ok(Resource::Folder);
        }
        if !kind.is_file() {
            return Ok(Resource::Nothing(403));
        }
        Ok(Resource::File(Served {
            file: File::from(file),
            len: u64::try_from(facts.st_size).unwrap_or(0),
            modified: facts.st_mtime,
            kind: media_type(path),
        }))
    }
}

/// The path below the folder; `None` if it is not one.
fn relative(target: &str) -> Option<String> {
    let path = target.split(['?', '#']).next()?.strip_prefix('/')?;
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        bytes.push((high << 4 | low) as u8);
    }
    let path = String::from_utf8(bytes).ok()?;
    let parts_are_plain = path.split('/').all(|part| part != ".." && part != ".");
    let plain = parts_are_plain && !path.starts_with('/') && !path.contains('\0');
    (plain && path.len() <= PATH_LEN_MAX).then_some(path)
}

/// The media type that a file's name stands for.
fn media_type(path: &str) -> &'static str {
    let end = path.rsplit('/').next().unwrap_or_default();
    let end = end.rsplit_once('.').map_or("", |(_, end)| end);
    match end.to_ascii_lowercase().as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "txt" | "md" | "log" => "text/plain; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "zst" => "application/zstd",
        "tar" => "application/x-tar",
        "wasm" => "application/wasm",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/vnd.microsoft.icon",
        "mp3" => "audio/mpeg",
        "ogg" => "audio/ogg",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "pcap" => "application/vnd.tcpdump.pcap",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_folder() {
        assert_eq!(relative("/a%20b/c?d").as_deref(), Some("a b/c"));
        assert_eq!(relative("/").as_deref(), Some(""));
        for wrong in [
            "/../x",
            "/a/../../x",
            "/%2e%2e/x",
            "/a/%2E./x",
            "//etc/passwd",
            "/%2fetc",
            "x",
            "/%",
            "/%4",
            "/%zz",
            "/%00",
            "/%ff",
        ] {
            assert_eq!(relative(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_tell_media_types() {
        assert_eq!(media_type("a/b.HTML"), "text/html; charset=utf-8");
        assert_eq!(media_type("a.d/b"), "application/octet-stream");
    }
}
