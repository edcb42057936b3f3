//! Substitution of values inside expressions.

use super::graph::{Flow, Graph, HAS_PARAM, HAS_TEST, Node};
use crate::ir::{Cmp, Op, Operand, Value};
use std::collections::BTreeMap;

/// A map from values to operands, with a cache of results.
#[derive(Debug)]
pub(crate) struct Substitution {
    results: BTreeMap<Value, Option<Operand>>,
    /// Flags of which a value must have one to contain a replaced value.
    flags: u8,
}

impl Substitution {
    /// Replaces block parameters by arguments.
    pub(crate) fn of_params(pairs: impl Iterator<Item = (Value, Operand)>) -> Substitution {
        Substitution {
            results: pairs.map(|(param, arg)| (param, Some(arg))).collect(),
            flags: HAS_PARAM,
        }
    }

    /// Replaces tests by outcomes, which [`add`](Self::add) supplies.
    pub(crate) fn of_tests() -> Substitution {
        Substitution {
            results: BTreeMap::new(),
            flags: HAS_TEST,
        }
    }

    /// Adds the replacement of `value` by `operand`. No value to which the substitution
    /// was applied so far may contain `value`.
    pub(crate) fn add(&mut self, value: Value, operand: Operand) {
        self.results.insert(value, Some(operand));
    }

    /// Replaces one test by its outcome.
    pub(crate) fn of_test(test: Value, outcome: Operand) -> Substitution {
        Substitution {
            results: BTreeMap::from([(test, Some(outcome))]),
            flags: HAS_TEST,
        }
    }

    /// Applies the substitution to `operand`; `None` if the result rejects every frame.
    /// Iterative, since expressions may be deep.
    pub(crate) fn apply(&mut self, graph: &mut Graph, operand: Operand) -> Option<Operand> {
        let Operand::Val(value) = operand else {
            return Some(operand);
        };
        if !graph.has(value, self.flags) {
            return Some(operand);
        }
        let mut stack = vec![value];
        while let Some(&value) = stack.last() {
            if self.results.contains_key(&value) {
                stack.pop();
                continue;
            }
            let op = graph.op(value);
            let waiting = stack.len();
            stack.extend(
                op.operands()
                    .filter_map(Operand::value)
                    .filter(|&inner| graph.has(inner, self.flags))
                    .filter(|inner| !self.results.contains_key(inner)),
            );
            if stack.len() == waiting {
                let result = self.rebuild(graph, value, op);
                self.results.insert(value, result);
                stack.pop();
            }
        }
        self.results[&value]
    }

    /// Applies the substitution to all values of `node` and keeps its effects; `None` if
    /// the node now rejects every frame.
    pub(crate) fn apply_to(&mut self, graph: &mut Graph, node: &mut Node) -> Option<()> {
        let mut effects = std::mem::take(&mut node.effects);
        if let Some(subject) = node.flow.subject()
            && graph.has(subject, self.flags)
        {
            // The new subject may have fewer effects.
            graph.require_bound(node, subject);
            effects.extend(graph.effects_in(subject));
        }
        for effect in effects {
            if let Operand::Val(value) = self.apply(graph, effect.into())? {
                graph.require(node, value);
            }
        }
        match &mut node.flow {
            Flow::Return(verdict) => *verdict = self.apply(graph, *verdict)?,
            Flow::Jump(_) => {}
            Flow::Branch { cond, .. } => {
                let outcome = self.apply(graph, (*cond).into())?;
                if outcome != Operand::Val(*cond) {
                    replace_cond(graph, node, outcome);
                }
            }
        }
        for edge in node.flow.edges_mut() {
            for arg in &mut edge.args {
                *arg = self.apply(graph, *arg)?;
            }
        }
        Some(())
    }

    fn rebuild(&self, graph: &mut Graph, value: Value, op: Op) -> Option<Operand> {
        if op == Op::Param {
            return Some(Operand::Val(value));
        }
        let mut rejects = false;
        let result = graph.rebuilt(op, |operand| match operand {
            Operand::Val(inner) => match self.results.get(&inner) {
                Some(Some(replaced)) => *replaced,
                Some(None) => {
                    rejects = true;
                    operand
                }
                None => operand,
            },
            constant => constant,
        });
        result.filter(|_| !rejects)
    }
}

fn replace_cond(graph: &mut Graph, node: &mut Node, outcome: Operand) {
    let flow = std::mem::replace(&mut node.flow, Flow::REJECT);
    if let Flow::Branch {
        then, otherwise, ..
    } = flow
    {
        let cond = graph.cond(Cmp::Ne, outcome, Operand::Imm(0));
        node.flow = cond.branch(then, otherwise);
    }
}
