//! Capture files.

use crate::batch::{Batch, Entry, Source};
use crate::{convert, error, filter};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::collections::hash_map;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_broker::compile::CompileError;
use weir_filter::backend::Runner;
use weir_filter::lang::Language;
use weir_link::pcap::{FrameRef, Interface, Reader, Resolution, Writer, frame_len_max};
use weir_wire::LinkType;

/// Frames of a batch by default.
const FRAMES: usize = 256;

struct Reading {
    reader: Reader,
    /// What is behind the frames that were returned.
    damage: Option<String>,
    /// By link type, which a file may have several of.
    runners: HashMap<u32, Runner>,
}

enum Failure {
    Filter(CompileError),
    Damage(String),
}

#[pyclass(frozen, module = "weir", subclass)]
pub(crate) struct CaptureReader {
    path: PathBuf,
    filter: Option<String>,
    reading: Mutex<Option<Reading>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reading {
    /// Frames that the filter accepts, one behind the other; fewer only at the end of the file.
    fn read(&mut self, max: usize, text: Option<&str>) -> Result<(Vec<u8>, Vec<Entry>), Failure> {
        let (mut data, mut entries) = (Vec::new(), Vec::new());
        if let Some(damage) = self.damage.take() {
            return Err(Failure::Damage(damage));
        }
        while entries.len() < max {
            let frame = match self.reader.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(wrong) if entries.is_empty() => return Err(Failure::Damage(wrong.to_string())),
                Err(wrong) => {
                    self.damage = Some(wrong.to_string());
                    break;
                }
            };
            if let Some(text) = text {
                let linktype = frame.linktype();
                if let hash_map::Entry::Vacant(place) = self.runners.entry(linktype.0) {
                    let program = filter::compile(text, Language::Expr, linktype);
                    place.insert(Runner::new(program.map_err(Failure::Filter)?));
                }
                let runner = &self.runners[&linktype.0];
                if runner.run(frame.bytes, frame.wire_len) == 0 {
                    continue;
                }
            }
            data.extend_from_slice(frame.bytes);
            entries.push(Entry {
                end: data.len(),
                time_ns: frame.time_ns,
                length: frame.wire_len,
                outgoing: false,
                lost_before: 0,
                interface: frame.interface_index,
            });
        }
        Ok((data, entries))
    }

    fn sources(&self) -> std::sync::Arc<[Source]> {
        let interfaces = self.reader.interfaces().iter();
        let sources = interfaces.map(|interface| Source {
            linktype: interface.linktype.0,
            name: interface.name.clone(),
        });
        sources.collect()
    }
}

#[pymethods]
impl CaptureReader {
    #[new]
    #[pyo3(signature = (path, filter = None))]
    fn new(py: Python<'_>, path: PathBuf, filter: Option<String>) -> PyResult<CaptureReader> {
        let opened = py.detach(|| Reader::open(&path));
        let reader = opened.map_err(|wrong| {
            let named = matches!(wrong, weir_link::pcap::Error::Open { .. });
            let text = if named {
                wrong.to_string()
            } else {
                format!("{}: {wrong}", path.display())
            };
            error::capture(py, &text)
        })?;
        Ok(CaptureReader {
            path,
            filter,
            reading: Mutex::new(Some(Reading {
                reader,
                damage: None,
                runners: HashMap::new(),
            })),
        })
    }

    /// The next frames; an empty batch at the end of the file.
    #[pyo3(signature = (max = FRAMES))]
    fn read_batch(&self, py: Python<'_>, max: usize) -> PyResult<Batch> {
        if max == 0 {
            return Err(PyValueError::new_err("max=0: at least one frame"));
        }
        // A pipe may have nothing yet.
        let read = py.detach(|| {
            let mut reading = lock(&self.reading);
            let reading = reading.as_mut()?;
            let read = reading.read(max, self.filter.as_deref());
            Some(read.map(|(data, entries)| (data, entries, reading.sources())))
        });
        let Some(read) = read else {
            return Err(error::closed(&self.path.display().to_string()));
        };
        let (data, entries, sources) = read.map_err(|failure| match failure {
            Failure::Damage(text) => {
                error::capture(py, &format!("{}: {text}", self.path.display()))
            }
            Failure::Filter(wrong) => {
                error::filter(py, &wrong, self.filter.as_deref().unwrap_or_default())
            }
        })?;
        Ok(Batch::new(PyBytes::new(py, &data), entries, sources))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.reading).take()));
    }

    fn __repr__(&self) -> String {
        format!("<weir.CaptureReader of {}>", self.path.display())
    }
}

struct Writing {
    writer: Writer<File>,
    interfaces: Vec<Interface>,
    frames: u64,
}

impl Writing {
    /// The number of an interface, described if it is new.
    fn number(&mut self, linktype: u32, name: Option<&str>) -> usize {
        let known = self.interfaces.iter().position(|interface| {
            interface.linktype.0 == linktype && interface.name.as_deref() == name
        });
        known.unwrap_or_else(|| {
            let linktype = LinkType(linktype);
            self.interfaces.push(Interface {
                linktype,
                snaplen: frame_len_max(linktype),
                resolution: Resolution::NANO,
                offset_s: 0,
                name: name.map(str::to_owned),
            });
            self.interfaces.len() - 1
        })
    }

