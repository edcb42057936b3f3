//! `weir ipsec`: short for `weir run` with a stage `ipsec`; and the sources of its
//! tunnels, SAs and policies: the file `sa.toml`, the kernel, and strongSwan.

use super::kernel_sas::{self, KernelSas};
use super::nat::quoted;
use super::strongswan::{self, Strongswan};
use super::{LiveArgs, Source, live, parse, print};
use crate::config::{self, Wrong};
use crate::error::{CliError, say};
use signal_hook::consts::SIGHUP;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_apps::chain::BoxConfig;
use weir_chain::config::SaSource;
use weir_chain::ipsec::Reload;
use weir_esp::config::FILE_BYTES_MAX;
use weir_esp::{Config, ConfigError};
use weir_link::names::SystemNames;
use weir_link::net::Interface;
use zeroize::Zeroizing;

/// MTU of the outside if there is no such interface, as with --explain.
const MTU_DEFAULT: usize = 1500;

/// Protect what leaves by a link with ESP, as policies say (IPsec)
///
/// Routes as `weir route` does, with the kernel's routes. What goes between the
/// links INSIDE and OUTSIDE is protected by ESP (RFC 4303), passes as it is, or
/// is dropped, as the policies of FILE say; docs/reference/sa.md explains each
/// key. Without INSIDE the hosts are on the link of the peers. The file has keys,
/// so that others than its owner must not be able to read it. SIGHUP has weir read it again: SAs that stay go on, without loss.
/// With --kernel-sas the kernel's databases of SAs and policies (XFRM) take the
/// place of the file, so that an IKE daemon such as strongSwan's makes both, and
/// changes them. --strongswan does so where the kernel has no ESP. Short
/// for a configuration of `weir run`, which --print shows.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir ipsec eth0 eth1 --sa sa.toml
  weir ipsec eth0 --sa sa.toml                  # hosts and peers on one link
  weir ipsec eth0 eth1 --sa sa.toml --check
  weir ipsec eth0 eth1 --sa sa.toml --stats-json -
  weir ipsec eth0 eth1 --kernel-sas
  weir ipsec eth0 eth1 --strongswan /run/charon-keys.fifo
  weir ipsec eth0 eth1 --sa sa.toml --print > box.toml

A tunnel, its SAs, and what it protects:
  [[tunnel]]
  name = \"office\"
  local = \"192.0.2.1\"
  remote = \"198.51.100.1\"
  [[sa]]
  tunnel = \"office\"
  direction = \"out\"
  spi = 0x1001
  algorithm = \"aes256gcm\"
  key = \"…\"                       # openssl rand -hex 36
  [[sa]]
  tunnel = \"office\"
  direction = \"in\"
  spi = 0x1002
  algorithm = \"aes256gcm\"
  key = \"…\"
  [[policy]]
  match = \"src net 10.1.0.0/16 and dst net 10.2.0.0/16\"
  action = \"protect\"
  tunnel = \"office\"

While weir does not run, frames are dropped.

Exit status: 0, also after SIGINT and SIGTERM; 1 if an interface is not there, a file cannot be
written or something else failed; 2 if the configuration or an option is refused.")]
pub(crate) struct Args {
    /// The link of the peers
    #[arg(value_name = "OUTSIDE")]
    outside: String,

    /// The links of the hosts that are protected, by default that of the peers
    #[arg(value_name = "INSIDE")]
    inside: Vec<String>,

    /// The tunnels, their SAs with keys, and the policies
    #[arg(long, value_name = "FILE", 
          required_unless_present_any = ["kernel_sas", "strongswan"])]
    sa: Option<PathBuf>,

    /// Follow the kernel's SAs and policies, as an IKE daemon puts them there; the
    /// host keeps the frames of IKE
    #[arg(long, conflicts_with_all = ["sa", "strongswan"])]
    kernel_sas: bool,

    /// Follow the CHILD_SAs of strongSwan on this host, on kernels without ESP: by
    /// VICI, and by the keys that its log has at level 4 of `chd`. FILE is that log,
    /// best a FIFO; the host keeps the frames of IKE
    #[arg(long, value_name = "FILE", conflicts_with = "sa")]
    strongswan: Option<PathBuf>,

    /// The socket of VICI
    #[arg(long, value_name = "PATH", requires = "strongswan", default_value = strongswan::VICI)]
    vici: String,

    /// Only print the configuration for `weir run`
    #[arg(long)]
    print: bool,

    /// Only check the file against the existing interfaces
    #[arg(long, conflicts_with = "clean")]
    check: bool,

    #[command(flatten)]
    live: LiveArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let source = Source {
        name: "the command line".into(),
        text: text(args)?,
    };
    if args.print {
        return print(&source);
    }
    let config = parse(&source)?;
    live(&source, config, &args.live, args.check, Path::new(""), None)
}

