//! The list of frames.

use crate::monitor::filter::Filter;
use crate::monitor::lines::summary;
use crate::monitor::report::end_name;
use std::collections::VecDeque;
use weir_monitor::{Digest, Flow, Host, Store, StoredFrame};

/// Most frames that one call tests against the filter, and that a search looks at.
const SCAN_MAX: u64 = 200_000;

/// Frames of one row of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Only {
    Flow(Flow),
    Host(Host),
}

impl Only {
    fn has(&self, kept: &StoredFrame<'_>) -> bool {
        let digest = Digest::of(kept.bytes, kept.meta.linktype);
        match self {
            Only::Flow(flow) => digest.flow().0 == *flow,
            Only::Host(host) => digest.src == *host || digest.dst == *host,
        }
    }

    fn name(&self) -> String {
        match self {
            Only::Flow(flow) => format!(
                "{} - {}",
                end_name(&flow.a, flow.a_port),
                end_name(&flow.b, flow.b_port)
            ),
            Only::Host(host) => host.to_string(),
        }
    }
}

/// The list's state.
pub(super) struct FrameList {
    /// The filter of the list.
    filter: Filter,
    only: Option<Only>,
    /// The numbers of the frames that the filter accepts, up to `scanned`; unused without a filter.
    matches: VecDeque<u64>,
    scanned: u64,
    /// The selected frame's number.
    pub(super) selected: u64,
    /// Whether the selection stays on the last frame.
    pub(super) is_tail: bool,
}

impl FrameList {
    pub(super) fn new() -> FrameList {
        FrameList {
            filter: Filter::default(),
            only: None,
            matches: VecDeque::new(),
            scanned: 0,
            selected: 0,
            is_tail: true,
        }
    }

    /// The filter of the list.
    pub(super) fn filter(&self) -> &str {
        self.filter.text()
    }

    /// Shows what another filter accepts.
    pub(super) fn set_filter(&mut self, text: &str) {
        self.filter = Filter::new(text);
        self.restart();
    }

    /// Shows the frames of one row of a table, or of all.
    pub(super) fn set_only(&mut self, only: Option<Only>) {
        self.only = only;
        self.restart();
    }

    /// The row whose frames are shown.
    pub(super) fn only(&self) -> Option<String> {
        self.only.as_ref().map(Only::name)
    }

    /// Whether the list shows all kept frames.
    fn is_all(&self) -> bool {
        self.filter.text().is_empty() && self.only.is_none()
    }

    /// Begins anew with an empty store, or another filter.
    pub(super) fn restart(&mut self) {
        self.matches.clear();
        self.scanned = 0;
        self.is_tail = true;
    }

    /// Whether the list shows this frame.
    pub(super) fn accepts(&mut self, kept: &StoredFrame<'_>) -> bool {
        self.only.is_none_or(|only| only.has(kept))
            && self
                .filter
                .accepts(kept.bytes, kept.meta.len, kept.meta.linktype)
    }

    /// Tests new frames; returns whether all are tested.
    pub(super) fn refresh(&mut self, store: &Store) -> bool {
        if self.is_all() {
            return true;
        }
        let first = store.first();
        while self.matches.front().is_some_and(|number| *number < first) {
            self.matches.pop_front();
        }
        let start = self.scanned.max(first);
        let end = store.end().min(start + SCAN_MAX);
        for number in start..end {
            if let Some(kept) = store.get(number)
                && self.accepts(&kept)
            {
                self.matches.push_back(number);
            }
        }
        self.scanned = end;
        end == store.end()
    }

    /// Number of frames in the list.
    pub(super) fn len(&self, store: &Store) -> u64 {
        if self.is_all() {
            store.end() - store.first()
        } else {
            self.matches.len() as u64
        }
    }

    /// The number of the frame at a place of the list.
    pub(super) fn number(&self, store: &Store, place: u64) -> Option<u64> {
        if self.is_all() {
            Some(store.first() + place).filter(|number| *number < store.end())
        } else {
            self.matches.get(usize::try_from(place).ok()?).copied()
        }
    }

    /// The place of the selected frame, or of the next one that is in the list.
    pub(super) fn place(&self, store: &Store) -> u64 {
        let last = self.len(store).saturating_sub(1);
        if self.is_tail {
            return last;
        }
        let place = if self.is_all() {
            self.selected.saturating_sub(store.first())
        } else {
            self.matches
                .partition_point(|number| *number < self.selected) as u64
        };
        place.min(last)
    }

    /// Moves the selection; at the end of the list it stays there.
    pub(super) fn go(&mut self, store: &Store, by: i64) {
        let last = self.len(store).saturating_sub(1);
        let place = self.place(store).saturating_add_signed(by).min(last);
        self.is_tail = place == last && by > 0;
        self.selected = self.number(store, place).unwrap_or(0);
    }

    /// The selected frame.
    pub(super) fn current<'a>(&self, store: &'a Store) -> Option<StoredFrame<'a>> {
        store.get(self.number(store, self.place(store))?)
    }

    /// Selects the next frame whose line contains the text, in any case; `false` if none of those
    /// looked at does.
    pub(super) fn search(&mut self, store: &Store, text: &str) -> bool {
        let wanted = text.to_lowercase();
        let len = self.len(store);
        let start = self.place(store);
        for step in 1..=len.min(SCAN_MAX) {
            let place = (start + step) % len;
            let Some(kept) = self
                .number(store, place)
                .and_then(|number| store.get(number))
            else {
                continue;
            };
            if summary(&kept).to_lowercase().contains(&wanted) {
                self.selected = kept.number;
                self.is_tail = false;
                return true;
            }
        }
        false
    }
}
