//! Frames that were received together: copied once, into one `bytes` object.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};
use std::sync::Arc;

/// A frame without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Where its bytes end, and the next frame's begin.
    pub(crate) end: usize,
    pub(crate) time_ns: Option<i64>,
    pub(crate) length: u32,
    pub(crate) outgoing: bool,
    pub(crate) lost_before: u32,
    pub(crate) interface: u32,
}

/// What frames were received on.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) linktype: u32,
    pub(crate) name: Option<String>,
}

/// A sequence of memoryviews.
#[pyclass(frozen, module = "weir", sequence)]
pub(crate) struct Batch {
    pub(crate) data: Py<PyBytes>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) sources: Arc<[Source]>,
    views: PyOnceLock<Py<PyList>>,
}

impl Batch {
    pub(crate) fn new(
        data: Bound<'_, PyBytes>,
        entries: Vec<Entry>,
        sources: Arc<[Source]>,
    ) -> Batch {
        Batch {
            data: data.unbind(),
            entries,
            sources,
            views: PyOnceLock::new(),
        }
    }

    fn start(&self, index: usize) -> usize {
        index
            .checked_sub(1)
            .map_or(0, |before| self.entries[before].end)
    }

    /// The bytes of a frame.
    pub(crate) fn bytes<'a>(&'a self, py: Python<'a>, index: usize) -> &'a [u8] {
        &self.data.as_bytes(py)[self.start(index)..self.entries[index].end]
    }

    pub(crate) fn source(&self, entry: &Entry) -> &Source {
        &self.sources[entry.interface as usize]
    }

    fn made<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let whole = PyMemoryView::from(self.data.bind(py))?;
        let mut start = 0;
        let views: PyResult<Vec<Bound<'_, PyAny>>> = self
            .entries
            .iter()
            .map(|entry| {
                let range = PySlice::new(py, start as isize, entry.end as isize, 1);
                start = entry.end;
                whole.get_item(range)
            })
            .collect();
        PyList::new(py, views?)
    }

    /// The frame as an object of `weir.Frame`.
    pub(crate) fn frame<'py>(
        &self,
        py: Python<'py>,
        class: &Bound<'py, PyAny>,
        index: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let entry = self.entries[index];
        let source = self.source(&entry);
        let bytes = PyBytes::new(py, self.bytes(py, index));
        class.call1((
            bytes,
            entry.time_ns,
            entry.length,
            entry.outgoing,
            entry.lost_before,
            source.linktype,
            source.name.as_deref(),
        ))
    }
}

/// The class `weir.Frame`.
pub(crate) fn frame_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.get_or_try_init(py, || {
        let class = py.import("weir._frame")?.getattr("Frame")?;
        PyResult::Ok(class.unbind())
    })?;
    Ok(class.bind(py))
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.entries.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let len = self.entries.len() as isize;
        let at = if index < 0 { index + len } else { index };
        if !(0..len).contains(&at) {
            return Err(PyIndexError::new_err(format!(
                "frame {index} of a batch of {len}"
            )));
        }
        self.views(py)?.get_item(at as usize)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.views(py)?.try_iter()?.into_any())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "<weir.Batch of {} frames, {} bytes>",
            self.entries.len(),
            self.data.as_bytes(py).len()
        )
    }

    /// The views, all of `data`.
    #[getter]
    fn views<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let views = self
            .views
            .get_or_try_init(py, || PyResult::Ok(self.made(py)?.unbind()))?;
        Ok(views.bind(py).clone())
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.data.bind(py).clone()
    }

    #[getter]
    fn offsets(&self) -> Vec<usize> {
        (0..=self.entries.len())
            .map(|index| self.start(index))
            .collect()
    }

    #[getter]
    fn times_ns(&self) -> Vec<Option<i64>> {
        self.entries.iter().map(|entry| entry.time_ns).collect()
    }

    #[getter]
    fn lengths(&self) -> Vec<u32> {
        self.entries.iter().map(|entry| entry.length).collect()
    }

    #[getter]
    fn outgoing(&self) -> Vec<bool> {
        self.entries.iter().map(|entry| entry.outgoing).collect()
    }

    /// Frames that the port lost before each.
    #[getter]
    fn lost_before(&self) -> Vec<u32> {
        self.entries.iter().map(|entry| entry.lost_before).collect()
    }

    #[getter]
    fn linktypes(&self) -> Vec<u32> {
        let of = |entry: &Entry| self.source(entry).linktype;
        self.entries.iter().map(of).collect()
    }

    /// The frames as objects with all that is known of each; a second copy.
    fn frames<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let class = frame_class(py)?;
        let frames: PyResult<Vec<_>> = (0..self.entries.len())
            .map(|index| self.frame(py, class, index))
            .collect();
        PyList::new(py, frames?)
    }
}
