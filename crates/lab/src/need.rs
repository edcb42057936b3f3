//! What a test needs from its surroundings, and what happens without it.
//!
//! Elsewhere than in CI a missing need skips the test and says why; with
//! `CI=true` in the environment it fails it, so that nothing is silently
//! left untested.

use std::path::PathBuf;

/// Skips the running test for `reason`: panics under CI, else prints it.
/// The caller returns right after.
pub fn skip(reason: &str) {
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!in_ci, "missing in CI: {reason}");
    eprintln!("skipped: {reason}");
}

/// Whether this process is root, as network namespaces and eBPF need; `false`
/// (after [`skip`]) if not.
pub fn root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("network namespaces need root");
    }
    is_root
}

/// The folder of real captures beside the checkout, `../shared/captures`, or
/// the one that `WEIR_CAPTURES` names; `None` (after [`skip`]) without it.
pub fn captures() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/captures");
    let folder = std::env::var_os("WEIR_CAPTURES").map_or_else(|| beside.into(), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    skip(&format!(
        "no captures in {} (set WEIR_CAPTURES to a folder of capture files)",
        folder.display()
    ));
    None
}

/// The capture files of [`captures`], sorted by name; empty (after [`skip`])
/// without them.
pub fn capture_files() -> Vec<PathBuf> {
    let Some(folder) = captures() else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(&folder).expect("the folder of captures can be read");
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("pcap" | "pcapng"))
        })
        .collect();
    files.sort();
    files
}
