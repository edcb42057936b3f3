//! Files below a folder, as a server gives them.

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A folder whose files are served, and nothing outside: the kernel resolves
/// each path below it, symbolic links included. Hidden files are not served,
/// by their own name or by a symbolic link.
pub(crate) struct Folder(OwnedFd);

/// The resource of a path.
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
    /// And nanoseconds.
    modified_ns: i64,
    pub(crate) kind: &'static str,
}

impl Served {
    /// Whether the file has the length and the time of its last change that it had when it was
    /// opened. A file that has lost its name to another one is unchanged.
    pub(crate) fn is_unchanged(&self) -> bool {
        let then = (self.len, self.modified, self.modified_ns);
        let now = self.file.metadata();
        now.is_ok_and(|now| (now.len(), now.mtime(), now.mtime_nsec()) == then)
    }
}

/// A file that is not whole yet: without a name, so that it ends with the process; on a file system
/// that has none such under a hidden name, which is removed.
pub(crate) struct Upload {
    pub(crate) file: File,
    folder: Folder,
    /// Its name, if it has one.
    beside: Option<String>,
    name: String,
}

impl Upload {
    /// The file is whole: it gets its name.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let folder = &self.folder.0;
        if self.beside.is_none() {
            let open = by_descriptor(&self.file);
            // Only a name that is free: another upload may be at the same point.
            let mut count = 0;
            loop {
                let beside = beside(&self.name, count);
                let flags = AtFlags::SYMLINK_FOLLOW;
                match rustix::fs::linkat(rustix::fs::CWD, &*open, folder, &*beside, flags) {
                    Err(Errno::EXIST) if count < PARTS_MAX => count += 1,
                    linked => {
                        linked?;
                        self.beside = Some(beside);
                        break;
                    }
                }
            }
        }
        let beside = self.beside.as_deref().expect("it has a name now");
        Ok(rustix::fs::renameat(folder, beside, folder, &*self.name)?)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Renamed if it became whole.
        if let Some(beside) = &self.beside {
            let _ = rustix::fs::unlinkat(&self.folder.0, &**beside, AtFlags::empty());
        }
    }
}

/// The hidden name of a file that is not whole.
fn beside(name: &str, count: u32) -> String {
    let start = name.floor_char_boundary(PART_NAME_LEN_MAX);
    format!(".{}.part{count}", &name[..start])
}

/// Files of one name that are not whole, at one time.
const PARTS_MAX: u32 = 100;
/// Bytes of a file's name that the name of the unfinished file begins with: with the rest it is at
/// most the kernel's 255.
const PART_NAME_LEN_MAX: usize = 240;

/// The longest path, in bytes, as the kernel has it.
const PATH_LEN_MAX: usize = 4095;

impl Folder {
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Folder(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// The resource of a request's path; of a folder its `index.html`.
    pub(crate) fn find(&self, target: &str) -> Resource {
        let Some(path) = relative(target) else {
            return Resource::Nothing(400);
        };
        let is_folder = path.is_empty() || path.ends_with('/');
        let path = if is_folder {
            format!("{path}index.html")
        } else {
            path
        };
        match self.find_plain(&path) {
            // A folder's `index.html` that is itself a folder is no page.
            Resource::Folder if is_folder => Resource::Nothing(404),
            found => found,
        }
    }

    /// The resource of a path below the folder, without the rules of URLs.
    pub(crate) fn find_plain(&self, path: &str) -> Resource {
        if path.len() > PATH_LEN_MAX {
            return Resource::Nothing(414);
        }
        let is_plain = path.split('/').all(|part| !matches!(part, "." | ".."));
        if !is_plain || path.contains('\0') || is_hidden(path.as_bytes()) {
            return Resource::Nothing(404);
        }
        match self.file(path) {
            Ok(found) => found,
            Err(Errno::ACCESS | Errno::PERM) => Resource::Nothing(403),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO) => Resource::Nothing(503),
            Err(_) => Resource::Nothing(404),
        }
    }

