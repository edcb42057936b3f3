//! Exceptions: the classes of `weir._errors`, with the messages of weir's errors.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use weir_broker::PortError;
use weir_broker::compile::CompileError;
use weir_broker::protocol::ErrorKind;

/// An exception of the class `class` of `weir._errors`.
fn of_class<'py>(
    py: Python<'py>,
    class: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyErr {
    let made = py
        .import("weir._errors")
        .and_then(|module| module.getattr(class)?.call1(arguments));
    match made {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// An exception for anything else.
pub(crate) fn plain(py: Python<'_>, message: &str) -> PyErr {
    of_class(py, "Error", (message,))
}

pub(crate) fn capture(py: Python<'_>, message: &str) -> PyErr {
    of_class(py, "CaptureError", (message,))
}

pub(crate) fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("{what} is closed"))
}

pub(crate) fn filter(py: Python<'_>, error: &CompileError, text: &str) -> PyErr {
    let span = error.span.clone().map(|span| (span.start, span.end));
    of_class(py, "FilterError", (&error.message, text, span))
}

pub(crate) fn port(py: Python<'_>, error: PortError, filter_text: &str) -> PyErr {
    match error {
        PortError::Filter(error) => filter(py, &error, filter_text),
        PortError::Refused(refusal) => match refusal.kind {
            ErrorKind::Filter => filter(py, &refusal.into(), filter_text),
            ErrorKind::Denied => of_class(py, "PermissionDenied", (refusal.message,)),
            _ => plain(py, &refusal.message),
        },
        error @ PortError::NoBroker { .. } => of_class(py, "NoBroker", (error.to_string(),)),
        error => plain(py, &error.to_string()),
    }
}