/// Refuses --restart of SAs that a new process would begin anew.
///
/// # Errors
/// If the SAs are the kernel's.
pub(super) fn check_restart(config: &BoxConfig) -> Result<(), CliError> {
    if matches!(config.sa_source(), Some(SaSource::Kernel)) {
        return Err(CliError::refused(
            "--restart does not go with the kernel's SAs (--kernel-sas, kernel_sas): a new process would count \
             their packets from 1 again, with the same keys; start weir anew by hand, and have the IKE daemon \
             rekey (swanctl --rekey)",
        ));
    }
    Ok(())
}

/// The configuration that the options stand for.
fn text(args: &Args) -> Result<String, CliError> {
    let name = |path: &Path, option: &str| match path.to_str() {
        Some(name) => Ok(quoted(name)),
        None => Err(CliError::refused(format!(
            "{option}: write a file's name in UTF-8"
        ))),
    };
    let source = match (&args.sa, &args.strongswan) {
        (Some(file), _) => format!("sa = {}", name(file, "--sa")?),
        (None, Some(log)) => format!(
            "strongswan = {}\nvici = {}",
            name(log, "--strongswan")?,
            quoted(&args.vici)
        ),
        (None, None) => "kernel_sas = true".to_owned(),
    };
    let mut text = String::new();
    let outside = quoted(&args.outside);
    let _ = writeln!(text, "outside = {outside}\n\n[kernel]\nroutes = true");
    if args.sa.is_none() {
        let _ = writeln!(text, "host = {}", kernel_sas::HOST);
    }
    let inside = args.inside.iter().map(|name| quoted(name));
    for name in inside.chain([outside]) {
        let _ = writeln!(text, "\n[[link]]\nname = {name}");
    }
    let _ = writeln!(text, "\n[[stage]]\nkind = \"ipsec\"\n{source}");
    Ok(text)
}

/// The source of the SAs of a stage `ipsec`.
pub(super) enum Sas {
    File(SaFile),
    Kernel(KernelSas),
    Strongswan(Strongswan),
}

impl Sas {
    /// The source of a configuration in `directory`, whose outside has these
    /// addresses; `None` without a stage `ipsec`.
    pub(super) fn of(config: &BoxConfig, own: &[String], directory: &Path) -> Option<Sas> {
        let links = &config.router.links;
        let outside = &links[config.outside];
        let mtu = Interface::named(&outside.name).map_or(MTU_DEFAULT, |it| it.mtu as usize);
        let reload = Reload::default();
        Some(match config.sa_source()? {
            SaSource::Kernel => Sas::Kernel(KernelSas { mtu, reload }),
            SaSource::Strongswan { log, vici } => Sas::Strongswan(Strongswan {
                log: directory.join(log),
                vici: vici.as_deref().unwrap_or(strongswan::VICI).into(),
                mtu,
                reload,
            }),
            SaSource::File(file) => {
                let configured = links.iter().flat_map(|link| &link.addresses);
                let all = own.iter().chain(configured);
                let plain = all.filter_map(|text| text.split('/').next());
                Sas::File(SaFile {
                    path: directory.join(file),
                    mtu,
                    addresses: plain.filter_map(|text| text.parse().ok()).collect(),
                    reload,
                })
            }
        })
    }

    /// The same source, for any local address of the file's tunnels: those of the
    /// box are not known.
    pub(super) fn of_any_address(self) -> Sas {
        match self {
            Sas::File(file) => Sas::File(SaFile {
                addresses: Vec::new(),
                ..file
            }),
            other => other,
        }
    }

    /// What the source has now.
    pub(super) fn read(&self) -> Result<Config, CliError> {
        match self {
            Sas::File(file) => file.read(),
            Sas::Kernel(kernel) => kernel.read(),
            Sas::Strongswan(strongswan) => strongswan.read(),
        }
    }

    /// Where changes are put for the stage.
    pub(super) fn reload(&self) -> Reload {
        match self {
            Sas::File(file) => file.reload.clone(),
            Sas::Kernel(kernel) => kernel.reload.clone(),
            Sas::Strongswan(strongswan) => strongswan.reload.clone(),
        }
    }

