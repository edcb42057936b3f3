//! The folders of pins below `/run/weir/meter`: one for the interfaces of each counter.

use crate::error::CliError;
use siphasher::sip::SipHasher13;
use std::fmt::Display;
use std::hash::Hasher;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_link::bpf::{PinError, PinFolder};
use weir_link::xdp::mount_for_all;

/// Where counters are pinned.
const PINS: &str = "/run/weir/meter";
/// Bytes of interfaces' names in that of a folder of pins.
const PIN_NAME_MAX: usize = 96;
/// Longest time that the kernel takes to close the descriptors of a process that has ended.
const CLOSING: Duration = Duration::from_secs(1);

/// The folder of pins of a counter's interfaces, which this process alone uses.
pub(crate) struct Pins {
    root: PinFolder,
    name: String,
    pub(crate) folder: PinFolder,
    _lock: std::os::fd::OwnedFd,
}

impl Pins {
    pub(super) fn of(interfaces: &[&str]) -> Result<Pins, CliError> {
        let failed = |error: &dyn Display| CliError::run(format!("cannot keep counters: {error}"));
        let root = mount_for_all(Path::new(PINS)).map_err(|error| failed(&error))?;
        sweep(&root);
        // Interfaces of several network namespaces may have one name.
        let namespace = std::fs::metadata("/proc/self/ns/net").map_err(|error| failed(&error))?;
        let name = format!("{}-{}", pin_name(interfaces), namespace.ino());
        let until = Instant::now() + CLOSING;
        loop {
            let folder = match root.folder(&name) {
                // Its last owner removed it between the two steps.
                Err(PinError::System { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    continue;
                }
                folder => folder.map_err(|error| failed(&error))?,
            };
            let lock = folder.lock_alone().map_err(|error| failed(&error))?;
            match lock {
                // Its last owner may have removed it.
                Some(_) if !folder.is_there().is_ok_and(|is_there| is_there) => {}
                Some(lock) => {
                    return Ok(Pins {
                        root,
                        name,
                        folder,
                        _lock: lock,
                    });
                }
                // The owner may have been killed a moment ago.
                None if Instant::now() < until => std::thread::sleep(CLOSING / 100),
                None => {
                    let by = folder.locked_by();
                    let by = by.map_or_else(String::new, |number| format!(" by process {number}"));
                    let are = if interfaces.len() > 1 { "are" } else { "is" };
                    return Err(CliError::run(format!(
                        "{} {are} metered already{by}: end that first",
                        interfaces.join(", ")
                    )));
                }
            }
        }
    }
}

impl Drop for Pins {
    /// Removes the folder, if nothing is pinned there any more, while it is locked.
    fn drop(&mut self) {
        let _ = self.root.remove_folder(&self.name);
    }
}

/// Removes folders that are empty and in no process's hands: their processes were killed before
/// they had pinned anything, or after they had given it up.
fn sweep(root: &PinFolder) {
    let names = root.list().map_or_else(|_| Vec::new(), |(_, names)| names);
    for name in names {
        let folder = root.existing(&name).ok().flatten();
        let lock = folder.and_then(|folder| folder.lock_alone().ok().flatten());
        if lock.is_some() {
            // One that is not empty stays.
            let _ = root.remove_folder(&name);
        }
    }
}

/// Interfaces' names in that of a folder of pins, which has letters, digits, `-` and `_` alone, and
/// 128 bytes at most: a byte of another kind is `_` and two digits.
fn pin_name(interfaces: &[&str]) -> String {
    let mut sorted = interfaces.to_vec();
    sorted.sort_unstable();
    let mut name = String::new();
    for byte in sorted.join("+").bytes() {
        match byte {
            b'+' => name.push('-'),
            byte if byte.is_ascii_alphanumeric() => name.push(byte.into()),
            byte => name.push_str(&format!("_{byte:02x}")),
        }
    }
    if name.len() <= PIN_NAME_MAX {
        return name;
    }
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(name.as_bytes());
    format!("links-{:016x}", hasher.finish())
}
