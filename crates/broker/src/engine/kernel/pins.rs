//! What an interface's divider leaves behind for the next broker.

use super::egress_pool;
use std::sync::Arc;
use weir_link::bpf::{PinError, PinFolder};
use weir_link::live::{self, PathError};
use weir_link::plan::{PlanError, PortMaps};

/// A folder of pins for one interface; swept when this is dropped, unless it
/// is kept.
#[derive(Debug)]
pub(super) struct Pins {
    root: Arc<PinFolder>,
    name: String,
    pub(super) folder: PinFolder,
    pub(super) is_kept: bool,
}

impl Pins {
    pub(super) fn of(
        root: &Arc<PinFolder>,
        namespace: u64,
        ifindex: u32,
    ) -> Result<Pins, PlanError> {
        Pins::named(root, name_of(namespace, ifindex))
    }

    fn named(root: &Arc<PinFolder>, name: String) -> Result<Pins, PlanError> {
        Ok(Pins {
            folder: root.folder(&name)?,
            root: Arc::clone(root),
            name,
            is_kept: false,
        })
    }

    /// Detaches and unpins all that is there.
    pub(super) fn sweep(&self) -> Result<(), PlanError> {
        // A link that cannot be detached is so when its interface is gone.
        let _ = live::sweep(&self.folder);
        PortMaps::unpin(&self.folder)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.sweep();
            let _ = self.root.remove_folder(&self.name);
        }
    }
}

fn name_of(namespace: u64, ifindex: u32) -> String {
    format!("{namespace}-{ifindex}")
}

/// Why something of an earlier broker's was not removed.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Something pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// What was attached to an interface.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A path that somebody sends by.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Removes what is left of all interfaces, but for those of `kept`, and paths
/// but for those of the folders `kept_paths`.
///
/// # Errors
/// If there is something that cannot be removed; the rest is.
pub(crate) fn sweep(
    root: &Arc<PinFolder>,
    kept: &[(u64, u32)],
    kept_paths: &[&str],
) -> Result<(), SweepError> {
    let (_, folders) = root.list()?;
    let kept: Vec<String> = kept
        .iter()
        .map(|(ns, ifindex)| name_of(*ns, *ifindex))
        .collect();
    let mut result = Ok(());
    let is_kept = |name: &str| kept.iter().any(|one| one == name) || kept_paths.contains(&name);
    for name in folders.into_iter().filter(|name| !is_kept(name)) {
        let sweep = || -> Result<(), SweepError> {
            if egress_pool::is_folder(&name) {
                egress_pool::sweep_folder(&root.folder(&name)?, |_| false)?;
            } else {
                Pins::named(root, name.clone())?.sweep()?;
            }
            // Fails where anything is left.
            Ok(root.remove_folder(&name).map(drop)?)
        };
        result = result.and(sweep());
    }
    result
}
