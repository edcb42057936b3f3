//! Enforces the invariants of `ARCHITECTURE.md`. Each check names its rule, so
//! that a failure says what to do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates that a workspace crate may depend on: the arrows of
/// `ARCHITECTURE.md`. Tests of any crate may use `lab`.
const ARROWS: [(&str, &[&str]); 27] = [
    ("wire", &[]),
    ("filter", &["wire"]),
    ("demux", &["wire", "filter"]),
    ("meter", &["wire", "filter"]),
    ("chain", &["wire", "filter", "demux", "esp"]),
    ("sched", &["wire"]),
    ("esp", &["wire", "filter", "demux"]),
    ("ledger", &["wire", "meter"]),
    ("monitor", &["wire"]),
    ("ring", &[]),
    ("link", &["wire", "filter", "demux", "meter", "ring"]),
    ("stack", &["wire", "ring"]),
    ("packetdrill", &["wire", "stack"]),
    (
        "experiments",
        &[
            "wire",
            "filter",
            "demux",
            "ring",
            "link",
            "stack",
            "lab",
            "vmtp",
            "pup",
            "protocols",
        ],
    ),
    ("broker", &["wire", "filter", "demux", "ring", "link"]),
    ("vmtp", &["wire"]),
    ("pup", &["wire"]),
    ("protocols", &["wire", "broker", "vmtp", "pup"]),
    ("tap", &["wire", "ring", "link"]),
    ("cport", &["broker"]),
    ("ctap", &["tap"]),
    ("socket", &["wire", "ring", "link", "stack", "broker"]),
    ("exec", &["socket", "stack", "wire"]),
    ("pcap", &["filter", "broker", "wire"]),
    ("lab", &["wire", "filter", "demux", "ring", "link"]),
    (
        "apps",
        &[
            "wire", "filter", "demux", "chain", "sched", "ring", "link", "stack", "tap",
        ],
    ),
    (
        "weir",
        &[
            "wire",
            "filter",
            "demux",
            "ring",
            "link",
            "stack",
            "broker",
            "tap",
            "socket",
            "exec",
            "pcap",
            "lab",
            "apps",
            "experiments",
            "meter",
            "chain",
            "esp",
            "ledger",
            "vmtp",
            "pup",
            "protocols",
            "monitor",
        ],
    ),
];

/// The only places where code may opt out of the compiler's safety checks.
const UNCHECKED_CODE_MAY_LIVE_IN: [&str; 17] = [
    "crates/filter/src/backend/native/",
    "crates/ring/",
    "crates/link/benches/plan_kernel/",
    "crates/link/src/bpf/",
    "crates/link/src/live/",
    "crates/link/src/net/",
    "crates/link/src/xdp/",
    "crates/lab/",
    "crates/broker/src/client/port.rs",
    "crates/broker/tests/live/hostile.rs",
    "crates/packetdrill/",
    "crates/cport/src/lib.rs",
    "crates/ctap/src/",
    "crates/exec/src/",
    "crates/pcap/src/",
    "crates/pcap/tests/",
    "crates/tap/src/trust.rs",
];

/// Code that takes time, randomness and I/O from its caller.
const PURE: [&str; 12] = [
    "crates/wire/src",
    "crates/filter/src",
    "crates/demux/src",
    "crates/meter/src",
    "crates/monitor/src",
    "crates/chain/src",
    "crates/sched/src",
    "crates/esp/src",
    "crates/stack/src",
    "crates/vmtp/src",
    "crates/pup/src",
    "crates/apps/src/router/engine",
];

/// Words that a pure crate must not contain, and the exceptions.
const IMPURE_WORDS: [&str; 17] = [
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os::fd",
    "std::os::unix",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "Instant::now",
    "SystemTime",
    "OwnedFd",
    "BorrowedFd",
    "RawFd",
    "tokio",
    "rustix",
    "weir_ring",
];

