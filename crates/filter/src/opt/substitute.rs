//! Values with some of their parts replaced.

use super::graph::{Flow, Graph, HAS_PARAM, HAS_TEST, Node};
use crate::ir::{Cmp, Op, Operand, Value};
use std::collections::BTreeMap;

/// What to put in place of which value, and the results so far.
#[derive(Debug)]
pub(crate) struct Substitution {
    results: BTreeMap<Value, Option<Operand>>,
    /// Only values with one of these flags can contain what is replaced.
    flags: u8,
}

impl Substitution {
    /// Puts `args` in place of block parameters `params`.
    pub(crate) fn of_params(pairs: impl Iterator<Item = (Value, Operand)>) -> Substitution {
        Substitution {
            results: pairs.map(|(param, arg)| (param, Some(arg))).collect(),
            flags: HAS_PARAM,
        }
    }

    /// Puts outcomes in place of tests that are yet to be added.
    pub(crate) fn of_tests() -> Substitution {
        Substitution {
            results: BTreeMap::new(),
            flags: HAS_TEST,
        }
    }

    /// Also puts `operand` in place of `value`, which nothing has contained
    /// that was looked at so far.
    pub(crate) fn add(&mut self, value: Value, operand: Operand) {
        self.results.insert(value, Some(operand));
    }

    /// Puts its outcome in place of a test.
    pub(crate) fn of_test(test: Value, outcome: Operand) -> Substitution {
        Substitution {
            results: BTreeMap::from([(test, Some(outcome))]),
            flags: HAS_TEST,
        }
    }

    /// `operand` with everything replaced; `None` if the result rejects every
    /// frame. Iterative: values may be deep.
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

    /// Replaces in all that `node` computes, and keeps what it may reject;
    /// `None` if it comes to reject every frame.
    pub(crate) fn apply_to(&mut self, graph: &mut Graph, node: &mut Node) -> Option<()> {
        let mut effects = std::mem::take(&mut node.effects);
        if let Some(subject) = node.flow.subject()
            && graph.has(subject, self.flags)
        {
            // The new subject may compute less.
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
