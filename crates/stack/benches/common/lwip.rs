//! lwIP beside us: a program of its own, in `lwip.c`, built against the system's
//! library when it is there.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SOURCE: &str = include_str!("lwip.c");

/// The program, which ends with this.
pub(crate) struct Lwip {
    process: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Lwip {
    /// Builds and starts it.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) fn start() -> Result<Lwip, String> {
        let name = format!("weir-lwip-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let started = Lwip::start_in(folder.clone());
        if started.is_err() {
            let _ = std::fs::remove_dir_all(&folder);
        }
        started
    }

    fn start_in(folder: PathBuf) -> Result<Lwip, String> {
        let text = |error: std::io::Error| error.to_string();
        std::fs::create_dir_all(&folder).map_err(text)?;
        let (source, program) = (folder.join("lwip.c"), folder.join("lwip"));
        std::fs::write(&source, SOURCE).map_err(text)?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O3", "-I/usr/include/lwip", "-o"]);
        compiler.arg(&program).arg(&source).arg("-llwip");
        let built = compiler.output().map_err(|error| format!("cc: {error}"))?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr);
            let first = said.lines().find(|line| line.contains("error"));
            let first = first.unwrap_or("cc failed");
            return Err(format!("{first} (apt-get install gcc liblwip-dev)"));
        }
        let mut command = Command::new(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(text)?;
        let say = process.stdin.take().ok_or("no input")?;
        let hear = process.stdout.take().ok_or("no output")?;
        Ok(Lwip {
            process,
            say,
            hear: BufReader::new(hear),
            folder,
        })
    }

    /// Seconds that it takes for this many of `what`: requests, connections or bytes.
    pub(crate) fn run(&mut self, what: &str, count: usize) -> f64 {
        writeln!(self.say, "{what} {count}").expect("it listens");
        let mut line = String::new();
        self.hear.read_line(&mut line).expect("it answers");
        line.trim().parse().expect("it says how long it took")
    }
}

impl Drop for Lwip {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