/// The native back end's executable memory is a mapping with a file descriptor;
/// the memory of the stack's tables is `ring`'s. There are no other exceptions.
const IMPURE_ALLOWED_IN: [&str; 2] = [
    "crates/filter/src/backend/native/",
    "crates/stack/src/pcb/chunk.rs",
];

/// Files that may start programs without the lab's test helpers: the helpers
/// themselves, code of the product, and code that no test runs.
const PROGRAMS_STARTED_IN: [&str; 17] = [
    "crates/exec/src/",
    "crates/lab/src/command.rs",
    "crates/lab/src/affinity.rs",
    "crates/lab/src/net/host.rs",
    "crates/lab/src/net/unprivileged.rs",
    "crates/lab/src/net/process.rs",
    "crates/lab/src/results/",
    "crates/lab/src/rfc2544/dut.rs",
    "crates/weir/src/cmd/supervisor.rs",
    "crates/weir/src/cmd/exec/mod.rs",
    "crates/weir/src/cmd/experiment/adapter/under_exec.rs",
    "crates/weir/src/cmd/experiment/all.rs",
    "crates/weir/src/monitor/dissect.rs",
    "crates/weir/src/monitor/views/process.rs",
    "crates/experiments/src/packet_filter/receive.rs",
    "/benches/",
    "/examples/",
];

/// Largest length of a source file, except tables and tests.
const FILE_LINES_MAX: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every tracked-looking Rust file below `folder`, as (path from the root, text).
fn rust_files(folder: &str) -> Vec<(String, String)> {
    let root = root();
    let mut pending = vec![root.join(folder)];
    let mut files = Vec::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name == "target") {
                continue;
            }
            let entries = fs::read_dir(&path).expect("a folder of the checkout can be read");
            pending.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(&root).expect("below the root");
            let text = fs::read_to_string(&path).expect("a source file is text");
            files.push((name.to_string_lossy().into_owned(), text));
        }
    }
    files.sort();
    assert!(!files.is_empty(), "no Rust file below {folder}");
    files
}

/// Lines of code, without comments.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate();
    lines.map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
}

#[test]
fn crates_depend_only_along_the_arrows() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    let crates = fs::read_dir(root().join("crates")).expect("crates/ can be read");
    for entry in crates {
        let folder = entry.expect("crates/ can be listed").path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let may_use = allowed.get(name.as_str()).unwrap_or_else(|| {
            panic!("crate `{name}` has no row in ARROWS: add it here and in ARCHITECTURE.md")
        });
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("has a manifest");
        let manifest: toml::Table = manifest.parse().expect("the manifest is TOML");
        for other in used(&manifest) {
            assert!(
                may_use.contains(&other.as_str()),
                "`{name}` depends on `{other}`, against the arrows of ARCHITECTURE.md"
            );
        }
    }
}

/// The workspace crates in a manifest's dependencies, without dev-dependencies,
/// under any name and for any target.
fn used(manifest: &toml::Table) -> Vec<String> {
    dependencies(manifest)
        .filter_map(|(package, _)| package.strip_prefix("weir-").map(str::to_owned))
        .collect()
}

/// The packages that a manifest depends on to be built, whatever they are
/// renamed to and for any target, and what the manifest says of each.
fn dependencies(manifest: &toml::Table) -> impl Iterator<Item = (&str, &toml::Value)> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets.into_iter().flat_map(|table| table.values());
    let tables = targets.filter_map(toml::Value::as_table).chain([manifest]);
    let kinds = ["dependencies", "build-dependencies"];
    let lists = tables.flat_map(move |table| kinds.map(|kind| table.get(kind)));
    let lists = lists.flatten().filter_map(toml::Value::as_table).flatten();
    lists.map(|(key, value)| {
        let renamed = value.get("package").and_then(toml::Value::as_str);
        (renamed.unwrap_or(key), value)
    })
}

