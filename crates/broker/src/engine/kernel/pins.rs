//! The pinned state of an interface's demultiplexer, which the next broker
//! adopts.

use super::egress_pool;
use std::sync::Arc;
use weir_link::bpf::{PinError, PinFolder};
use weir_link::live::{self, EgressError};
use weir_link::plan::{PlanError, PortMaps};

/// A pin folder of one interface; dropping it sweeps the folder, unless it is
/// kept.
#[derive(Debug)]
pub(super) struct Pins {
    root: Arc<PinFolder>,
    name: String,
    pub(super) folder: Arc<PinFolder>,
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
            folder: Arc::new(root.folder(&name)?),
            root: Arc::clone(root),
            name,
            is_kept: false,
        })
    }

    /// Detaches and unpins everything in the folder.
    pub(super) fn sweep(&self) -> Result<(), PlanError> {
        // A link that cannot be detached already is: its interface is gone.
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

/// The reason why state of a former broker was not removed.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A pinned object.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// An attachment to an interface.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An egress path in use.
    #[error(transparent)]
    Path(#[from] EgressError),
}

/// The interfaces of which there is state: network namespace and ifindex.
///
/// # Errors
/// If the folder cannot be read.
pub(crate) fn pinned_interfaces(root: &PinFolder) -> Result<Vec<(u64, u32)>, PinError> {
    let (_, folders) = root.list()?;
    let parsed = folders.iter().filter_map(|name| {
        let (namespace, ifindex) = name.split_once('-')?;
        Some((namespace.parse().ok()?, ifindex.parse().ok()?))
    });
    Ok(parsed.collect())
}

/// Removes the state of all interfaces except those in `kept`, and egress paths
/// except those of the folders `kept_paths`.
///
/// # Errors
/// If something cannot be removed; everything else is.
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
            // Fails if the folder is not empty.
            Ok(root.remove_folder(&name).map(drop)?)
        };
        result = result.and(sweep());
    }
    result
}
