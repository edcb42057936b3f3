//! `weir filter`: compiles, explains and runs one filter.

mod explain;
mod forms;
mod over_file;

use crate::config;
use crate::error::CliError;
use crate::filterset::compile::Compiler;
use crate::input::read_limited;
use forms::Form;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use weir_filter::ir;
use weir_filter::lang::Language;
use weir_filter::lang::cspf::Dialect;
use weir_wire::LinkType;

/// Compile a filter; explain it, print it in another form, or run it on a capture
///
/// Without options it prints the properties and the cost of the compiled
/// filter.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir filter 'tcp[tcpflags] & tcp-syn != 0'
  weir filter tcp port 80 --as cbpf               # what tcpdump -ddd prints
  weir filter --lang cspf pup.enet --run pup.pcapng --json
  tcpdump -ddd udp | weir filter --lang cbpf - --as ebpf

Exit status: 0 if the filter compiles; 2 if it is refused (the reason is on standard error);
1 if a capture file is damaged or cannot be read (what was read is reported), or the filter means
nothing on one of its link types; 129, 130 or 143 after SIGHUP, SIGINT or
SIGTERM (likewise).")]
pub(crate) struct Args {
    /// The filter: the words of an expression; for cbpf and cspf a file name,
    /// `-` for standard input, or the text itself
    #[arg(value_name = "FILTER")]
    words: Vec<String>,

    /// Read the filter's text from a file; `-` is standard input
    ///
    /// In the file of an expression, `#` starts a comment up to the end of the
    /// line.
    #[arg(short = 'F', long, value_name = "FILE", conflicts_with = "words")]
    file: Option<PathBuf>,

    /// Language: expr, cbpf or cspf
    #[arg(long, value_name = "LANG", default_value = "expr")]
    lang: Language,

    /// Dialect of the stack language (cspf): paper (the default), bsd, dec,
    /// sun, mach or weir
    #[arg(long, value_name = "NAME")]
    dialect: Option<Dialect>,

    /// Link type, by tcpdump's name (any case) or LINKTYPE number
    ///
    /// By default the capture's own with --run, otherwise EN10MB.
    #[arg(short = 'y', long, value_name = "NAME|N")]
    linktype: Option<LinkType>,

    /// Print this form of the program instead of the explanation
    #[arg(long = "as", value_name = "FORM", value_enum)]
    form: Option<Form>,

    /// Run the filter on a capture file (`-`: standard input) and count
    #[arg(short, long, value_name = "FILE", conflicts_with = "form")]
    run: Option<PathBuf>,

    /// Print one line of JSON
    #[arg(long, conflicts_with = "form")]
    json: bool,

    /// Do not optimise
    #[arg(short = 'O', long)]
    no_optimise: bool,

    /// Bytes of an accepted frame to keep: the program's verdict
    #[arg(short, long, value_name = "BYTES", default_value_t = ir::SNAPLEN_ALL,
          allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    snaplen: u32,

    /// IPv4 mask of the frames' network, for `ip broadcast`
    #[arg(long, value_name = "MASK", default_value_t = Ipv4Addr::UNSPECIFIED)]
    netmask: Ipv4Addr,
}

/// The longest filter text that is read, in bytes. The languages have lower
/// limits of their own.
const TEXT_LEN_MAX: u64 = 64 << 20;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let Source { text, file } = source(args)?;
    let compiler = Compiler {
        snaplen: args.snaplen,
        netmask: Some(args.netmask),
        dialect: args.dialect.unwrap_or_default(),
        optimise: !args.no_optimise,
        ..Compiler::default()
    };
    if let Some(path) = &args.run {
        let filter = Source { text, file };
        return over_file::run(args, &compiler, &filter, path);
    }
    let linktype = args.linktype.unwrap_or(LinkType::EN10MB);
    let compiled = compiler
        .compile(args.lang, &text, linktype)
        .map_err(|why| CliError::refused(of_file(file.as_deref(), &why)))?;
    let shown = match args.form {
        Some(form) => form.print(&compiled, args.dialect, linktype)?,
        None if args.json => explain::json(&compiled),
        None => explain::text(&compiled),
    };
    print(&shown)
}

fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    let newline = if text.ends_with('\n') || text.is_empty() {
        ""
    } else {
        "\n"
    };
    write!(out, "{text}{newline}")
        .and_then(|()| out.flush())
        .map_err(CliError::output)
}

/// A filter's text, and the file that contains it.
struct Source {
    text: Vec<u8>,
    file: Option<PathBuf>,
}

/// The error message for a filter, prefixed with the name of its file.
fn of_file(file: Option<&Path>, why: &str) -> String {
    match file {
        None => why.to_owned(),
        Some(path) => format!("{}: {why}", config::name(path)),
    }
}

/// The filter's text, from the command line, a file or standard input.
fn source(args: &Args) -> Result<Source, CliError> {
    let said = |words: &[String]| Source {
        text: words.join(" ").into_bytes(),
        file: None,
    };
    if let Some(path) = &args.file {
        let mut source = read_text(path)?;
        if args.lang == Language::Expr {
            blank_comments(&mut source.text);
        }
        return Ok(source);
    }
    if args.lang == Language::Expr {
        return Ok(said(&args.words));
    }
    match args.words.as_slice() {
        [] => Err(CliError::refused(format!(
            "no filter: give a file's name, `-` for standard input, or the {} text",
            args.lang
        ))),
        // A device or a pipe, such as a shell's <(…), counts as a file.
        [word] if word == "-" || Path::new(word).exists() => read_text(Path::new(word)),
        [word] if is_likely_path(word) => {
            Err(CliError::refused(format!("{word}: there is no such file")))
        }
        words => Ok(said(words)),
    }
}

/// Whether a single word with a dot or slash is probably a misspelt file name:
/// it is not a program text of any language.
fn is_likely_path(word: &str) -> bool {
    !word.contains(char::is_whitespace) && word.contains(['/', '.'])
}

/// Blanks comments as `tcpdump -F` does: the text from a `#` to the end of its
/// line becomes spaces, so that error positions stay right.
fn blank_comments(text: &mut [u8]) {
    let mut inside = false;
    for byte in text {
        inside = *byte != b'\n' && (inside || *byte == b'#');
        if inside {
            *byte = b' ';
        }
    }
}

fn read_text(path: &Path) -> Result<Source, CliError> {
    Ok(Source {
        text: read_limited::read(path, TEXT_LEN_MAX)?,
        file: Some(path.to_owned()),
    })
}