    fn write(
        &mut self,
        bytes: &[u8],
        time_ns: Option<i64>,
        wire_len: u32,
        source: &Source,
    ) -> Result<(), weir_link::pcap::WriteError> {
        let number = self.number(source.linktype, source.name.as_deref());
        self.writer.write(&FrameRef {
            bytes,
            wire_len,
            time_ns,
            interface_index: u32::try_from(number).unwrap_or(u32::MAX),
            interface: &self.interfaces[number],
        })?;
        self.frames += 1;
        Ok(())
    }
}

#[pyclass(frozen, module = "weir", subclass)]
pub(crate) struct CaptureWriter {
    path: PathBuf,
    writing: Mutex<Option<Writing>>,
}

impl CaptureWriter {
    /// Works with the open file.
    fn with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Writing) -> Result<T, weir_link::pcap::WriteError>,
    ) -> PyResult<T> {
        let mut writing = lock(&self.writing);
        let Some(writing) = writing.as_mut() else {
            return Err(error::closed(&self.path.display().to_string()));
        };
        work(writing).map_err(|wrong| self.failed(py, &wrong))
    }

    fn failed(&self, py: Python<'_>, wrong: &weir_link::pcap::WriteError) -> PyErr {
        error::capture(py, &format!("{}: {wrong}", self.path.display()))
    }
}

#[pymethods]
impl CaptureWriter {
    #[new]
    #[pyo3(signature = (path, *, format = None))]
    fn new(py: Python<'_>, path: PathBuf, format: Option<&str>) -> PyResult<CaptureWriter> {
        let is_pcap = path
            .extension()
            .is_some_and(|end| end == "pcap" || end == "cap");
        let classic = match format {
            None => is_pcap,
            Some("pcap") => true,
            Some("pcapng") => false,
            Some(other) => {
                return Err(PyValueError::new_err(format!(
                    "format={other}: there are pcap and pcapng"
                )));
            }
        };
        let made = if classic {
            match File::create(&path) {
                Ok(file) => Ok(Writer::classic(file)),
                Err(source) => Err(weir_link::pcap::WriteError::Create {
                    path: path.clone(),
                    source,
                }),
            }
        } else {
            Writer::create(&path)
        };
        Ok(CaptureWriter {
            writing: Mutex::new(Some(Writing {
                writer: made.map_err(|wrong| error::capture(py, &wrong.to_string()))?,
                interfaces: Vec::new(),
                frames: 0,
            })),
            path,
        })
    }

    #[pyo3(signature = (frame, *, time_ns = None, length = None, linktype = None, interface = None))]
    fn write(
        &self,
        py: Python<'_>,
        frame: &Bound<'_, PyAny>,
        time_ns: Option<i64>,
        length: Option<u32>,
        linktype: Option<u32>,
        interface: Option<String>,
    ) -> PyResult<()> {
        let bytes = convert::bytes(frame)?;
        let bytes = bytes.as_bytes();
        let length = convert::wire_len(frame, length, bytes)?;
        let time_ns = of_frame(frame, "time_ns", time_ns)?;
        let source = Source {
            linktype: of_frame(frame, "linktype", linktype)?.unwrap_or(1),
            name: of_frame(frame, "interface", interface)?,
        };
        self.with(py, |writing| writing.write(bytes, time_ns, length, &source))
    }

    fn write_batch(&self, py: Python<'_>, batch: &Batch) -> PyResult<()> {
        self.with(py, |writing| {
            for (index, entry) in batch.entries.iter().enumerate() {
                let bytes = batch.bytes(py, index);
                writing.write(bytes, entry.time_ns, entry.length, batch.source(entry))?;
            }
            Ok(())
        })
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |writing| writing.writer.flush())
    }

    /// Frames that were written.
    #[getter]
    fn frames(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |writing| Ok(writing.frames))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mut writing) = lock(&self.writing).take() else {
            return Ok(());
        };
        // A pcap file's header comes with its first interface.
        if writing.interfaces.is_empty() {
            let described = writing.writer.describe(&Interface::ethernet());
            described.map_err(|wrong| self.failed(py, &wrong))?;
        }
        let finished = writing.writer.finish().map(drop);
        finished.map_err(|wrong| self.failed(py, &wrong))
    }

    fn __repr__(&self) -> String {
        format!("<weir.CaptureWriter to {}>", self.path.display())
    }
}

/// What is given, or else what a `weir.Frame` knows; `None` for other bytes.
fn of_frame<'py, T: for<'a> FromPyObject<'a, 'py>>(
    frame: &Bound<'py, PyAny>,
    name: &str,
    given: Option<T>,
) -> PyResult<Option<T>> {
    if given.is_some() {
        return Ok(given);
    }
    match frame.getattr_opt(name)? {
        Some(value) => value.extract::<Option<T>>().map_err(Into::into),
        None => Ok(None),
    }
}