    /// A folder below this one; an empty path is this one.
    fn folder(&self, path: &str) -> io::Result<Folder> {
        let is_plain = path.split('/').all(|part| !matches!(part, "." | ".."));
        if !is_plain || is_hidden(path.as_bytes()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = if path.is_empty() { "." } else { path };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(Folder(openat2(
            &self.0,
            path,
            flags,
            Mode::empty(),
            resolve,
        )?))
    }

    /// Names and lengths of the files that are served directly in a folder, and whose names are
    /// wanted.
    ///
    /// # Errors
    /// If there is no such folder below this one.
    pub(crate) fn list(
        &self,
        path: &str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> io::Result<Vec<(String, u64)>> {
        let folder = self.folder(path)?;
        let mut files = Vec::new();
        for entry in rustix::fs::Dir::read_from(&folder.0)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && is_wanted(name)
                && let Resource::File(served) = folder.find_plain(name)
            {
                files.push((name.to_owned(), served.len));
            }
        }
        Ok(files)
    }

    /// Begins a new file, in a folder that exists.
    ///
    /// # Errors
    /// If the name is not plain, or the file cannot be created.
    pub(crate) fn create(&self, path: &str) -> io::Result<Upload> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let is_name =
            !name.is_empty() && !name.contains(char::is_control) && !is_hidden(name.as_bytes());
        if !is_name {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let folder = self.folder(parent)?;
        if matches!(folder.find_plain(name), Resource::Folder) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let mode = Mode::from_raw_mode(0o644);
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        // Its name comes by /proc.
        if Path::new("/proc/self/fd").exists()
            && let Ok(file) = rustix::fs::openat(&folder.0, ".", flags, mode)
        {
            return Ok(Upload {
                file: File::from(file),
                folder,
                beside: None,
                name: name.to_owned(),
            });
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut count = 0;
        loop {
            let beside = beside(name, count);
            match rustix::fs::openat(&folder.0, &*beside, flags, mode) {
                Err(Errno::EXIST) if count < PARTS_MAX => count += 1,
                opened => {
                    let file = File::from(opened?);
                    let name = name.to_owned();
                    return Ok(Upload {
                        file,
                        folder,
                        beside: Some(beside),
                        name,
                    });
                }
            }
        }
    }

    fn file(&self, path: &str) -> Result<Resource, Errno> {
        // A device or a FIFO may do something when it is opened: the kind is known before.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let find = |resolve| openat2(&self.0, path, flags, Mode::empty(), resolve);
        let found = match find(resolve | ResolveFlags::NO_SYMLINKS) {
            Err(Errno::LOOP) => {
                let found = find(resolve)?;
                if self.leads_to_hidden(&found) {
                    return Ok(Resource::Nothing(404));
                }
                found
            }
            found => found?,
        };
        let before = fstat(&found)?;
        let kind = rustix::fs::FileType::from_raw_mode(before.st_mode);
        if kind.is_dir() {
            return Ok(Resource::Folder);
        }
        if !kind.is_file() {
            return Ok(Resource::Nothing(403));
        }
        // The same file, whatever has its name by now.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = match open(by_descriptor(&found), flags, Mode::empty()) {
            // There is no /proc: by its name, again.
            Err(Errno::NOENT) => openat2(&self.0, path, flags, Mode::empty(), resolve)?,
            opened => opened?,
        };
        let facts = fstat(&file)?;
        if (facts.st_dev, facts.st_ino) != (before.st_dev, before.st_ino) {
            return Ok(Resource::Nothing(404));
        }
        Ok(Resource::File(Served {
            file: File::from(file),
            len: u64::try_from(facts.st_size).unwrap_or(0),
            modified: facts.st_mtime,
            modified_ns: facts.st_mtime_nsec as i64,
            kind: media_type(path),
        }))
    }

    /// Whether a file that was reached by a symbolic link is hidden by the names of its own path; so
    /// is a file whose path below the folder is not known.
    fn leads_to_hidden(&self, file: &OwnedFd) -> bool {
        let (Ok(folder), Ok(path)) = (path_of(&self.0), path_of(file)) else {
            return true;
        };
        let below = path.strip_prefix(folder);
        below.map_or(true, |below| is_hidden(below.as_os_str().as_bytes()))
    }
}

/// The path by which the kernel knows an open file.
fn path_of(file: impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(by_descriptor(file))
}

/// The path that leads to what a descriptor of this process refers to (proc(5)).
fn by_descriptor(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// Whether a file, or a folder that it is in, is hidden by its name.
fn is_hidden(path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'/');
    parts.any(|part| part.starts_with(b".") && part != b".well-known")
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
    plain.then_some(path)
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
    fn hidden_files_and_folders_of_an_indexs_name_are_not_served() {
        let name = format!(".weir-http-files-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("a/index.html")).unwrap();
        std::fs::create_dir_all(path.join(".b")).unwrap();
        for file in [".secret", ".b/c", "plain"] {
            std::fs::write(path.join(file), b"x").unwrap();
        }
        for (target, link) in [
            (".secret", "to-secret"),
            (".b", "to-folder"),
            ("plain", "to-plain"),
            ("to-secret", "twice"),
            ("loop", "loop"),
        ] {
            std::os::unix::fs::symlink(target, path.join(link)).unwrap();
        }
        let folder = Folder::open(&path).unwrap();
        let find = |target: &str| match folder.find(target) {
            Resource::File(_) => 200,
            Resource::Folder => 301,
            Resource::Nothing(status) => status,
        };
        let found = [
            ("/plain", 200),
            ("/to-plain", 200),
            ("/.secret", 404),
            ("/to-secret", 404),
            ("/twice", 404),
            ("/to-folder/c", 404),
            ("/to-folder", 404),
            ("/loop", 404),
            ("/a", 301),
            ("/a/", 404),
            ("/a/index.html", 301),
        ]
        .map(|(target, status)| (target, status, find(target)));
        std::fs::remove_dir_all(&path).unwrap();
        for (target, status, found) in found {
            assert_eq!(found, status, "{target}");
        }
    }

    /// The open of a FIFO's writer returns as soon as a reader opens the FIFO, for a moment too.
    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        let name = format!(".weir-http-fifo-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        let fifo = path.join("fifo");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, Mode::from_raw_mode(0o600), 0).unwrap();
        std::os::unix::fs::symlink("fifo", path.join("to-fifo")).unwrap();
        let folder = Folder::open(&path).unwrap();
        let (opened, is_open) = std::sync::mpsc::channel();
        let writer = fifo.clone();
        std::thread::spawn(move || {
            let writer = File::options().write(true).open(writer);
            let _ = opened.send(writer.is_ok());
        });
        for _ in 0..100 {
            for target in ["/fifo", "/to-fifo"] {
                assert!(matches!(folder.find(target), Resource::Nothing(403)));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let early = is_open.try_recv();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let _reader = open(&fifo, flags, Mode::empty()).unwrap();
        let at_last = is_open.recv_timeout(std::time::Duration::from_secs(30));
        std::fs::remove_dir_all(&path).unwrap();
        assert!(early.is_err(), "the server has opened the FIFO");
        assert_eq!(at_last, Ok(true));
    }

    #[test]
    fn names_tell_media_types() {
        assert_eq!(media_type("a/b.HTML"), "text/html; charset=utf-8");
        assert_eq!(media_type("a.d/b"), "application/octet-stream");
    }
}
