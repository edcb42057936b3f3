//! One frame: its fields by weir's views or by tshark, and its bytes.

use crate::monitor::dissect::Dissection;
use crate::monitor::lines::{self, TreeLine};
use crate::monitor::session::Session;
use crate::monitor::views::{Look, Views};
use std::collections::BTreeSet;
use std::ops::Range;
use weir_monitor::{Meta, StoredFrame};

/// A frame that is shown.
pub(super) struct Detail {
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
    meta: Meta,
    pub(super) summary: String,
    /// weir's lines and those of the user's views.
    own: Vec<TreeLine>,
    /// Whether a view has been asked and has not answered.
    is_waiting: bool,
    /// All lines that could be shown.
    all: Vec<TreeLine>,
    /// The headers, by their order, whose fields are shown.
    open: BTreeSet<usize>,
    /// The lines that are shown.
    pub(super) lines: Vec<TreeLine>,
    pub(super) selected: usize,
    dissection: Option<Dissection>,
    /// Whether the lines are tshark's.
    pub(super) is_foreign: bool,
}

impl Detail {
    pub(super) fn new(kept: &StoredFrame<'_>, views: &mut Views) -> Detail {
        let mut detail = Detail {
            number: kept.number,
            bytes: kept.bytes.to_vec(),
            meta: kept.meta,
            summary: lines::summary(kept),
            own: Vec::new(),
            is_waiting: true,
            all: Vec::new(),
            open: BTreeSet::new(),
            lines: Vec::new(),
            selected: 0,
            dissection: None,
            is_foreign: false,
        };
        detail.look(views);
        detail
    }

    /// Shows what the user's views say of the frame, once it has come.
    pub(super) fn look(&mut self, views: &mut Views) {
        if !self.is_waiting {
            return;
        }
        let kept = StoredFrame {
            number: self.number,
            bytes: &self.bytes,
            meta: self.meta,
        };
        let look = views.look(&kept);
        self.is_waiting = matches!(look, Look::Asked(_));
        let lines = lines::tree(&kept, &look);
        if lines == self.own {
            return;
        }
        self.own = lines;
        if !self.is_foreign {
            self.set_lines(self.own.clone());
        }
    }

    /// Shows other lines: the headers, and the fields of the last one that has any.
    fn set_lines(&mut self, all: Vec<TreeLine>) {
        let mut headers = 0;
        let mut last = 0;
        for line in &all {
            if line.is_layer {
                headers += 1
            } else {
                last = headers
            }
        }
        self.all = all;
        self.open = BTreeSet::from([last]);
        self.selected = 0;
        self.layout();
        let opened = self.lines.iter().position(|line| !line.is_layer);
        self.selected = opened.map_or(0, |first| first - 1);
    }

    /// Shows or hides the fields of the header of the selected line.
    pub(super) fn toggle(&mut self) {
        let lines = self.lines.iter().take(self.selected + 1);
        let header = lines.filter(|line| line.is_layer).count();
        if !self.open.remove(&header) {
            self.open.insert(header);
        }
        self.layout();
        let mut headers = self
            .lines
            .iter()
            .enumerate()
            .filter(|(_, line)| line.is_layer);
        let place = headers.nth(header.saturating_sub(1));
        self.selected = place.map_or(0, |(place, _)| place);
    }

    fn layout(&mut self) {
        let mut header = 0;
        let mut lines = Vec::new();
        for line in &self.all {
            header += usize::from(line.is_layer);
            if line.is_layer || self.open.contains(&header) {
                lines.push(line.clone());
            }
        }
        self.lines = lines;
    }

    /// Shows tshark's fields, or weir's again; returns a message.
    pub(super) fn toggle_tshark(&mut self, session: &Session) -> Option<String> {
        let kept = session.store.get(self.number);
        let Some(kept) = kept else {
            return Some("the frame is no longer kept".to_owned());
        };
        if self.is_foreign || self.dissection.is_some() {
            self.dissection = None;
            self.is_foreign = false;
            self.set_lines(self.own.clone());
            return None;
        }
        let interface = &session.interfaces()[kept.meta.interface as usize];
        match Dissection::start(kept.bytes, kept.meta.len, kept.meta.time_ns, interface) {
            Ok(dissection) => {
                self.dissection = Some(dissection);
                Some("tshark looks at the frame".to_owned())
            }
            Err(why) => Some(why),
        }
    }

    /// Takes tshark's answer, if it has come; returns whether anything changed, with a message.
    pub(super) fn poll(&mut self) -> Option<Option<String>> {
        let answer = self.dissection.as_ref()?.poll()?;
        self.dissection = None;
        match answer {
            Ok(lines) => {
                let lines = lines.into_iter().map(|(depth, text)| TreeLine {
                    depth,
                    text,
                    range: 0..0,
                    is_layer: depth == 0,
                });
                self.set_lines(lines.collect());
                self.is_foreign = true;
                Some(None)
            }
            Err(why) => Some(Some(why)),
        }
    }

    pub(super) fn go(&mut self, by: isize) {
        let last = self.lines.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// The bytes of the selected line.
    pub(super) fn marked(&self) -> Range<usize> {
        self.lines
            .get(self.selected)
            .map_or(0..0, |line| line.range.clone())
    }
}
