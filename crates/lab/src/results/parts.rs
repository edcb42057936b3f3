//! The parts of a bench that its command line names.

/// Names of parts: those arguments that are no options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parts(Vec<String>);

impl Parts {
    /// Of this process's arguments.
    pub fn of_arguments() -> Parts {
        Parts::of(std::env::args().skip(1))
    }

    fn of(arguments: impl Iterator<Item = String>) -> Parts {
        Parts(arguments.filter(|word| !word.starts_with('-')).collect())
    }

    /// Whether a part is to run: it is named, or no part is.
    pub fn wants(&self, part: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| name == part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_parts_run_and_all_without_a_name() {
        let parts = |words: &[&str]| Parts::of(words.iter().map(|&word| word.to_owned()));
        let named = parts(&["--bench", "stage"]);
        assert!(named.wants("stage") && !named.wants("tables"));
        assert!(parts(&["--bench"]).wants("tables"));
    }
}
