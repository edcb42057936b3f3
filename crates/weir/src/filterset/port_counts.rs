//! The counts of each port, and their output.

use crate::filterset::file_demux::Ports;
use crate::report::format::Column::{Left, Right};
use crate::report::format::{self, Times};
use serde::{Serialize, Serializer};
use std::io;
use weir_link::pcap::FrameRef;

/// Frames counted: number, bytes, time range.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Count {
    /// Frames.
    pub(crate) frames: u64,
    /// Bytes on the wire.
    pub(crate) bytes: u64,
    #[serde(skip)]
    first_ns: Option<i64>,
    #[serde(skip)]
    last_ns: Option<i64>,
}

impl Count {
    /// Counts one frame.
    #[inline]
    pub(crate) fn add(&mut self, wire_len: u32, time_ns: Option<i64>) {
        self.frames += 1;
        self.bytes += u64::from(wire_len);
        if let Some(time_ns) = time_ns {
            // Files need not be ordered by time.
            self.first_ns = Some(self.first_ns.map_or(time_ns, |first| first.min(time_ns)));
            self.last_ns = Some(self.last_ns.map_or(time_ns, |last| last.max(time_ns)));
        }
    }

    fn row(&self, name: &str, whole: &Count, times: &Times) -> Vec<String> {
        vec![
            name.to_owned(),
            format::grouped(self.frames),
            format::grouped(self.bytes),
            format::share(self.frames, whole.frames),
            times.cell(self.first_ns),
            times.cell(self.last_ns),
        ]
    }
}

/// The counts of each port, of frames that no port took, and of all frames.
#[derive(Clone, Debug)]
pub(crate) struct PortCounts {
    pub(crate) ports: Vec<Count>,
    pub(crate) default: Count,
    pub(crate) all: Count,
}

#[derive(Serialize)]
struct Json<'a, T> {
    frames: u64,
    ports: NamedCounts<'a>,
    default: Count,
    #[serde(flatten)]
    more: &'a T,
}

#[derive(Serialize)]
struct ReadProblem {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Names and counts, serialised without a copy.
struct NamedCounts<'a>(&'a [&'a str], &'a [Count]);

impl Serialize for NamedCounts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ports = self.0.iter().zip(self.1);
        serializer.collect_seq(ports.map(|(name, count)| NamedCount {
            name,
            count: *count,
        }))
    }
}

#[derive(Serialize)]
struct NamedCount<'a> {
    name: &'a str,
    #[serde(flatten)]
    count: Count,
}

impl PortCounts {
    /// Counts of zero, for this many ports.
    pub(crate) fn new(ports: usize) -> PortCounts {
        PortCounts {
            ports: vec![Count::default(); ports],
            default: Count::default(),
            all: Count::default(),
        }
    }

    /// Counts a frame, which goes to `ports`.
    #[inline]
    pub(crate) fn add(&mut self, frame: &FrameRef<'_>, ports: &Ports<'_>) {
        let (wire_len, time_ns) = (frame.wire_len, frame.time_ns);
        self.all.add(wire_len, time_ns);
        for (port, _) in ports.ports() {
            self.ports[port].add(wire_len, time_ns);
        }
        if !ports.taken() {
            self.default.add(wire_len, time_ns);
        }
    }

    /// The counts as a table.
    pub(crate) fn table(&self, names: &[&str]) -> String {
        let heading = [
            Left("port"),
            Right("frames"),
            Right("bytes"),
            Right("share"),
            Right("first"),
            Right("last"),
        ];
        let times = Times::spanning(self.all.first_ns, self.all.last_ns);
        let ports = names.iter().copied().zip(&self.ports);
        let rest = [("(default)", &self.default), ("(all)", &self.all)];
        let rows = ports
            .chain(rest)
            .map(|(name, count)| count.row(name, &self.all, &times));
        format::table(&heading, rows) + &times.note()
    }

    /// Writes the counts as one line of JSON; `error` says why they do not
    /// cover the whole input.
    pub(crate) fn write_json(
        &self,
        out: impl io::Write,
        names: &[&str],
        error: Option<String>,
    ) -> io::Result<()> {
        let more = &ReadProblem { error };
        Ok(serde_json::to_writer(out, &self.to_json(names, more))?)
    }

    /// The same line, with the fields of `more` after the counts.
    pub(crate) fn json_with(&self, names: &[&str], more: &impl Serialize) -> String {
        serde_json::to_string(&self.to_json(names, more)).expect("numbers and names are JSON")
    }

    fn to_json<'a, T>(&'a self, names: &'a [&'a str], more: &'a T) -> Json<'a, T> {
        Json {
            frames: self.all.frames,
            ports: NamedCounts(names, &self.ports),
            default: self.default,
            more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_to_its_stable_shape() {
        let mut tally = PortCounts::new(1);
        tally.all.add(60, Some(1));
        tally.ports[0].add(60, Some(1));
        let json = |error| {
            let mut out = Vec::new();
            tally.write_json(&mut out, &["web"], error).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            json(None),
            r#"{"frames":1,"ports":[{"name":"web","frames":1,"bytes":60}],"default":{"frames":0,"bytes":0}}"#
        );
        assert!(json(Some("broken".into())).contains(r#""error":"broken""#));
    }

    #[test]
    fn the_table_of_a_day_fits_80_columns() {
        let mut tally = PortCounts::new(1);
        for time_ns in [1, 86_399_999_999_999] {
            tally.all.add(u32::MAX, Some(time_ns));
        }
        tally.all.frames = 1_234_567;
        let table = tally.table(&["web"]);
        assert!(table.contains("23:59:59.999999"), "{table}");
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    }

    #[test]
    fn times_need_not_be_in_order() {
        let mut count = Count::default();
        for time in [5, 3, 9, 4] {
            count.add(1, Some(time));
        }
        assert_eq!((count.first_ns, count.last_ns), (Some(3), Some(9)));
        assert_eq!((count.frames, count.bytes), (4, 4));
    }
}
