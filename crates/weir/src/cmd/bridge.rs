//! `weir bridge`: a transparent bridge that survives its own failure.

use crate::failure::{Failure, say};
use crate::stop::Stop;
use std::time::Duration;
use weir_tap::{Bridge, Bypass, Tap, TapError, Verdict};

/// Join two interfaces by a bridge in user space
///
/// Every frame that comes in at one goes out at the other. Nothing of either
/// interface reaches the host's own protocols meanwhile. A program in the
/// kernel watches this one: see --bypass.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir bridge eth1 eth2
  weir bridge eth1 eth2 --bypass wire       # stay joined, whatever becomes of weir
  weir bridge eth1 eth2 --clean             # take apart what stayed joined

Runs in the foreground and says `ready` on standard error when frames flow.

What --bypass says holds whenever no weir runs, for whatever reason: killed, hung, or ended by a
signal. With `kernel` that is how the interfaces were before; with `wire` and `drop` it stays until
the next `weir bridge` is ready, or --clean. --restore has SIGINT and SIGTERM leave the interfaces
as they were in any case.

Exit status: 0, also after SIGINT and SIGTERM; 1 if an interface is gone or something else failed; 2
if an option is refused.")]
pub(crate) struct Args {
    /// The first interface
    #[arg(value_name = "A")]
    a: String,

    /// The second interface
    #[arg(value_name = "B")]
    b: String,

    /// What becomes of frames while weir does not run: the host gets them
    /// (kernel), the two links are joined in the kernel (wire), or none
    /// passes (drop)
    #[arg(long, value_name = "WHAT", default_value_t)]
    bypass: Bypass,

    /// How long a frame may wait for a weir that does nothing, in
    /// milliseconds, before the bypass takes over
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    hang_ms: u64,

    /// Leave the interfaces as they were on SIGINT and SIGTERM
    #[arg(long)]
    restore: bool,

    /// Take off the interfaces what an earlier run has left, and end
    #[arg(long)]
    clean: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.clean {
        return clean(args);
    }
    let stop = Stop::watch()?;
    let asked = weir_tap::Stop::default();
    let mut bridge = Bridge::between(&args.a, &args.b)
        .map_err(failure)?
        .bypass(args.bypass)
        .hang_max(Duration::from_millis(args.hang_ms))
        .until(&asked);
    if args.restore {
        bridge = bridge.restore();
    }
    let mut is_ready = false;
    let ran = bridge.run_with(
        |_, _| Verdict::Forward,
        |tap| {
            if !std::mem::replace(&mut is_ready, true) {
                introduce(args, tap);
            }
            if stop.asked() {
                asked.stop();
            }
        },
    );
    ran.map(|_| ()).map_err(failure)
}

/// Says how, and that frames flow.
fn introduce(args: &Args, tap: &Tap) {
    let links = [&args.a, &args.b].into_iter().zip(tap.links());
    let modes: Vec<String> = links
        .filter_map(|(name, link)| {
            let (mode, hook) = tap.mode(link)?;
            Some(format!("{name} by {mode} at {hook}"))
        })
        .collect();
    say(&format!("weir: {}", modes.join(", ")));
    say("ready");
}

fn clean(args: &Args) -> Result<(), Failure> {
    let found = Tap::clean(&args.a, &args.b).map_err(failure)?;
    if !found {
        say(&format!("weir: nothing joins {} and {}", args.a, args.b));
    }
    Ok(())
}

fn failure(error: TapError) -> Failure {
    match error {
        TapError::Interface(_) | TapError::Same { .. } | TapError::NotEthernet { .. } => {
            Failure::refused(error)
        }
        error => Failure::run(error),
    }
}
