//! Receiving in kernel threads instead of on the CPU that sends.

use super::Device;
use super::error::{Error, failed};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::write;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::collections::BTreeSet;
use std::{fs, io};

impl Device {
    /// Has kernel threads receive, one for each queue (threaded NAPI), and
    /// gives their numbers, so that a CPU can be chosen for them. Otherwise a
    /// veth receives on the CPU that sends, where nothing can tell what
    /// sending costs from what receiving does.
    ///
    /// The device must be one that polls: give a veth an XDP program or GRO
    /// first.
    ///
    /// # Errors
    /// If the driver has no such threads.
    pub fn receive_in_threads(&self) -> Result<Vec<u32>, Error> {
        let what = || format!("receiving in threads at device `{}`", self.name());
        let before = threads(self.name()).map_err(failed(what()))?;
        let switch = |on| self.host().run(|| switch(self.name(), on));
        switch(true).map_err(failed(what()))?;
        let after = threads(self.name()).map_err(failed(what()))?;
        let new: Vec<u32> = after.difference(&before).copied().collect();
        if new.is_empty() {
            switch(false).map_err(failed(what()))?;
            let none = io::Error::other("none was started: has it an XDP program or GRO?");
            return Err(failed(what())(none));
        }
        Ok(new)
    }
}

/// Sets the switch in a view of sysfs as the calling thread's namespace has
/// it, which is mounted nowhere.
fn switch(device: &str, on: bool) -> io::Result<()> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let sysfs = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    let path = format!("class/net/{device}/threaded");
    let switch = openat(
        &sysfs,
        path,
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    write(&switch, if on { b"1" } else { b"0" })?;
    Ok(())
}

/// The kernel's threads that receive for a device of this name, in whatever
/// namespace.
fn threads(device: &str) -> io::Result<BTreeSet<u32>> {
    let start = format!("napi/{device}-");
    let numbers = fs::read_dir("/proc")?.filter_map(|entry| {
        let entry = entry.ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        name.starts_with(&start).then_some(number)
    });
    Ok(numbers.collect())
}
