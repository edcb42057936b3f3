//! Compares one expression in libpcap and in weir.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;
use weir_filter::ir::Program;
use weir_filter::lang::expr::{Context, Names, compile};
use weir_lab::oracle::{Filter, Frame, Oracle, SNAPLEN};
use weir_wire::LinkType;

use crate::engines::Engines;
use crate::{Sample, WHOLE};

/// In a sample, the interpreters run on one frame in this many.
const SAMPLING: usize = 32;

/// The kind of difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// libpcap refuses the expression, weir accepts it.
    WeAccept,
    /// libpcap accepts it, weir refuses it.
    WeRefuse,
    /// Both accept it, and some frame has different verdicts.
    Verdict,
    /// As [`Verdict`](Kind::Verdict), but libpcap's unoptimised program has
    /// weir's verdict.
    Optimiser,
    /// weir's engines disagree, or one refuses weir's program: never
    /// deliberate.
    Ours,
}

/// One difference found.
pub(crate) struct Difference {
    pub(crate) linktype: LinkType,
    pub(crate) text: String,
    pub(crate) kind: Kind,
    pub(crate) detail: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference {
            linktype,
            text,
            kind,
            detail,
        } = self;
        write!(f, "{linktype}: {kind:?}: `{text}`: {detail}")
    }
}

/// As for `tcpdump -r`, which passes 0.0.0.0 for the netmask.
pub(crate) fn context(linktype: LinkType, names: &dyn Names) -> Context<'_> {
    Context {
        netmask: Some(Ipv4Addr::UNSPECIFIED),
        ..Context::new(linktype).with_names(names)
    }
}

/// Compares expressions for one link type.
pub(crate) struct Judge<'a> {
    oracle: &'a Oracle,
    names: &'a (dyn Names + Sync),
    linktype: LinkType,
    samples: &'a [Sample],
    accepted: AtomicUsize,
    refused: AtomicUsize,
    verdicts: AtomicUsize,
    matches: AtomicUsize,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(
        oracle: &'a Oracle,
        names: &'a (dyn Names + Sync),
        linktype: LinkType,
        samples: &'a [Sample],
    ) -> Judge<'a> {
        Judge {
            oracle,
            names,
            linktype,
            samples,
            accepted: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            verdicts: AtomicUsize::new(0),
            matches: AtomicUsize::new(0),
        }
    }

    /// The number of comparisons so far.
    pub(crate) fn summary(&self) -> String {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        format!(
            "{} expressions accepted by both, {} refused by both; {} verdicts, {} of them to accept",
            count(&self.accepted),
            count(&self.refused),
            count(&self.verdicts),
            count(&self.matches)
        )
    }

    fn theirs(&self, text: &str, optimise: bool) -> Result<Filter<'a>, String> {
        let no_mask = 0;
        self.oracle
            .compile_with(text, self.linktype, SNAPLEN, no_mask, optimise)
    }

    /// The differences of one expression, with the first frame of each kind.
    pub(crate) fn entry(&self, text: &str, turn: usize) -> Vec<Difference> {
        let theirs = self.theirs(text, true);
        let ours = compile(text, &context(self.linktype, self.names));
        let (kind, detail) = match (theirs, ours) {
            (Err(_), Err(_)) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Vec::new();
            }
            (Ok(_), Err(ours)) => (Kind::WeRefuse, format!("weir: {ours}")),
            (Ok(theirs), Ok(ours)) => {
                self.accepted.fetch_add(1, Ordering::Relaxed);
                return self.verdicts(text, turn, &theirs, ours);
            }
            (Err(error), Ok(ours)) => {
                // Refused by libpcap's optimiser, not by its language: the
                // verdicts can still be compared.
                let plain = self.theirs(text, false);
                let mut found = match &plain {
                    Ok(plain) => self.verdicts(text, turn, plain, ours),
                    Err(_) => Vec::new(),
                };
                found.push(self.difference(text, Kind::WeAccept, format!("libpcap: {error}")));
                return found;
            }
        };
        vec![self.difference(text, kind, detail)]
    }

    fn verdicts(
        &self,
        text: &str,
        turn: usize,
        theirs: &Filter<'_>,
        ours: Program,
    ) -> Vec<Difference> {
        let ours = match Engines::new(ours, self.oracle) {
            Ok(ours) => ours,
            Err(detail) => return vec![self.difference(text, Kind::Ours, detail)],
        };
        let mut engines = ours.prepare();
        let mut found: Vec<Difference> = Vec::new();
        let (mut judged, mut accepted) = (0, 0);
        for (index, Sample { source, frame }) in self.samples.iter().enumerate() {
            let expected = theirs.run(&frame.bytes, frame.wire_len);
            let sampled = WHOLE || (index + turn).is_multiple_of(SAMPLING);
            let verdict = match engines.fast(frame) {
                // A difference is analysed, sampled or not.
                Some(verdict) if !sampled && verdict == expected => Ok(verdict),
                None if !sampled => continue,
                _ => engines.all(frame),
            };
            judged += 1;
            accepted += usize::from(expected != 0);
            let (kind, detail) = match verdict {
                Ok(verdict) if verdict == expected => continue,
                Ok(verdict) => (
                    self.blame(text, frame, verdict),
                    format!("libpcap says {expected}, weir {verdict}"),
                ),
                Err(detail) => (Kind::Ours, detail),
            };
            if found.iter().all(|earlier| earlier.kind != kind) {
                found.push(self.difference(text, kind, format!("{source}: {detail}")));
            }
        }
        self.verdicts.fetch_add(judged, Ordering::Relaxed);
        self.matches.fetch_add(accepted, Ordering::Relaxed);
        found
    }

    /// The side that causes the difference, if weir's verdict is `verdict`.
    fn blame(&self, text: &str, frame: &Frame, verdict: u32) -> Kind {
        match self.theirs(text, false) {
            Ok(plain) if plain.run(&frame.bytes, frame.wire_len) == verdict => Kind::Optimiser,
            _ => Kind::Verdict,
        }
    }

    fn difference(&self, text: &str, kind: Kind, detail: String) -> Difference {
        Difference {
            linktype: self.linktype,
            text: text.to_owned(),
            kind,
            detail,
        }
    }
}
