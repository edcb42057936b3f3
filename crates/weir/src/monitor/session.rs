//! One run of the monitor: what was counted, what is kept, what is recorded.

use super::facts::{Facts, Owner};
use super::record::Recorder;
use crate::error::CliError;
use crate::signals::ShutdownSignal;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_link::pcap::Interface;
use weir_monitor::{Counts, Flow, Limits, Meta, Model, Seen, Store, StoredFrame};
use weir_wire::LinkType;

/// The monitor's state apart from how it is shown.
pub(crate) struct Session {
    pub(crate) model: Model,
    pub(crate) store: Store,
    /// The last message for the user.
    pub(crate) news: Option<String>,
    /// What is wrong at present with where the frames come from, in a few words each.
    pub(crate) troubles: Vec<String>,
    recorder: Option<Recorder>,
    /// Why a recording ended early: the command's exit status says it too.
    failed: Option<CliError>,
    interfaces: Vec<Interface>,
    snap_len: Option<u32>,
    keep: usize,
    tls_keys: Option<PathBuf>,
    owners: HashMap<Flow, Arc<Owner>>,
    facts: Option<Arc<Facts>>,
}

impl Session {
    /// An empty session that keeps `keep` bytes of frames.
    pub(crate) fn new(keep: usize, snap_len: Option<u32>, tls_keys: Option<&Path>) -> Session {
        Session {
            model: fresh_model(),
            store: Store::new(keep),
            news: None,
            troubles: Vec::new(),
            recorder: None,
            failed: None,
            interfaces: Vec::new(),
            snap_len,
            keep,
            tls_keys: tls_keys.map(Path::to_owned),
            owners: HashMap::new(),
            facts: None,
        }
    }

    /// The number of the interface of that name and link type, which is added if new.
    pub(crate) fn interface(&mut self, name: &str, linktype: LinkType) -> u32 {
        let mut known = self.interfaces.iter();
        let is_it = |one: &Interface| one.name.as_deref() == Some(name) && one.linktype == linktype;
        let number = known.position(is_it).unwrap_or_else(|| {
            let plain = Interface::ethernet();
            self.interfaces.push(Interface {
                linktype,
                name: Some(name.to_owned()),
                snaplen: self.snap_len.unwrap_or(plain.snaplen),
                ..plain
            });
            self.interfaces.len() - 1
        });
        number as u32
    }

    /// The interfaces that frames have come from.
    pub(crate) fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Takes a frame.
    #[inline]
    pub(crate) fn frame(&mut self, bytes: &[u8], meta: Meta) {
        self.model.frame(&Seen {
            bytes,
            len: meta.len,
            time_ns: meta.time_ns,
            linktype: meta.linktype,
            lost_before: meta.lost_before,
        });
        self.store.keep(bytes, meta);
        if let Some(recorder) = &mut self.recorder {
            let interfaces = &self.interfaces;
            let (len, time_ns) = (meta.len, meta.time_ns);
            let written = recorder.write(interfaces, meta.interface, bytes, len, time_ns);
            if let Err(error) = written {
                self.recording_failed(error);
            }
        }
    }

    /// Writes recorded frames that are buffered, if it is time to.
    pub(crate) fn rest(&mut self) {
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.rest()
        {
            self.recording_failed(error);
        }
    }

    #[cold]
    fn recording_failed(&mut self, error: CliError) {
        self.recorder = None;
        self.news = Some(format!("recording has ended: {error}"));
        self.failed = Some(error);
    }

    /// Starts to record to a file.
    pub(crate) fn record(&mut self, path: &Path, stop: &ShutdownSignal) -> Result<(), CliError> {
        self.recorder = Some(Recorder::create(path, self.tls_keys.as_deref(), stop)?);
        Ok(())
    }

    /// The file that is recorded to, and the number of frames in it.
    pub(crate) fn recording(&self) -> Option<(&Path, u64)> {
        self.recorder.as_ref().map(Recorder::state)
    }