    /// Whether SIGHUP has it read again.
    pub(super) fn is_reread(&self) -> bool {
        matches!(self, Sas::File(_))
    }

    /// Follows the source; what [`Rereader::look`] has to do for a file.
    pub(super) fn watch(self) -> Result<Option<Rereader>, CliError> {
        match self {
            Sas::File(file) => Rereader::watch(file).map(Some),
            Sas::Kernel(kernel) => kernel.watch().map(|()| None),
            Sas::Strongswan(strongswan) => strongswan.watch().map(|()| None),
        }
    }
}

/// The file of a stage `ipsec`, and the stage that it is for.
pub(super) struct SaFile {
    path: PathBuf,
    mtu: usize,
    /// The addresses of the box's links.
    addresses: Vec<IpAddr>,
    reload: Reload,
}

impl SaFile {
    /// Reads the file. Its text is erased afterwards.
    fn read(&self) -> Result<Config, CliError> {
        let text = self.text()?;
        let refused = |error: &ConfigError| {
            let message = config::plain(&error.message);
            let wrong = match error.at {
                Some(at) => Wrong::at(&text, at, message),
                None => Wrong::in_all(message),
            };
            wrong.refused(&self.path)
        };
        let config = Config::parse(&text, &SystemNames::new(), self.mtu);
        let config = config.map_err(|error| refused(&error))?;
        for tunnel in &config.tunnels {
            if !self.addresses.is_empty() && !self.addresses.contains(&tunnel.local) {
                let known: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
                let why = format!(
                    "local = \"{}\" of tunnel `{}`: the outside has another address, {}",
                    tunnel.local,
                    tunnel.name,
                    known.join(", ")
                );
                return Err(Wrong::in_all(why).refused(&self.path));
            }
        }
        Ok(config)
    }

    fn text(&self) -> Result<Zeroizing<String>, CliError> {
        let name = self.path.display();
        let failed = |error| CliError::run(format!("cannot read {name}: {error}"));
        let file = File::open(&self.path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
        if mode & 0o006 != 0 {
            return Err(CliError::refused(format!(
                "{name}: every user may read or change it (mode {mode:04o}), and it has keys: \
                 chmod 600 {name}"
            )));
        }
        let size = file.metadata().map_err(failed)?.size().min(FILE_BYTES_MAX);
        // Large enough that it does not move: an earlier place would not be erased.
        let mut text = Zeroizing::new(String::with_capacity(size as usize + 1));
        let mut limited = file.take(FILE_BYTES_MAX + 1);
        limited.read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            let why = format!("{name}: longer than {FILE_BYTES_MAX} bytes");
            return Err(CliError::refused(why));
        }
        Ok(text)
    }
}

/// Reads the file again at each SIGHUP.
pub(super) struct Rereader {
    file: SaFile,
    is_asked: Arc<AtomicBool>,
}

impl Rereader {
    pub(super) fn watch(file: SaFile) -> Result<Rereader, CliError> {
        let is_asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, Arc::clone(&is_asked))
            .map_err(|error| CliError::run(format!("cannot watch for signals: {error}")))?;
        Ok(Rereader { file, is_asked })
    }

    /// Passes the changed file to the stage, if a signal asked for that. A file
    /// that is refused changes nothing.
    pub(super) fn look(&self) {
        if !self.is_asked.swap(false, Ordering::Relaxed) {
            return;
        }
        match self.file.read() {
            Ok(config) => {
                self.file.reload.put(config);
                say(&format!("weir: {}: read again", self.file.path.display()));
            }
            Err(error) => say(&format!("weir: {error}; the earlier SAs and policies stay")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(source: &str) -> BoxConfig {
        let text = format!(
            "outside = \"b\"\n[kernel]\nroutes = true\nhost = {}\n[[link]]\nname = \"a\"\n\
             [[link]]\nname = \"b\"\n[[stage]]\nkind = \"ipsec\"\n{source}\n",
            kernel_sas::HOST
        );
        BoxConfig::parse(&text, &SystemNames::new()).unwrap()
    }

    /// A new process would begin the kernel's SAs anew.
    #[test]
    fn a_restart_of_the_kernel_s_sas_is_refused() {
        let why = check_restart(&config("kernel_sas = true")).unwrap_err();
        assert!(why.to_string().contains("--restart does not go with"));
        for other in ["sa = \"sa.toml\"", "strongswan = \"keys\""] {
            assert!(check_restart(&config(other)).is_ok());
        }
    }
}
