//! Programs in C, built by the system's compiler with the libraries of this checkout.

use crate::testenv;
use std::fs;
use std::path::{Path, PathBuf};

/// The checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder in which Cargo has put a library of the package under test: the test's own, or its
/// parent.
///
/// # Panics
/// Without the library.
pub fn folder_of(library: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let mut folders = test.ancestors().skip(1).take(2);
    let found = folders.find(|folder| folder.join(library).exists());
    let found = found.unwrap_or_else(|| panic!("{library} is not beside {}", test.display()));
    found.to_owned()
}

/// Compiles a source of the checkout into a folder, with these arguments for libraries; `None` (after
/// `skip`) without a compiler.
///
/// # Panics
/// If the compiler warns.
pub fn compiled(into: &Path, source: &str, libraries: &[&str]) -> Option<PathBuf> {
    let source = root().join(source);
    let program = into.join(source.file_stem().expect("a source has a name"));
    let mut cc = testenv::program("cc")?;
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg("-I")
        .arg(root().join("include"))
        .arg(source)
        .args(libraries)
        .args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"])
        .arg(&program);
    let output = cc.output().expect("the compiler starts");
    assert!(output.status.success(), "{output:?}");
    Some(program)
}

fn name(text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    text[..end.unwrap_or(text.len())].to_owned()
}

/// The functions that a library's source defines for C, in order of their names.
pub fn defined(source: &str) -> Vec<String> {
    let mut names: Vec<String> = source.split("extern \"C\" fn ").skip(1).map(name).collect();
    names.sort();
    names
}

/// The functions that a header of the checkout declares, in order of their names.
///
/// # Panics
/// Without the header.
pub fn declared(header: &str) -> Vec<String> {
    let header = fs::read_to_string(root().join("include").join(header)).expect("the header");
    // A declaration starts a line and has a parenthesis behind the name.
    let types = [
        "int ",
        "void ",
        "ssize_t ",
        "struct weir",
        "const char",
        "uint8_t ",
    ];
    let declarations = header
        .lines()
        .filter(|line| types.iter().any(|word| line.starts_with(word)) && line.contains('('));
    let mut names: Vec<String> = declarations
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .map(name)
        .collect();
    names.sort();
    names
}
