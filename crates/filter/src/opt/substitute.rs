//! Values with some of their parts replaced.

use super::graph::{Graph, HAS_PARAM, HAS_TEST};
use crate::ir::{Op, Operand, Value};
use std::collections::HashMap;

/// What to put in place of which value, and the results so far.
#[derive(Debug)]
pub(crate) struct Substitution {
    results: HashMap<Value, Option<Operand>>,
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

    /// Also puts `operand` in place of block parameter `param`, which no value
    /// has contained so far.
    pub(crate) fn add(&mut self, param: Value, operand: Operand) {
        self.results.insert(param, Some(operand));
    }

    /// Puts an outcome in place of a test.
    pub(crate) fn of_test(test: Value, outcome: u32) -> Substitution {
        Substitution {
            results: HashMap::from([(test, Some(Operand::Imm(outcome)))]),
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
