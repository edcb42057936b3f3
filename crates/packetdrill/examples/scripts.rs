//! Runs packetdrill's TCP scripts against weir's stack, or the kernel's, and
//! prints which pass: `scripts CHECKOUT [--ipv6|--mapped] [--kernel] [PART…]`.
//!
//! CHECKOUT is a built checkout of packetdrill; with PARTs, only scripts run
//! whose path contains one of them. Each script runs in a network namespace of
//! its own, which needs root; nothing is left behind.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

const IPV4: &str = "--local_ip=192.168.0.1 --gateway_ip=192.168.0.1 \
    --netmask_ip=255.255.0.0 --remote_ip=192.0.2.1 -D TFO_COOKIE=3021b9d889017eeb \
    -D CODE=host_unreachable";
const IPV6: &str = "--ip_version=ipv6 --mtu=1520 --local_ip=fd3d:0a0b:17d6::1 \
    --gateway_ip=fd3d:0a0b:17d6:8888::1 --remote_ip=fd3d:fa7b:d17d::1 \
    -D TFO_COOKIE=c1d1e9742a47a9bc";
const ERRORS_OF_IPV4: &str = "-D CMSG_LEVEL_IP=SOL_IP -D CMSG_TYPE_RECVERR=IP_RECVERR";
const ERRORS_OF_IPV6: &str = "-D CMSG_LEVEL_IP=SOL_IPV6 -D CMSG_TYPE_RECVERR=IPV6_RECVERR";
/// A device with the name that scripts use; it carries no frames.
const DEVICE: &str = "ip link set lo up && ip tuntap add dev tun0 mode tun && \
    ip link set tun0 up";
/// Time limit of a script, in seconds.
const TIME: &str = "60";

fn main() -> ExitCode {
    let (options, rest): (Vec<_>, Vec<_>) =
        env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let has = |option: &str| options.iter().any(|given| given == option);
    let known = ["--ipv6", "--mapped", "--kernel"];
    let wrong = options
        .iter()
        .find(|option| !known.contains(&option.as_str()));
    let (Some(checkout), None) = (rest.first(), wrong) else {
        eprintln!("usage: scripts CHECKOUT [--ipv6|--mapped] [--kernel] [PART…]");
        return ExitCode::from(2);
    };
    // Scripts run in their own folders, where a relative path has another
    // meaning.
    let checkout = Path::new(checkout);
    let checkout = fs::canonicalize(checkout).unwrap_or_else(|_| checkout.to_owned());
    let net = checkout.join("gtests/net");
    let packetdrill = net.join("packetdrill/packetdrill");
    if !packetdrill.exists() {
        eprintln!(
            "{}: not there: build packetdrill first",
            packetdrill.display()
        );
        return ExitCode::from(2);
    }
    let mut arguments: Vec<String> = vec!["--send_omit_free".to_owned()];
    let words = match (has("--ipv6"), has("--mapped")) {
        (true, _) => vec![IPV6, ERRORS_OF_IPV6],
        (_, true) => vec!["--ip_version=ipv4-mapped-ipv6", IPV4, ERRORS_OF_IPV6],
        _ => vec!["--ip_version=ipv4", IPV4, ERRORS_OF_IPV4],
    };
    arguments.extend(
        words
            .iter()
            .flat_map(|text| text.split_whitespace())
            .map(str::to_owned),
    );
    let mut before = "exec \"$@\"".to_owned();
    if !has("--kernel") {
        let object = object();
        arguments.push(format!("--so_filename={}", object.display()));
        if has("--ipv6") {
            arguments.push("--so_flags=mtu=1520".to_owned());
        }
        before = format!(
            "{DEVICE} && exec env LD_PRELOAD={} \"$@\"",
            object.display()
        );
    }
    let skipped = if has("--ipv6") { "v4.pkt" } else { "v6.pkt" };
    let mut scripts = Vec::new();
    collect(&net.join("tcp"), &mut scripts);
    scripts.retain(|path| {
        let name = path.to_string_lossy();
        let wanted = rest.len() < 2 || rest[1..].iter().any(|part| name.contains(part.as_str()));
        wanted && !name.ends_with(skipped)
    });
    scripts.sort();
    let mut passed = 0;
    for script in &scripts {
        let folder = script.parent().unwrap_or(&net);
        let run = Command::new("unshare")
            .args(["--net", "timeout", TIME, "sh", "-c", &before, "sh"])
            .arg(&packetdrill)
            .args(&arguments)
            .arg(script.file_name().unwrap_or_default())
            .current_dir(folder)
            .output();
        let (ok, why) = match run {
            Ok(run) => (
                run.status.success(),
                String::from_utf8_lossy(&run.stderr).into_owned(),
            ),
            Err(error) => (false, error.to_string()),
        };
        let name = script.strip_prefix(&net).unwrap_or(script).display();
        passed += usize::from(ok);
        if ok {
            println!("ok    {name}")
        } else {
            println!("FAIL  {name}: {}", reason(&why))
        }
    }
    println!("{passed} of {} pass", scripts.len());
    ExitCode::SUCCESS
}

/// packetdrill's error message, in one line.
fn reason(text: &str) -> &str {
    let telling = |line: &&str| line.contains(".pkt:") || line.contains("Error");
    let mut lines = text.lines().filter(|line| !line.contains("sysctl"));
    lines.find(telling).unwrap_or("no reason given").trim()
}

fn collect(folder: &Path, scripts: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, scripts);
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            scripts.push(path);
        }
    }
}

/// The path of the shared object, which Cargo writes beside the folder of
/// examples.
fn object() -> PathBuf {
    let here = env::current_exe().unwrap_or_default();
    let folder = here.ancestors().nth(2).unwrap_or(Path::new("."));
    folder.join("libweir_packetdrill.so")
}
