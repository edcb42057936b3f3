//! Paths that no other user can make mean something else.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::symlink_metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf, absolute};

/// Largest number of symbolic links on the way, as in the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// The owner of a folder, if no user but root and `uid` can have its path lead
/// elsewhere: it, each folder on the way to it, and each symbolic link belong to
/// one of the two, and only its owner may write to a folder; not even a sticky
/// folder has other writers. `None` otherwise.
///
/// # Errors
/// If a part of the path cannot be looked at.
pub(crate) fn owner_of(folder: &Path, uid: u32) -> io::Result<Option<u32>> {
    let names = |path: &Path| -> VecDeque<OsString> {
        path.components()
            .map(|part| part.as_os_str().to_owned())
            .collect()
    };
    let mut left = names(&absolute(folder)?);
    let (mut at, mut links, mut owner) = (PathBuf::from("/"), 0, 0);
    while let Some(name) = left.pop_front() {
        match Path::new(&name).components().next() {
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::RootDir) => at = PathBuf::from("/"),
            _ => at.push(&name),
        }
        let about = symlink_metadata(&at)?;
        owner = about.uid();
        if owner != 0 && owner != uid {
            return Ok(None);
        }
        if about.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return Ok(None);
            }
            let mut target = names(&std::fs::read_link(&at)?);
            at.pop();
            target.append(&mut left);
            left = target;
        } else if !about.is_dir() || about.mode() & 0o022 != 0 {
            return Ok(None);
        }
    }
    Ok(Some(owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use weir_lab::testenv;

    const WEIR: u32 = 64_990;
    const EVE: u32 = 64_666;

    /// A folder that root alone can write to, on the way and in it.
    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn every_folder_and_link_on_the_way_counts() {
        if !testenv::root() {
            return;
        }
        let name = format!("/run/weir-trusted-{}", std::process::id());
        let root = Folder(PathBuf::from(name));
        create_dir(&root.0).unwrap();
        set_permissions(&root.0, Permissions::from_mode(0o755)).unwrap();
        let own = root.0.join("own");
        create_dir(&own).unwrap();
        let owner = |path: &Path| owner_of(path, WEIR).unwrap();
        assert_eq!(owner(&own), Some(0));
        chown(&own, Some(WEIR), Some(WEIR)).unwrap();
        assert_eq!(owner(&own), Some(WEIR));
        assert_eq!(owner(&root.0.join("own/../own/.")), Some(WEIR));
        assert_eq!(owner_of(&own, EVE).unwrap(), None, "another user's");
        for mode in [0o775, 0o757, 0o1777] {
            set_permissions(&own, Permissions::from_mode(mode)).unwrap();
            assert_eq!(owner(&own), None, "{mode:o}");
        }
        set_permissions(&own, Permissions::from_mode(0o755)).unwrap();
        // By a link of root's or the user's, not by another user's or in a
        // folder that others can write to.
        let link = root.0.join("link");
        symlink("own", &link).unwrap();
        assert_eq!(owner(&link), Some(WEIR));
        std::os::unix::fs::lchown(&link, Some(EVE), Some(EVE)).unwrap();
        assert_eq!(owner(&link), None);
        let all = root.0.join("all");
        create_dir(&all).unwrap();
        set_permissions(&all, Permissions::from_mode(0o1777)).unwrap();
        symlink(&own, all.join("link")).unwrap();
        assert_eq!(owner(&all.join("link")), None);
        let chain = root.0.join("chain");
        symlink("all/link", &chain).unwrap();
        assert_eq!(owner(&chain), None, "a link to a link");
        symlink("loop", root.0.join("loop")).unwrap();
        assert_eq!(owner(&root.0.join("loop")), None);
        assert!(owner_of(&root.0.join("none"), WEIR).is_err());
    }
}
