//! One filter.

use crate::{convert, error};
use pyo3::prelude::*;
use weir_broker::compile::{CompileError, Compiler, Source, with_hosts};
use weir_filter::backend::Runner;
use weir_filter::ir::Program;
use weir_filter::lang::Language;
use weir_wire::LinkType;

/// Compiles a filter; resolves host names in it only if there are some.
pub(crate) fn compile(
    text: &str,
    language: Language,
    linktype: LinkType,
) -> Result<Program, CompileError> {
    let compiler = Compiler::for_linktype(linktype);
    let plain = Source {
        text: text.to_owned(),
        language,
        ..Source::default()
    };
    match compiler.compile(&plain) {
        Ok(program) => Ok(program),
        Err(_) => compiler.compile(&with_hosts(plain, linktype)),
    }
}

/// As [`compile`], without Python's global lock: a name server may be asked.
pub(crate) fn compile_detached(
    py: Python<'_>,
    text: &str,
    language: Language,
    linktype: u32,
) -> PyResult<Program> {
    let compiled = py.detach(|| compile(text, language, LinkType(linktype)));
    compiled.map_err(|wrong| error::filter(py, &wrong, text))
}

#[pyclass(frozen, module = "weir")]
pub(crate) struct Filter {
    text: String,
    language: Language,
    linktype: u32,
    runner: Runner,
}

#[pymethods]
impl Filter {
    #[new]
    #[pyo3(signature = (text, *, linktype = 1, language = "expr"))]
    fn new(py: Python<'_>, text: String, linktype: u32, language: &str) -> PyResult<Filter> {
        let language = convert::language(language)?;
        let program = compile_detached(py, &text, language, linktype)?;
        Ok(Filter {
            runner: Runner::new(program),
            text,
            language,
            linktype,
        })
    }

    #[getter]
    fn text(&self) -> &str {
        &self.text
    }

    #[getter]
    fn language(&self) -> &'static str {
        self.language.name()
    }

    #[getter]
    fn linktype(&self) -> u32 {
        self.linktype
    }

    #[pyo3(signature = (frame, length = None))]
    fn run(&self, frame: &Bound<'_, PyAny>, length: Option<u32>) -> PyResult<u32> {
        let bytes = convert::bytes(frame)?;
        let bytes = bytes.as_bytes();
        Ok(self
            .runner
            .run(bytes, convert::wire_len(frame, length, bytes)?))
    }

    #[pyo3(signature = (frame, length = None))]
    fn matches(&self, frame: &Bound<'_, PyAny>, length: Option<u32>) -> PyResult<bool> {
        Ok(self.run(frame, length)? > 0)
    }

    fn matches_batch(&self, py: Python<'_>, batch: &crate::batch::Batch) -> Vec<bool> {
        let lengths = batch.entries.iter().map(|entry| entry.length).enumerate();
        lengths
            .map(|(index, length)| self.runner.run(batch.bytes(py, index), length) > 0)
            .collect()
    }

    fn __repr__(&self) -> String {
        format!("weir.Filter({:?})", self.text)
    }
}