/// `python/` is a workspace of its own, whose lock file no build here updates; the
/// check builds it last. That of `fuzz/` is not in the tree.
#[test]
fn the_lock_file_of_python_has_what_the_crates_depend_on() {
    let text = fs::read_to_string(root().join("python/Cargo.lock")).expect("has a lock");
    let lock: toml::Table = text.parse().expect("a lock file is TOML");
    let mut seen = 0;
    for package in lock["package"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(short) = name.strip_prefix("weir-") else {
            continue;
        };
        let manifest = root().join("crates").join(short).join("Cargo.toml");
        let Ok(manifest) = fs::read_to_string(manifest) else {
            continue; // the package of `python/` itself
        };
        let manifest: toml::Table = manifest.parse().expect("the manifest is TOML");
        let locked = package.get("dependencies").and_then(toml::Value::as_array);
        let locked = locked.into_iter().flatten().filter_map(toml::Value::as_str);
        // Where a lock has two versions of a package, its name is followed by one.
        let locked: Vec<&str> = locked.filter_map(|one| one.split(' ').next()).collect();
        for (dependency, described) in dependencies(&manifest) {
            let optional = described.get("optional").and_then(toml::Value::as_bool);
            assert!(
                optional == Some(true) || locked.contains(&dependency),
                "python/Cargo.lock: {name} lacks {dependency}; \
                 run `cargo metadata --manifest-path python/Cargo.toml`"
            );
        }
        seen += 1;
    }
    assert!(seen > 5, "the lock file names {seen} of the crates");
}

#[test]
fn dependencies_are_found_wherever_they_are() {
    let manifest = r#"
        [dependencies]
        weir-wire.workspace = true
        renamed = { package = "weir-link", path = "x" }
        libc = "1"
        [build-dependencies]
        weir-lab.workspace = true
        [target.'cfg(unix)'.dependencies]
        weir-broker.workspace = true
        [dev-dependencies]
        weir-stack.workspace = true
    "#;
    let mut found = used(&manifest.parse().expect("TOML"));
    found.sort();
    assert_eq!(found, ["broker", "lab", "link", "wire"]);
}

#[test]
fn the_binary_carries_no_oracles() {
    let text = fs::read_to_string(root().join("Cargo.toml")).expect("has a manifest");
    let workspace: toml::Table = text.parse().expect("the manifest is TOML");
    let lab = &workspace["workspace"]["dependencies"]["weir-lab"];
    assert_eq!(
        lab.get("default-features").and_then(toml::Value::as_bool),
        Some(false),
        "the workspace names `weir-lab` without its default features"
    );
    for entry in fs::read_dir(root().join("crates")).expect("crates/ can be read") {
        let path = entry.expect("can be listed").path().join("Cargo.toml");
        let text = fs::read_to_string(&path).expect("has a manifest");
        let manifest: toml::Table = text.parse().expect("the manifest is TOML");
        let dependency = manifest.get("dependencies").and_then(|d| d.get("weir-lab"));
        assert!(
            dependency.and_then(|d| d.get("features")).is_none(),
            "{}: `weir-lab` with features: only tests have the oracles",
            path.display()
        );
    }
}

#[test]
fn unchecked_code_lives_only_where_the_architecture_allows() {
    // Spelt in two halves so that this file does not match.
    let keyword = concat!("un", "safe");
    for (name, text) in rust_files("crates") {
        if UNCHECKED_CODE_MAY_LIVE_IN
            .iter()
            .any(|place| name.starts_with(place))
        {
            continue;
        }
        for (number, line) in code_lines(&text) {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            assert!(
                !words.any(|word| word == keyword),
                "{name}:{number}: `{keyword}` belongs only in {UNCHECKED_CODE_MAY_LIVE_IN:?}"
            );
        }
    }
}

#[test]
fn every_unchecked_block_says_why_it_is_sound() {
    let block = concat!("un", "safe {");
    for (name, text) in rust_files("crates") {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !code.contains(block) {
                continue;
            }
            // The reason may precede a statement of a few lines, but not
            // another block.
            let above = lines[index.saturating_sub(12)..index].iter().rev();
            let near = above.take_while(|line| !line.contains(block) && **line != "}");
            let mut near = near.chain([line]);
            assert!(
                near.any(|line| line.contains("SAFETY")),
                "{name}:{}: no `// SAFETY:` reason above",
                index + 1
            );
        }
    }
}

