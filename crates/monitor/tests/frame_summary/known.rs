//! Frames with their lines: the text files in `frames/`.
//!
//! ```text
//! # what the frame is
//! its bytes in hexadecimal
//! = its line
//! ```
//!
//! `WEIR_BLESS=1` writes the lines anew; read the difference before committing it.

use std::fs;
use std::path::{Path, PathBuf};
use weir_monitor::frame_summary::line;
use weir_wire::LinkType;

/// A frame of Ethernet.
pub(super) struct Known {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    line: String,
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frame_summary/frames");
    let entries = fs::read_dir(folder).expect("the folder of frames");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "txt"))
        .collect();
    files.sort();
    files
}

fn read(path: &Path) -> Vec<Known> {
    let text = fs::read_to_string(path).expect("a file of frames");
    let mut frames: Vec<Known> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            frames.push(Known {
                name: name.to_owned(),
                bytes: Vec::new(),
                line: String::new(),
            });
            continue;
        }
        let frame = frames.last_mut().expect("a name before the bytes");
        match line.strip_prefix("= ") {
            Some(line) => frame.line = line.to_owned(),
            None => frame.bytes.extend(line.as_bytes().chunks(2).map(|digits| {
                let digits = std::str::from_utf8(digits).expect("ASCII");
                u8::from_str_radix(digits, 16).expect("hexadecimal digits")
            })),
        }
    }
    frames
}

/// The frames of all files.
pub(super) fn all() -> Vec<Known> {
    files().iter().flat_map(|path| read(path)).collect()
}

#[test]
fn known_frames_have_their_lines() {
    let bless = std::env::var("WEIR_BLESS").is_ok();
    let mut wrong = Vec::new();
    let mut count = 0;
    for path in files() {
        let mut text = String::new();
        for frame in read(&path) {
            count += 1;
            let line = line(&frame.bytes, frame.bytes.len(), LinkType::EN10MB);
            text += &format!("# {}\n", frame.name);
            for bytes in frame.bytes.chunks(48) {
                let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
                text += &(digits.collect::<String>() + "\n");
            }
            text += &format!("= {line}\n\n");
            if line != frame.line {
                let Known {
                    name,
                    line: expected,
                    ..
                } = frame;
                wrong.push(format!("{name}\n  expected {expected}\n  found    {line}"));
            }
        }
        if bless {
            fs::write(&path, text.trim_end().to_owned() + "\n").expect("the file is writable");
        }
    }
    assert!(count > 400, "{count}");
    assert!(bless || wrong.is_empty(), "{}", wrong.join("\n"));
}
