//! Configurations of the network functions, also damaged: taken, or refused with a message.

#[path = "common/configs.rs"]
mod configs;

use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;

/// Seeds of the fuzz target `box`: the examples, and a file of SAs.
fn texts() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/box");
    let folder = std::fs::read_dir(folder).expect("the folder of seeds");
    let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 4, "{paths:?}");
    let read = |path| std::fs::read_to_string(path).unwrap();
    paths.into_iter().map(read).collect()
}

/// A text with lines left out, repeated and of other texts, and with other characters.
fn damaged(rng: &mut Rng, texts: &[String]) -> String {
    let mut lines: Vec<&str> = rng.choose(texts).lines().collect();
    for _ in 0..rng.below(4) {
        let at = rng.below(lines.len().max(1));
        match rng.below(3) {
            0 if at < lines.len() => drop(lines.remove(at)),
            1 if at < lines.len() => lines.insert(at, lines[at]),
            _ => {
                let other: Vec<&str> = rng.choose(texts).lines().collect();
                lines.insert(at, other[rng.below(other.len())]);
            }
        }
    }
    let mut text: Vec<char> = lines.join("\n").chars().collect();
    for _ in 0..rng.below(4) {
        let at = rng.below(text.len().max(1));
        if let Some(old) = text.get_mut(at) {
            *old = *rng.choose(&[
                '0', '9', '-', '"', '\'', '[', ']', '=', '\n', '.', 'k', '/', 'ä', '\0',
            ]);
        }
    }
    text.into_iter().collect()
}

#[test]
fn any_text_is_taken_or_refused() {
    let texts = texts();
    texts.iter().for_each(|text| configs::run(text));
    for seed in seeds(600) {
        let mut rng = Rng::new(seed);
        configs::run(&damaged(&mut rng, &texts));
    }
}