/// By `testenv::program`, which skips a test if the program is missing, or by
/// `Command::built` and `Command::itself`; all waits have a limit.
#[test]
fn tests_start_programs_by_one_helper() {
    // Spelt in halves so that this file does not match.
    let spellings = [
        concat!("process::", "Command"),
        concat!("posix_", "spawn"),
        concat!("libc::", "exec"),
    ];
    for (name, text) in rust_files("crates") {
        if PROGRAMS_STARTED_IN.iter().any(|place| name.contains(place)) {
            continue;
        }
        // Also imports of several names from one module.
        let code: String = code_lines(&text)
            .flat_map(|(_, line)| [line.trim(), " "])
            .collect();
        let imports = code.split(concat!("process::", "{")).skip(1);
        let mut imports = imports.filter_map(|rest| rest.split('}').next());
        let imported = imports.any(|names| names.split([',', ' ']).any(|one| one == "Command"));
        let spelt = spellings.iter().any(|spelling| {
            let mut places = code.match_indices(spelling);
            // `CommandExt` is another name.
            places.any(|(at, found)| !code[at + found.len()..].starts_with(char::is_alphanumeric))
        });
        assert!(
            !imported && !spelt,
            "{name}: a program is started past `weir_lab::testenv::program` and `weir_lab::command`"
        );
    }
}

#[test]
fn tests_know_one_way_out_of_the_checkout() {
    let outside = concat!("shared/", "captures");
    for (name, text) in rust_files("crates") {
        assert!(
            name == "crates/lab/src/testenv.rs" || !text.contains(outside),
            "{name}: captures beside the checkout are `weir_lab::testenv::captures`'s"
        );
    }
}

#[test]
fn pure_crates_name_no_fd_clock_thread_or_runtime() {
    for folder in PURE {
        for (name, text) in rust_files(folder) {
            if IMPURE_ALLOWED_IN.iter().any(|at| name.starts_with(at)) {
                continue;
            }
            for (number, line) in code_lines(&text) {
                for word in IMPURE_WORDS {
                    assert!(
                        !line.contains(word),
                        "{name}:{number}: `{word}` in a crate that does no I/O and has no clock"
                    );
                }
            }
        }
    }
}

#[test]
fn only_link_loads_programs() {
    for (name, text) in rust_files("crates") {
        // A test of the broker tries in vain.
        if name.starts_with("crates/link/") || name.contains("/tests/") {
            continue;
        }
        for (number, line) in code_lines(&text) {
            assert!(
                !line.contains("SYS_bpf") && !line.contains("BPF_PROG_LOAD"),
                "{name}:{number}: only `link` talks to bpf(2)"
            );
        }
    }
}

#[test]
fn no_crate_links_to_libpcap() {
    let text = fs::read_to_string(root().join("Cargo.lock")).expect("has a lock file");
    let lock: toml::Table = text.parse().expect("the lock file is TOML");
    for package in lock["package"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let ours = ["weir-pcap", "pcap-file"];
        assert!(
            ours.contains(&name) || !name.contains("pcap"),
            "{name}: libpcap is opened when a program or a test asks for it"
        );
    }
    for (name, text) in rust_files("crates") {
        for (number, line) in code_lines(&text) {
            let linked = [concat!("link(", "name"), concat!("rustc-link-", "lib")];
            assert!(
                !linked.iter().any(|word| line.contains(word)),
                "{name}:{number}: no library is linked to but the system's C library"
            );
        }
    }
}

