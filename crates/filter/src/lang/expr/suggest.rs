//! Suggestions: the valid word nearest to an invalid one.

/// Longest word with a suggestion, in bytes. The search takes quadratic time, and a
/// match of longer words is accidental.
const WORD_MAX: usize = 40;

/// The candidate with the fewest edits (insert, delete, replace, swap two neighbours)
/// from `word`; `None` if more than a third of its letters would change.
pub(in crate::lang) fn nearest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<String> {
    let bare = word.strip_prefix('\\');
    let word = bare.unwrap_or(word).as_bytes();
    if word.is_empty() || word.len() > WORD_MAX {
        return None;
    }
    let allowed = (word.len() + 1) / 3;
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let bytes = candidate.as_bytes();
        let far = bytes.len() > WORD_MAX || bytes.len().abs_diff(word.len()) > allowed;
        if far || (bytes == word && bare.is_none()) {
            continue;
        }
        let edits = distance(word, bytes);
        if edits <= allowed && best.is_none_or(|(fewest, _)| edits < fewest) {
            best = Some((edits, candidate));
        }
    }
    best.map(|(_, candidate)| candidate.to_owned())
}

/// The optimal string alignment distance; case is ignored, except in swaps.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut rows = [[0_usize; WORD_MAX + 1]; 3];
    for (column, cell) in rows[0].iter_mut().enumerate() {
        *cell = column;
    }
    for i in 1..=a.len() {
        let (here, above, above2) = (i % 3, (i + 2) % 3, (i + 1) % 3);
        rows[here][0] = i;
        for j in 1..=b.len() {
            let same = a[i - 1].eq_ignore_ascii_case(&b[j - 1]);
            let replaced = rows[above][j - 1] + usize::from(!same);
            let mut least = replaced.min(rows[above][j] + 1).min(rows[here][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[above2][j - 2] + 1);
            }
            rows[here][j] = least;
        }
    }
    rows[a.len() % 3][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_and_far_ones_are_not() {
        let words = ["tcp", "udp", "port", "portrange", "icmp6-echo"];
        assert_eq!(nearest("prot", words).as_deref(), Some("port"));
        assert_eq!(nearest("TCP", words).as_deref(), Some("tcp"));
        assert_eq!(nearest("icmp6echo", words).as_deref(), Some("icmp6-echo"));
        assert_eq!(nearest("zebra", words), None);
    }
}
