//! File tests: each file in `filetests/` has a program, the passes to run, and the
//! expected output.
//!
//! ```text
//! ; run: optimise           (or one pass: split, thread, straighten, …)
//! filter { … }
//! ; expect
//! filter { … }
//! ```
//!
//! `WEIR_BLESS=1` writes the actual output to the files; read the difference before
//! committing it.

use std::fs;
use std::path::{Path, PathBuf};
use weir_filter::interp;
use weir_filter::ir::Program;
use weir_filter::opt::{Pass, optimise};
use weir_lab::program::frames;

const EXPECT: &str = "; expect\n";

#[test]
fn every_file_gives_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/opt");
    let files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(files.len() >= 5, "the file tests are there");
    let bless = std::env::var("WEIR_BLESS").is_ok();
    let failures: Vec<String> = files.iter().filter_map(|file| check(file, bless)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn check(file: &Path, bless: bool) -> Option<String> {
    let text = fs::read_to_string(file).unwrap();
    let (input, expected) = text.split_once(EXPECT).unwrap_or((&text, ""));
    let before: Program = match input.parse() {
        Ok(program) => program,
        Err(error) => return Some(format!("{}: {error}", file.display())),
    };
    let mut after = before.clone();
    let run = input.lines().find_map(|line| line.strip_prefix("; run: "));
    match run {
        Some("optimise") => optimise(&mut after),
        Some(name) => {
            let pass = Pass::ALL
                .into_iter()
                .find(|pass| format!("{pass:?}").to_lowercase() == name);
            pass.expect("a pass of that name").run(&mut after);
        }
        None => return Some(format!("{}: no `; run:` line", file.display())),
    }
    after.verify().unwrap();
    for frame in frames(1, 200) {
        assert_eq!(
            interp::run(&before, &frame.bytes, frame.wire_len),
            interp::run(&after, &frame.bytes, frame.wire_len),
            "{}: {frame:?}",
            file.display()
        );
    }
    let found = after.to_string();
    if found == expected {
        return None;
    }
    if bless {
        fs::write(file, format!("{input}{EXPECT}{found}")).unwrap();
        return None;
    }
    Some(format!(
        "{}:\nexpected {expected}\nfound {found}",
        file.display()
    ))
}