#[test]
fn source_files_stay_readable() {
    for (name, text) in rust_files("crates") {
        let is_test = name.contains("/tests/") || name.contains("/benches/");
        let lines = text.lines().count();
        assert!(
            is_test || lines <= FILE_LINES_MAX,
            "{name} has {lines} lines, more than {FILE_LINES_MAX}: split it by role"
        );
    }
}

/// Words and phrases that hide the subject of a sentence, and what to write instead:
/// `docs/contributing/prose.md`.
const HIDDEN_SUBJECTS: [(&str, &str); 17] = [
    (
        "nobody",
        "no process, no user, no host; `user nobody` for the account",
    ),
    ("somebody", "another process, a user, a host"),
    ("anybody", "any process, any user, any host"),
    ("everybody", "all processes, all users, all hosts"),
    ("someone", "another process, a user, a host"),
    ("no one", "no process, no user, no host"),
    ("whoever", "the process that, the user that, any host that"),
    ("told", "reported, announced, notified, given"),
    ("tell", "report, announce, notify, distinguish"),
    ("tells", "reports, announces, notifies, distinguishes"),
    ("telling", "reporting, announcing, distinguishing"),
    ("for who", "for the application, for a peer"),
    ("and who", "name the subject"),
    ("what came", "received frames, arrived bytes"),
    ("what comes", "received frames, arriving bytes"),
    ("so many", "this many, that many, a number of"),
    ("for want of", "for lack of"),
];

/// The words of a text, in lower case and without quotations, each between single spaces.
fn words(text: &str) -> String {
    let mut plain = String::from(" ");
    for (number, part) in text.split(['`', '"']).enumerate() {
        if number % 2 == 0 {
            let words = part.split(|c: char| !c.is_alphanumeric() && c != '\'');
            let words = words.filter(|word| !word.is_empty());
            plain.extend(words.flat_map(|word| [word, " "]));
        } else {
            plain.push_str("\u{2026} ");
        }
    }
    plain.to_lowercase()
}

