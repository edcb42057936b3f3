//! `weir generate`: man pages and completions, for packages.

use crate::error::CliError;
use clap::ValueEnum;
use clap_complete::Shell;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write man pages and shell completions
///
/// Packages contain what this command writes.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    /// Write a man page for each command into a folder: weir.1, weir-listen.1 …
    #[arg(long, value_name = "FOLDER")]
    man: Option<PathBuf>,

    /// Write completions for bash, zsh, fish and other shells into a folder
    #[arg(long, value_name = "FOLDER")]
    completions: Option<PathBuf>,
}

/// Runs the command; `command` is the whole of weir's.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<(), CliError> {
    if let Some(folder) = &args.completions {
        make(folder)?;
        for shell in Shell::value_variants() {
            let written = clap_complete::generate_to(*shell, &mut command, "weir", folder);
            written.map_err(|error| failed(folder, &error))?;
        }
    }
    if let Some(folder) = &args.man {
        make(folder)?;
        // Subcommands then know the options that they inherit, and their whole names.
        command.build();
        pages(&command, "weir", folder)?;
    }
    Ok(())
}

fn make(folder: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> CliError {
    CliError::run(format!("cannot write {}: {error}", path.display()))
}

/// The page of a command, and those of its subcommands.
fn pages(command: &clap::Command, name: &str, folder: &Path) -> Result<(), CliError> {
    let path = folder.join(format!("{name}.1"));
    // The date of a page would be another one with each build.
    // clap's names live as long as the program, which ends soon.
    let whole: &'static str = name.to_owned().leak();
    let man = clap_mangen::Man::new(command.clone().name(whole)).date("");
    let mut text = Vec::new();
    man.render(&mut text)
        .map_err(|error| failed(&path, &error))?;
    let file = std::fs::File::create(&path);
    let written = file.and_then(|mut file| file.write_all(&text));
    written.map_err(|error| failed(&path, &error))?;
    for sub in command.get_subcommands() {
        if !sub.is_hide_set() && sub.get_name() != "help" {
            pages(sub, &format!("{name}-{}", sub.get_name()), folder)?;
        }
    }
    Ok(())
}
