//! Frames that were received together: copied once, into one `bytes` object.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
        let whole = self.whole(py)?;
        let views: PyResult<Vec<Bound<'_, PyAny>>> = (0..self.entries.len())
            .map(|index| self.view(&whole, index))
            .collect();
        PyList::new(py, views?)
    }

    fn whole<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(self.data.bind(py))
    }

    /// A frame's part of the view of all bytes.
    fn view<'py>(
        &self,
        whole: &Bound<'py, PyMemoryView>,
        index: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (start, end) = (self.start(index), self.entries[index].end);
        whole.get_item(PySlice::new(whole.py(), start as isize, end as isize, 1))
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

/// The views of a batch, each made as it is asked for: a loop frees one before the next, so that all of
/// them are in the same memory, and the garbage collector has none to look at.
#[pyclass(frozen, module = "weir")]
pub(crate) struct Views {
    batch: Py<Batch>,
    whole: Py<PyMemoryView>,
    next: AtomicUsize,
}

#[pymethods]
impl Views {
    fn __iter__(slf: Py<Views>) -> Py<Views> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let batch = self.batch.get();
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        if index >= batch.entries.len() {
            // Stays at the end.
            self.next.store(batch.entries.len(), Ordering::Relaxed);
            return Ok(None);
        }
        batch.view(self.whole.bind(py), index).map(Some)
    }

    fn __length_hint__(&self) -> usize {
        let len = self.batch.get().entries.len();
        len.saturating_sub(self.next.load(Ordering::Relaxed))
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
        match self.views.get(py) {
            Some(views) => views.bind(py).get_item(at as usize),
            None => self.view(&self.whole(py)?, at as usize),
        }
    }

    fn __iter__(slf: Bound<'_, Batch>) -> PyResult<Views> {
        Ok(Views {
            whole: slf.get().whole(slf.py())?.unbind(),
            batch: slf.unbind(),
            next: AtomicUsize::new(0),
        })
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