/// Comments and pages name their subjects. The changes of the past are as they were written, and
/// the page on prose quotes what it forbids.
#[test]
fn comments_and_pages_name_their_subjects() {
    let mut texts = Vec::new();
    for (name, text) in ["crates", "examples", "fuzz"]
        .into_iter()
        .flat_map(rust_files)
    {
        for (number, line) in text.lines().enumerate() {
            if let Some((_, comment)) = line.split_once("//") {
                texts.push((format!("{name}:{}", number + 1), comment.to_owned()));
            }
        }
    }
    let root = root();
    let mut pages = pages_in(&root.join("docs"));
    pages.retain(|page| !page.ends_with("contributing/prose.md"));
    pages.extend(["README.md", "ARCHITECTURE.md"].map(|page| root.join(page)));
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page is text");
        for (number, line) in text.lines().enumerate() {
            texts.push((
                format!("{}:{}", page.display(), number + 1),
                line.to_owned(),
            ));
        }
    }
    let mut found = Vec::new();
    for (place, text) in texts {
        let words = words(&text).replace(" user nobody ", " ");
        for (word, instead) in HIDDEN_SUBJECTS {
            if words.contains(&format!(" {word} ")) {
                found.push(format!("{place}: \"{word}\": write {instead}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn hidden_subjects_are_found_outside_of_quotations() {
    let found = |text: &str| words(text).contains(" told ");
    assert!(found("the peer is told, at once") && found("Told."));
    assert!(!found("`told` and \"told\"") && !found("untold"));
}

#[test]
fn nothing_is_left_for_later() {
    let stubs = [concat!("todo", "!("), concat!("unimplemented", "!(")];
    for folder in ["crates", "fuzz/fuzz_targets"] {
        for (file, text) in rust_files(folder) {
            for (at, line) in text.lines().enumerate() {
                let stub = stubs.iter().find(|stub| line.contains(**stub));
                assert!(stub.is_none(), "{file}:{}: a stub", at + 1);
            }
        }
    }
}

#[test]
fn every_crate_takes_the_workspace_lints_and_version() {
    for entry in fs::read_dir(root().join("crates")).expect("crates/ can be read") {
        let path = entry
            .expect("crates/ can be listed")
            .path()
            .join("Cargo.toml");
        let text = fs::read_to_string(&path).expect("has a manifest");
        let manifest: toml::Table = text.parse().expect("the manifest is TOML");
        let inherits = |table: &str, key: &str| {
            let value = manifest.get(table).and_then(|table| table.get(key));
            let value = value.and_then(|value| value.get("workspace").or(Some(value)));
            value.and_then(toml::Value::as_bool) == Some(true)
        };
        assert!(
            inherits("lints", "workspace"),
            "{}: no workspace lints",
            path.display()
        );
        for key in ["version", "edition", "rust-version", "license"] {
            assert!(
                inherits("package", key),
                "{}: {key} is its own",
                path.display()
            );
        }
    }
}

#[test]
fn nothing_committed_names_one_machine() {
    let words = [
        concat!("/wo", "rk/"),
        concat!("/tmp/", "wt"),
        concat!("/ro", "ot/"),
        concat!("index.crates", ".io"),
    ];
    let root = root();
    let mut pending = vec![root.clone()];
    while let Some(path) = pending.pop() {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name == ".git" {
            continue; // a folder, or in a linked checkout a file
        }
        if path.is_dir() {
            if !matches!(
                name.as_str(),
                "target" | ".git" | "artifacts" | "corpus-work"
            ) {
                let entries = fs::read_dir(&path).expect("a folder of the checkout can be read");
                pending.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
            }
            continue;
        }
        if name == "Cargo.lock" {
            continue;
        }
        let Ok(text) = fs::read_to_string(&path) else {
            continue; // not text
        };
        for word in words {
            let at = text.lines().position(|line| line.contains(word));
            assert!(
                at.is_none(),
                "{}:{}: names `{word}`",
                path.display(),
                at.unwrap_or(0) + 1
            );
        }
    }
}

#[test]
fn every_fuzz_target_is_a_binary_of_its_own_and_documented() {
    let folder = root().join("fuzz");
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("fuzz/ has a manifest");
    let manifest: toml::Table = manifest.parse().expect("the manifest is TOML");
    let described =
        fs::read_to_string(root().join("docs/contributing/fuzzing.md")).expect("is described");
    let listed: Vec<&str> = manifest["bin"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|bin| bin.get("path")?.as_str())
        .collect();
    let targets = fs::read_dir(folder.join("fuzz_targets")).expect("can be listed");
    for target in targets {
        let name = target.expect("can be listed").file_name();
        let name = name.to_string_lossy();
        let path = format!("fuzz_targets/{name}");
        assert!(
            listed.contains(&path.as_str()),
            "fuzz/Cargo.toml has no [[bin]] for {path}"
        );
        let row = format!("| `{}` |", name.trim_end_matches(".rs"));
        assert!(
            described.contains(&row),
            "docs/contributing/fuzzing.md has no row for {name}"
        );
    }
}

/// The headings of a Markdown text as the anchors that links name.
fn anchors(text: &str) -> Vec<String> {
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    let mut in_code = false;
    let headings = text.lines().filter(|line| {
        in_code ^= line.starts_with("```");
        !in_code && line.starts_with('#')
    });
    headings.map(anchor).collect()
}

/// The targets of the links in a Markdown text, code blocks apart.
fn links(text: &str) -> Vec<String> {
    let mut in_code = false;
    let prose: String = text
        .lines()
        .filter(|line| {
            in_code ^= line.starts_with("```");
            !in_code
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let targets = prose.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn links_in_documents_lead_somewhere() {
    let root = root();
    let mut pending = vec![root.clone()];
    let mut checked = 0;
    while let Some(path) = pending.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if path == root || !(name.starts_with('.') || name == "target" || name == "artifacts") {
                let entries = fs::read_dir(&path).expect("a folder of the checkout can be read");
                pending.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
            }
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a document is text");
        for link in links(&text) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a file has a folder").join(file),
            };
            assert!(
                target.exists(),
                "{}: `{link}` leads nowhere",
                path.display()
            );
            if !anchor.is_empty() {
                let text = fs::read_to_string(&target).expect("an anchor is in a text");
                assert!(
                    anchors(&text).iter().any(|known| known == anchor),
                    "{}: `{link}` names no heading",
                    path.display()
                );
            }
            checked += 1;
        }
    }
    assert!(checked > 0, "no link was found: the check is broken");
}

/// The Markdown files in a folder, and in the folders in it.
fn pages_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of pages can be read");
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .flat_map(|path| {
            if path.is_dir() {
                pages_in(&path)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

#[test]
fn every_page_is_in_the_book_once() {
    let folder = root().join("docs");
    let summary = folder.join("SUMMARY.md");
    let text = fs::read_to_string(&summary).expect("the book has a summary");
    let entries: Vec<PathBuf> = links(&text).iter().map(|link| folder.join(link)).collect();
    assert!(entries.len() > 40, "{entries:?}");
    for entry in &entries {
        assert!(entry.exists(), "SUMMARY.md: {} is missing", entry.display());
        let times = entries.iter().filter(|other| *other == entry).count();
        assert_eq!(times, 1, "SUMMARY.md: {} is there twice", entry.display());
    }
    for page in pages_in(&folder) {
        assert!(
            page == summary || entries.contains(&page),
            "{} is not in SUMMARY.md",
            page.display()
        );
    }
}

/// The text of ARCHITECTURE.md, and a function that checks whether a path in it
/// exists: below the root, or below `crates/`.
fn architecture() -> (String, impl Fn(&Path) -> bool) {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page can be read");
    let exists = |path: &Path| {
        let places = [root().join(path), root().join("crates").join(path)];
        places.iter().any(|place| place.exists())
    };
    (page, exists)
}

#[test]
fn paths_of_the_architecture_exist() {
    let (page, exists) = architecture();
    let mut checked = 0;
    for (index, part) in page.split("```").enumerate() {
        if index % 2 == 0 {
            let quoted = part.split('`').skip(1).step_by(2);
            for path in quoted.filter(|text| text.contains('/')) {
                checked += 1;
                assert!(exists(path.as_ref()), "ARCHITECTURE.md: no `{path}`");
            }
            continue;
        }
        // In a drawing, a file name without a folder is in the folder of the
        // previous file.
        for line in part.lines() {
            let words = line.split([' ', ',']);
            let paths = words.filter(|word| word.ends_with(".rs") || word.ends_with('/'));
            let mut folder = PathBuf::new();
            for path in paths.map(Path::new) {
                let path = match path.components().count() {
                    1 => folder.join(path),
                    _ => path.to_owned(),
                };
                checked += 1;
                assert!(
                    exists(&path),
                    "ARCHITECTURE.md: no {} in: {line}",
                    path.display()
                );
                folder = path.parent().expect("is below a crate").to_owned();
            }
        }
    }
    assert!(checked > 200, "only {checked} paths were found");
}

#[test]
fn every_top_folder_has_its_line_in_the_architecture() {
    let (page, _) = architecture();
    let (_, table) = page.split_once("## Folders\n").expect("has the chapter");
    let (table, _) = table.split_once("\n## ").expect("has another behind it");
    let crates = fs::read_dir(root().join("crates")).expect("crates/ can be read");
    for krate in crates.map(|entry| entry.expect("crates/ can be listed")) {
        let name = krate.file_name().to_string_lossy().into_owned();
        let folders = fs::read_dir(krate.path().join("src")).expect("a crate has sources");
        for folder in folders.map(|entry| entry.expect("src/ can be listed")) {
            if !folder.path().is_dir() {
                continue;
            }
            let path = format!("`{name}/src/{}/`", folder.file_name().to_string_lossy());
            assert!(table.contains(&path), "ARCHITECTURE.md: no row for {path}");
        }
    }
}
