//! Patterns of interface names.

use std::fmt;

/// Largest length of a pattern in bytes; an interface's name has at most 15.
const LEN_MAX: usize = 64;

/// A pattern of interface names: `*` matches any characters, `?` one character.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Glob(String);

impl Glob {
    /// Parses a pattern; `None` if it is empty, too long, or cannot match an
    /// interface's name.
    pub fn new(pattern: &str) -> Option<Glob> {
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '[' | ']');
        let fits = (1..=LEN_MAX).contains(&pattern.len()) && !pattern.contains(odd);
        fits.then(|| Glob(pattern.to_owned()))
    }

    /// Whether a name matches the pattern.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut seen) = (0, 0);
        // The position after the last star, to retry from on a mismatch.
        let mut retry: Option<(usize, usize)> = None;
        while seen < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    retry = Some((at + 1, seen));
                    at += 1;
                }
                Some(byte) if *byte == b'?' || *byte == name[seen] => {
                    at += 1;
                    seen += 1;
                }
                _ => {
                    let Some((after_star, from)) = retry else {
                        return false;
                    };
                    retry = Some((after_star, from + 1));
                    (at, seen) = (after_star, from + 1);
                }
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }

    /// Whether the pattern has no wildcards.
    pub(super) fn is_literal(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    /// Whether every name matches.
    pub(super) fn is_any(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }

    /// Length of the shortest name that matches, in bytes.
    pub(super) fn len_min(&self) -> usize {
        self.0.bytes().filter(|byte| *byte != b'*').count()
    }

    /// Whether a name matches one of several patterns.
    pub fn any(globs: &[Glob], name: &str) -> bool {
        globs.iter().any(|glob| glob.matches(name))
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, fits) in [
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("eth*", "eth", true),
            ("eth*", "eth0.12", true),
            ("eth?", "eth", false),
            ("e?h?", "eth0", true),
            ("*", "", true),
            ("*", "lo", true),
            ("*0", "eth10", true),
            ("*0", "eth01", false),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXcXb", false),
            ("**", "x", true),
        ] {
            assert_eq!(
                Glob::new(pattern).unwrap().matches(name),
                fits,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn a_pattern_that_can_match_nothing_is_refused() {
        for pattern in ["", "a b", "a/b", "eth[0-3]", "a\n"] {
            assert_eq!(Glob::new(pattern), None, "{pattern}");
        }
        assert_eq!(Glob::new(&"x".repeat(65)), None);
    }
}
