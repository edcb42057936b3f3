//! Arguments from Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::time::{Duration, SystemTime};
use weir_filter::lang::Language;

/// The bytes of any bytes-like object: `bytes` as they are, of another object a copy, since the
/// stable interface of Python 3.9 has no buffers.
pub(crate) fn bytes<'py>(frame: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = frame.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    let view = pyo3::types::PyMemoryView::from(frame)?;
    Ok(view.call_method0("tobytes")?.cast_into()?)
}

/// The length on the wire: as given, or that of a `weir.Frame`, or the number of bytes.
pub(crate) fn wire_len(
    frame: &Bound<'_, PyAny>,
    given: Option<u32>,
    bytes: &[u8],
) -> PyResult<u32> {
    let captured = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if let Some(length) = given {
        return Ok(length);
    }
    match frame.getattr_opt("length")? {
        Some(length) => length.extract(),
        None => Ok(captured),
    }
}

/// A time to wait, in seconds; `None` is without end.
pub(crate) fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    let time = Duration::try_from_secs_f64(seconds);
    time.map(Some)
        .map_err(|error| PyValueError::new_err(format!("timeout={seconds}: {error}")))
}

pub(crate) fn language(name: &str) -> PyResult<Language> {
    name.parse()
        .map_err(|error| PyValueError::new_err(format!("language: {error}")))
}

/// Nanoseconds since 1970.
pub(crate) fn nanoseconds(time: SystemTime) -> Option<i64> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_nanos()).ok()
}
