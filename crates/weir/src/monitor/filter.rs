//! A pcap-filter(7) expression, compiled for each link type that comes.

use crate::filterset::compile::Compiler;
use std::collections::HashMap;
use weir_filter::backend::Runner;
use weir_filter::lang::Language;
use weir_wire::LinkType;

/// An expression and its programs.
#[derive(Default)]
pub(crate) struct Filter {
    text: String,
    /// `None` for a link type that the expression does not fit.
    runners: HashMap<LinkType, Option<Runner>>,
}

impl Filter {
    /// The filter of a text that [`check`](Self::check) has accepted.
    pub(crate) fn new(text: &str) -> Filter {
        Filter {
            text: text.to_owned(),
            runners: HashMap::new(),
        }
    }

    /// The message of an error, with the position, if the text is not an expression for frames of
    /// that link type.
    pub(crate) fn check(text: &str, linktype: LinkType) -> Result<(), String> {
        let compiled = Compiler::default().compile(Language::Expr, text.as_bytes(), linktype);
        compiled.map(drop)
    }

    /// The expression.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it accepts a frame; `false` for a link type that it does not fit.
    pub(crate) fn accepts(&mut self, bytes: &[u8], wire_len: u32, linktype: LinkType) -> bool {
        if self.text.is_empty() {
            return true;
        }
        let text = self.text.as_bytes();
        let runner = self.runners.entry(linktype).or_insert_with(|| {
            let compiled = Compiler::default().compile(Language::Expr, text, linktype);
            compiled.ok().map(|compiled| Runner::new(compiled.program))
        });
        runner
            .as_ref()
            .is_some_and(|runner| runner.run(bytes, wire_len) != 0)
    }
}
