//! Users and groups by name, from `passwd(5)` and `group(5)`.
//!
//! Only the files are read, and no other source of nsswitch.conf(5): the broker
//! must not wait for a directory server while it handles requests. A policy can
//! name users of other sources by number.

use super::PeerCred;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Largest file that is read, in bytes.
const FILE_LEN_MAX: u64 = 16 << 20;

/// The error for a file of users or groups that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}: {source}")]
pub struct AccountError {
    /// The file.
    pub path: String,
    /// The system's error.
    pub source: io::Error,
}

/// The users and groups of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Accounts {
    /// User name to user number and primary group number.
    users: HashMap<String, (u32, u32)>,
    names: HashMap<u32, String>,
    groups: HashMap<String, u32>,
    /// User name to the groups that list the user.
    member_of: HashMap<String, Vec<u32>>,
}

impl Accounts {
    /// The numbers of a user and of its group, by the user's name or number; a
    /// number that the files do not have is its group's, too.
    pub fn user(&self, user: &str) -> Option<(u32, u32)> {
        let known = self.users.get(user).copied();
        known.or_else(|| {
            // The last number stands for no user.
            let uid = user.parse().ok().filter(|uid| *uid != u32::MAX)?;
            let mut all = self.users.values();
            Some(all.find(|one| one.0 == uid).map_or((uid, uid), |one| *one))
        })
    }

    /// Reads the files in `/etc`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of_system() -> Result<Accounts, AccountError> {
        Accounts::in_folder(Path::new("/etc"))
    }

    /// Reads the files `passwd` and `group` in `folder`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn in_folder(folder: &Path) -> Result<Accounts, AccountError> {
        let read = |name: &str| {
            let path = folder.join(name);
            let mut bytes = Vec::new();
            File::open(&path)
                .and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut bytes))
                .map_err(|source| AccountError {
                    path: path.display().to_string(),
                    source,
                })?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Accounts::parse(&read("passwd")?, &read("group")?))
    }

    /// Parses the texts of the two files. The first line of a name counts;
    /// invalid lines are skipped.
    pub fn parse(passwd: &str, group: &str) -> Accounts {
        let mut accounts = Accounts::default();
        for line in passwd.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if let [name, _, uid, gid, ..] = fields[..]
                && let (false, Ok(uid), Ok(gid)) = (name.is_empty(), uid.parse(), gid.parse())
            {
                accounts.users.entry(name.to_owned()).or_insert((uid, gid));
                accounts.names.entry(uid).or_insert_with(|| name.to_owned());
            }
        }
        for line in group.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if let [name, _, gid, members] = fields[..]
                && let (false, Ok(gid)) = (name.is_empty(), gid.parse())
            {
                accounts.groups.entry(name.to_owned()).or_insert(gid);
                for member in members.split(',').filter(|member| !member.is_empty()) {
                    let of = accounts.member_of.entry(member.to_owned()).or_default();
                    of.push(gid);
                }
            }
        }
        accounts
    }

    /// A user's number; `None` if the user is unknown.
    pub fn uid(&self, name: &str) -> Option<u32> {
        self.users.get(name).map(|(uid, _)| *uid)
    }

    /// A group's number; `None` if the group is unknown.
    pub fn gid(&self, name: &str) -> Option<u32> {
        self.groups.get(name).copied()
    }

    /// Whether a group has this number.
    pub fn has_gid(&self, gid: u32) -> bool {
        self.groups.values().any(|known| *known == gid)
    }

    /// A user's name, from the first line with the number; `None` if there is
    /// none.
    pub fn name(&self, uid: u32) -> Option<&str> {
        self.names.get(&uid).map(String::as_str)
    }

    /// The groups of a user: the primary group, and the groups that list the
    /// user.
    pub fn gids(&self, uid: u32) -> Vec<u32> {
        let mut gids = BTreeSet::new();
        for (name, (_, own)) in self.users.iter().filter(|(_, user)| user.0 == uid) {
            gids.insert(*own);
            gids.extend(self.member_of.get(name).into_iter().flatten());
        }
        gids.into_iter().collect()
    }

    /// The groups of a process that its user has not lost: a group in the file
    /// that no longer lists the user is removed. Groups of users unknown to the
    /// files stay, and so do unknown groups.
    pub fn still(&self, uid: u32, gids: &[u32]) -> Vec<u32> {
        if !self.names.contains_key(&uid) {
            return gids.to_vec();
        }
        let own = self.gids(uid);
        let known: BTreeSet<u32> = self.groups.values().copied().collect();
        let has = |gid: &u32| own.contains(gid) || !known.contains(gid);
        gids.iter().copied().filter(has).collect()
    }

    /// Reduces a process's groups to those that its user has
    /// [still](Self::still).
    pub(crate) fn update(&self, who: &mut PeerCred) {
        let still = self.still(who.uid, &who.gids);
        // Otherwise the shared list stays shared.
        if *still != *who.gids {
            who.gids = still.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/:/bin/sh\n# comment\nbad\nbob:x:1001:100:Bob:/home/bob:/bin/sh\nbob:x:7:7::/:\nalso-bob:x:1001:101::/:\n:x:5:5::/:\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:\nnetdev:x:110:alice,bob\nodd:x:y:bob\nshort:x:1\n";

    #[test]
    fn names_and_memberships_are_found() {
        let accounts = Accounts::parse(PASSWD, GROUP);
        assert_eq!(accounts.uid("bob"), Some(1001));
        assert_eq!(accounts.uid(""), None);
        assert_eq!(accounts.name(1001), Some("bob"));
        assert_eq!(accounts.gid("netdev"), Some(110));
        assert_eq!(accounts.gid("odd"), None);
        assert_eq!(accounts.gids(1001), [100, 101, 110]);
        assert_eq!(accounts.gids(4242), [0u32; 0]);
    }

    #[test]
    fn a_membership_that_was_taken_away_is_none() {
        let accounts = Accounts::parse(PASSWD, GROUP);
        assert_eq!(accounts.still(1001, &[100, 110, 4711]), [100, 110, 4711]);
        let left = Accounts::parse(PASSWD, &GROUP.replace("alice,bob", "alice"));
        assert_eq!(left.still(1001, &[100, 110, 4711]), [100, 4711]);
        // The file says nothing about users of other sources.
        assert_eq!(left.still(4242, &[110]), [110]);
    }
}
