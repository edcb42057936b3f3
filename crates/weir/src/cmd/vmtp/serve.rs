//! `weir vmtp serve`: files of a folder.

use super::{LinkArgs, failure};
use crate::error::{CliError, say};
use crate::http::files::{Folder, Resource, Served};
use crate::same_address;
use crate::signals::ShutdownSignal;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_protocols::vmtp::Server;
use weir_vmtp::file::{self, Part, Read};
use weir_vmtp::{Incoming, Reply};

/// Serve the files of a folder
///
/// Prints `ready` on standard error and serves until SIGINT, SIGTERM or SIGHUP. Nothing outside of
/// the folder is served, and no hidden file.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    #[command(flatten)]
    link: LinkArgs,

    /// The server's number on its host
    #[arg(long, value_name = "N", default_value_t = file::SERVICE,
          value_parser = clap::value_parser!(u32).range(1..1 << 28), allow_negative_numbers = true)]
    number: u32,
}

/// How long an open file is kept for the next read of it: so long may a file that another one has
/// replaced still be served.
const KEPT_OPEN: Duration = Duration::from_secs(1);
/// Number of files that are kept open.
const OPEN_MAX: usize = 16;

pub(super) fn run(args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
    let folder = Folder::open(&args.folder).map_err(|error| {
        CliError::run(format!("cannot serve {}: {error}", args.folder.display()))
    })?;
    let link = &args.link;
    let server = Server::open(&link.link, link.broker(), args.number, &[file::GROUP]);
    let mut server = server.map_err(failure)?;
    let _claim = same_address::claim("vmtp", &server.entity().to_string(), &link.link);
    say(&format!(
        "weir: vmtp server {} on {}",
        server.entity(),
        link.link
    ));
    say("ready");
    let mut files = Files {
        folder,
        open: Vec::new(),
    };
    let served = server.serve(|request| files.answer(request), || stop.is_requested());
    served.map_err(failure)
}

/// The folder, and its files that were read last.
struct Files {
    folder: Folder,
    open: Vec<Open>,
}

struct Open {
    name: String,
    served: Served,
    since: Instant,
}

impl Files {
    fn answer(&mut self, request: &Incoming) -> Reply {
        let Some(read) = Read::parse(request) else {
            return file::refusal(file::NOT_UNDERSTOOD);
        };
        let served = match self.file(&read.name) {
            Ok(served) => served,
            Err(code) => return file::refusal(code),
        };
        match part(served, &read) {
            Ok(part) => part.reply(),
            Err(_) => file::refusal(file::UNREADABLE),
        }
    }

    fn file(&mut self, name: &str) -> Result<&Served, u32> {
        let now = Instant::now();
        let is_fresh = |open: &Open| now.duration_since(open.since) < KEPT_OPEN;
        self.open.retain(is_fresh);
        let found = self.open.iter().position(|open| open.name == name);
        let at = match found {
            Some(at) => at,
            None => {
                let served = match self.folder.find_plain(name) {
                    Resource::File(served) => served,
                    Resource::Nothing(403 | 503) => return Err(file::UNREADABLE),
                    _ => return Err(file::NOT_FOUND),
                };
                if self.open.len() >= OPEN_MAX {
                    self.open.remove(0);
                }
                self.open.push(Open {
                    name: name.to_owned(),
                    served,
                    since: now,
                });
                self.open.len() - 1
            }
        };
        Ok(&self.open[at].served)
    }
}

/// The bytes that a client asks for.
fn part(served: &Served, read: &Read) -> io::Result<Part> {
    let facts = served.file.metadata()?;
    let mut hasher = DefaultHasher::new();
    (facts.ino(), facts.mtime(), facts.mtime_nsec()).hash(&mut hasher);
    let mut bytes = vec![0; read.len as usize];
    let mut count = 0;
    while count < bytes.len() {
        let at = read.offset.saturating_add(count as u64);
        match served.file.read_at(&mut bytes[count..], at) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(count);
    Ok(Part {
        file_len: facts.len(),
        version: hasher.finish() as u32,
        bytes,
    })
}