    /// Ends recording; says what was recorded.
    pub(crate) fn end_recording(&mut self) -> Result<(), CliError> {
        let Some(recorder) = self.recorder.take() else {
            return Ok(());
        };
        let (path, frames) = recorder.finish(&self.interfaces)?;
        let frames = crate::report::format::frames(frames);
        self.news = Some(format!("{}: {frames} recorded", path.display()));
        Ok(())
    }

    /// The failure of a recording, once.
    pub(crate) fn take_failure(&mut self) -> Option<CliError> {
        self.failed.take()
    }

    /// Saves the kept frames that `accepts` selects; returns their number.
    pub(crate) fn save(
        &self,
        path: &Path,
        stop: &ShutdownSignal,
        mut accepts: impl FnMut(&StoredFrame<'_>) -> bool,
    ) -> Result<u64, CliError> {
        let mut file = Recorder::create(path, self.tls_keys.as_deref(), stop)?;
        file.rest()?;
        for kept in self.store.from(0) {
            let meta = &kept.meta;
            if accepts(&kept) {
                let (len, time_ns) = (meta.len, meta.time_ns);
                file.write(&self.interfaces, meta.interface, kept.bytes, len, time_ns)?;
            }
        }
        Ok(file.finish(&self.interfaces)?.1)
    }

    /// The key log of TLS connections, if one was given.
    pub(crate) fn tls_keys(&self) -> Option<&Path> {
        self.tls_keys.as_deref()
    }

    /// Forgets everything but the recording.
    pub(crate) fn reset(&mut self) {
        self.model = fresh_model();
        self.store = Store::new(self.keep);
        self.owners.clear();
    }

    /// The kept frames, in place of which there are none.
    pub(crate) fn take_store(&mut self) -> Store {
        std::mem::replace(&mut self.store, Store::new(self.keep))
    }

    /// Counts and keeps, in place of everything before, those of the given frames that `accepts` selects.
    /// They are not recorded again.
    pub(crate) fn recount(
        &mut self,
        frames: &Store,
        mut accepts: impl FnMut(&StoredFrame<'_>) -> bool,
    ) {
        let recorder = self.recorder.take();
        self.reset();
        for kept in frames.from(0).filter(|kept| accepts(kept)) {
            self.frame(kept.bytes, kept.meta);
        }
        self.recorder = recorder;
    }

    /// Takes what the system says of ports and sockets, and finds the owners of conversations that
    /// have none yet.
    pub(crate) fn take_facts(&mut self, facts: Arc<Facts>) {
        for row in self.model.conversations().rows() {
            if !self.owners.contains_key(&row.key)
                && let Some(owner) = facts.owner(&row.key)
            {
                self.owners.insert(row.key, owner);
            }
        }
        self.facts = Some(facts);
    }

    /// The system's facts; `None` for a file.
    pub(crate) fn facts(&self) -> Option<&Facts> {
        self.facts.as_deref()
    }

    /// The process of a conversation, if it is this host's and known.
    pub(crate) fn owner(&self, flow: &Flow) -> Option<&Owner> {
        self.owners.get(flow).map(|owner| &**owner)
    }

    /// The processes with their conversations' sums, the greatest first; and the sum of the
    /// conversations without a known process.
    pub(crate) fn processes(&self) -> (Vec<(Arc<Owner>, Counts, f64)>, Counts) {
        let mut sums: HashMap<u32, (Arc<Owner>, Counts, f64)> = HashMap::new();
        let mut rest = self.model.conversations().overflow();
        for row in self.model.conversations().rows() {
            match self.owners.get(&row.key) {
                Some(owner) => {
                    let fresh = || (Arc::clone(owner), Counts::default(), 0.0);
                    let sum = sums.entry(owner.pid).or_insert_with(fresh);
                    sum.1 = sum.1.and(row.total());
                    sum.2 += row.rate;
                }
                None => rest = rest.and(row.total()),
            }
        }
        let mut rows: Vec<_> = sums.into_values().collect();
        rows.sort_by_key(|(owner, counts, _)| (std::cmp::Reverse(counts.bytes), owner.pid));
        (rows, rest)
    }
}

/// An empty model, with a seed that no peer knows.
fn fresh_model() -> Model {
    let seed = [(); 2].map(|()| RandomState::new().hash_one(0));
    Model::new(Limits::default(), seed)
}
