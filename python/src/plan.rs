//! Several filters in one classifier.

use crate::{convert, error, filter};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_demux::{Binding, BindingId, Filter, Target, Verdict};

#[derive(Default)]
struct Names {
    of: HashMap<String, (BindingId, u32)>,
    /// By the tag of a binding.
    by_tag: HashMap<u32, String>,
    next: u32,
}

struct State {
    plan: weir_demux::Plan,
    names: Names,
    verdict: Verdict,
}

#[pyclass(frozen, module = "weir", subclass)]
pub(crate) struct Plan {
    state: Mutex<State>,
    linktype: u32,
}

impl Plan {
    fn state<'a>(&'a self, py: Python<'_>) -> MutexGuard<'a, State> {
        self.state
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A seed that no peer knows.
fn seed() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(0));
    half() << 64 | half()
}

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (*, linktype = 1))]
    fn new(linktype: u32) -> Plan {
        Plan {
            state: Mutex::new(State {
                plan: weir_demux::Plan::new(seed()),
                names: Names::default(),
                verdict: Verdict::new(),
            }),
            linktype,
        }
    }

    #[getter]
    fn linktype(&self) -> u32 {
        self.linktype
    }

    #[pyo3(signature = (name, filter, *, priority = 0, take = false, language = "expr"))]
    fn add(
        &self,
        py: Python<'_>,
        name: String,
        filter: &str,
        priority: u16,
        take: bool,
        language: &str,
    ) -> PyResult<()> {
        let language = convert::language(language)?;
        let program = filter::compile_detached(py, filter, language, self.linktype)?;
        let mut state = self.state(py);
        let State { plan, names, .. } = &mut *state;
        if names.of.contains_key(&name) {
            return Err(PyValueError::new_err(format!(
                "the plan has a filter `{name}` already: remove it first"
            )));
        }
        let tag = names.next;
        let bound = plan.bind(Binding {
            filter: Filter::new(program),
            priority,
            copy: !take,
            target: Target::Port(tag),
            tag,
        });
        let id = bound.map_err(|wrong| error::plain(py, &format!("{name}: {wrong}")))?;
        names.next += 1;
        names.by_tag.insert(tag, name.clone());
        names.of.insert(name, (id, tag));
        Ok(())
    }

    fn remove(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let mut state = self.state(py);
        let Some((id, tag)) = state.names.of.remove(name) else {
            return Err(PyKeyError::new_err(name.to_owned()));
        };
        state.names.by_tag.remove(&tag);
        let unbound = state.plan.unbind(id).map(drop);
        unbound.map_err(|wrong| error::plain(py, &format!("{name}: {wrong}")))
    }

    #[pyo3(signature = (frame, length = None))]
    fn matches(
        &self,
        py: Python<'_>,
        frame: &Bound<'_, PyAny>,
        length: Option<u32>,
    ) -> PyResult<Vec<String>> {
        let bytes = convert::bytes(frame)?;
        let bytes = bytes.as_bytes();
        let length = convert::wire_len(frame, length, bytes)?;
        let mut state = self.state(py);
        let State {
            plan,
            names,
            verdict,
        } = &mut *state;
        plan.run(bytes, length, verdict);
        let found = verdict.deliveries().iter();
        let named = found.filter_map(|delivery| names.by_tag.get(&delivery.tag).cloned());
        Ok(named.collect())
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.state(py).names.of.len()
    }

    fn __contains__(&self, py: Python<'_>, name: &str) -> bool {
        self.state(py).names.of.contains_key(name)
    }
}
