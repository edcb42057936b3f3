//! Several processes on one tap: the first taps two links, others join it, and
//! frames go to whichever is free. Kill any of them: the others go on.
//!
//! `cargo run -p weir-tap --example shared -- eth1 eth2`, then, as often as
//! you like, `cargo run -p weir-tap --example shared`.

use std::path::Path;
use std::time::Duration;
use weir_tap::{Config, LinkId, Pull, Tap, TapError};

const PATH: &str = "/run/weir-example";

fn main() -> Result<(), TapError> {
    let links: Vec<String> = std::env::args().skip(1).collect();
    let mut tap = match links.as_slice() {
        [] => Tap::join(Path::new(PATH), Config::default())?,
        links => {
            let mut tap = Tap::map(Config::default())?;
            for link in links {
                tap.tap(link)?;
            }
            tap.share(Path::new(PATH))?;
            tap
        }
    };
    let links: Vec<LinkId> = tap.links().collect();
    loop {
        tap.pull(Pull::Frame(Duration::from_secs(1)))?;
        for (at, from) in links.iter().enumerate() {
            // Out at the next link.
            let to = links[(at + 1) % links.len()];
            while let Some(frame) = tap.take(*from)? {
                tap.give(to, frame)?;
            }
        }
        tap.push()?;
    }
}
