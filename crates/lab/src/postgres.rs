//! A PostgreSQL server of a test's own, on a socket in a folder that goes with it.

use crate::certificates::Certificate;
use crate::command::Command;
use crate::net::Process;
use crate::testenv;
use rustix::process::{Signal, geteuid};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Where Debian has the server's programs, by version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The user `nobody`: the server refuses to run as root.
const NOBODY: u32 = 65534;
/// The port of the server unless another is given.
const PORT: &str = "5432";
/// How long the server may take to start or to stop.
const LIMIT: Duration = Duration::from_secs(60);

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    programs: PathBuf,
    process: Option<Process>,
    /// Further options.
    options: Vec<String>,
}

/// The folder of the server's programs: that of `PATH`, links followed, else Debian's with the highest
/// version.
fn programs() -> Option<PathBuf> {
    let found = testenv::find("postgres").and_then(|found| fs::canonicalize(found).ok());
    if let Some(found) = found {
        return found.parent().map(Path::to_owned);
    }
    let versions = fs::read_dir(DEBIAN).ok()?;
    let mut folders: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            let folder = entry.path().join("bin");
            folder
                .join("postgres")
                .exists()
                .then_some((version, folder))
        })
        .collect();
    folders.sort();
    folders.pop().map(|(_, folder)| folder)
}

impl Postgres {
    /// Starts a server with an empty database cluster; `None` (after [`testenv::skip`]) if the system
    /// has none, or if it refuses this user.
    ///
    /// # Panics
    /// Under CI without it, and if it does not start.
    pub fn start() -> Option<Postgres> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let Some(programs) = programs() else {
            testenv::skip("no PostgreSQL server (apt-get install postgresql)");
            return None;
        };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Short: the path of a socket has at most 107 bytes.
        let name = format!("weir-pg-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder for the server");
        let mut server = Postgres {
            folder,
            programs,
            process: None,
            options: vec!["listen_addresses=".to_owned()],
        };
        if geteuid().is_root() {
            chown(&server.folder, Some(NOBODY), Some(NOBODY)).expect("root may give files away");
        }
        let made = server
            .program("initdb")
            .args([
                "--auth=trust",
                "--username=weir",
                "--no-sync",
                "--encoding=UTF8",
            ])
            .args(["--locale=C", "-D"])
            .env("LC_ALL", "C")
            .arg(server.folder.join("data"))
            .output()
            .expect("initdb starts");
        if String::from_utf8_lossy(&made.stderr).contains("user does not exist") {
            testenv::skip("PostgreSQL refuses to run for a user without an account");
            return None;
        }
        assert!(made.status.success(), "{made:?}");
        server.run();
        Some(server)
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::built(self.programs.join(name));
        command.current_dir(&self.folder);
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Starts the server again after [`kill`](Self::kill), and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    pub fn run(&mut self) {
        let began = Instant::now();
        loop {
            let log = File::options()
                .append(true)
                .create(true)
                .open(self.folder.join("log"));
            let log = log.expect("a log for the server");
            let mut server = self.program("postgres");
            server
                .args(self.options.iter().flat_map(|option| ["-c", option]))
                .args(["-c", "fsync=off", "-k"])
                .arg(&self.folder)
                .arg("-D")
                .arg(self.folder.join("data"))
                .stdout(log.try_clone().expect("a second descriptor"))
                .stderr(log);
            let mut process = server.spawn().expect("the server starts");
            while began.elapsed() < LIMIT {
                if self.answers() {
                    self.process = Some(process);
                    return;
                }
                // After a kill the memory of the former server's processes may be in use still.
                if process
                    .wait(Duration::from_millis(50))
                    .is_ok_and(|it| it.is_some())
                {
                    break;
                }
            }
            let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(began.elapsed() < LIMIT, "no answer: {}", log());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Starts the server again with TLS, on this port of 127.0.0.1, too: for as long as it runs it has the
    /// certificate.
    ///
    /// # Panics
    /// If it does not.
    pub fn run_with_tls(&mut self, port: u16, certificate: &Certificate) {
        self.end(Signal::INT);
        let files = [&certificate.certificate, &certificate.key];
        let copies = ["server.pem", "server.key"].map(|name| self.folder.join("data").join(name));
        for (file, copy) in files.into_iter().zip(&copies) {
            let _ = fs::remove_file(copy);
            fs::copy(file, copy).expect("a copy of the certificate");
            if geteuid().is_root() {
                chown(copy, Some(NOBODY), Some(NOBODY)).expect("root may give files away");
            }
        }
        self.options = [
            "listen_addresses=127.0.0.1",
            "ssl=on",
            "ssl_cert_file=server.pem",
            "ssl_key_file=server.key",
        ]
        .map(str::to_owned)
        .to_vec();
        self.options.push(format!("port={port}"));
        self.run();
    }

    /// The port, in the name of the socket, too.
    fn port(&self) -> &str {
        let mut ports = self
            .options
            .iter()
            .filter_map(|it| it.strip_prefix("port="));
        ports.next().unwrap_or(PORT)
    }

    fn answers(&self) -> bool {
        self.psql_run("SELECT 1")
            .is_ok_and(|output| output.status.success())
    }

    fn psql_run(&self, sql: &str) -> io::Result<std::process::Output> {
        self.program("psql")
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .args([
                "-v",
                "ON_ERROR_STOP=1",
                "-d",
                "postgres",
                "-U",
                "weir",
                "-h",
            ])
            .arg(&self.folder)
            .args(["-p", self.port(), "-c", sql])
            .output()
    }

    /// The output of psql for a query: a line a row, columns separated by `|`.
    ///
    /// # Panics
    /// If the query fails.
    pub fn psql(&self, sql: &str) -> String {
        let output = self.psql_run(sql).expect("psql starts");
        assert!(output.status.success(), "{sql}: {output:?}");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    }

    /// How a client connects.
    pub fn connection(&self) -> String {
        let folder = self.folder.display();
        let port = self.port();
        format!("host={folder} port={port} user=weir dbname=postgres")
    }

    /// Ends the server at once, amid whatever it does.
    ///
    /// # Panics
    /// If it does not end.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut process) = self.process.take() {
            process.signal(signal).expect("the server is there");
            process.ended(LIMIT).expect("the server ends");
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if !thread::panicking() {
            // Fast shutdown: it gives its shared memory back.
            self.end(Signal::INT);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
