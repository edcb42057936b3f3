//! Protocols of lines: HTTP (RFC 9112), SIP (RFC 3261), RTSP, FTP, SMTP, POP3, IMAP, IRC, SSH's
//! version, WHOIS; Telnet's commands (RFC 854); Redis' arrays.

use super::harmless;

/// The first line of a payload: up to CR or LF.
fn first_line(payload: &[u8]) -> Option<&[u8]> {
    payload
        .split(|byte| *byte == b'\r' || *byte == b'\n')
        .next()
        .filter(|line| !line.is_empty())
}

/// Whether a line is a request `METHOD TARGET PROTOCOL/…`, or a status `PROTOCOL/… CODE …`.
fn is_message_of(line: &[u8], protocol: &[u8]) -> bool {
    let is_status = line.starts_with(protocol);
    let request = || {
        let version = line.rsplit(|byte| *byte == b' ').next()?;
        let method = line.split(|byte| *byte == b' ').next()?;
        let is_method = method
            .iter()
            .all(|byte| byte.is_ascii_uppercase() || *byte == b'_');
        Some(version.starts_with(protocol) && version.len() < line.len() && is_method)
    };
    is_status || request().unwrap_or(false)
}

/// SIP in a datagram of its port; other content is a keepalive.
pub(super) fn sip(payload: &[u8]) -> Option<String> {
    let line = first_line(payload).filter(|line| is_message_of(line, b"SIP/"));
    Some(line.map_or_else(
        || "SIP".to_owned(),
        |line| format!("SIP {}", harmless(line)),
    ))
}

/// What a segment says, at any port or at the port of its protocol.
pub(super) fn of_segment(payload: &[u8], is_of: impl Fn(u16) -> bool) -> Option<String> {
    let line = first_line(payload);
    if let Some(line) = line {
        for (protocol, name) in [
            (&b"HTTP/"[..], "HTTP"),
            (b"RTSP/", "RTSP"),
            (b"SIP/", "SIP"),
        ] {
            if is_message_of(line, protocol) {
                return Some(format!("{name} {}", harmless(line)));
            }
        }
        if line.starts_with(b"SSH-") {
            return Some(format!("SSH {}", harmless(line)));
        }
    }
    if is_of(23) {
        return Some(telnet(payload));
    }
    if is_of(6379)
        && let Some(text) = redis(payload)
    {
        return Some(text);
    }
    let by_port = [
        (21, "FTP"),
        (22, "SSH"),
        (25, "SMTP"),
        (43, "WHOIS"),
        (80, "HTTP"),
        (110, "POP3"),
        (143, "IMAP"),
        (554, "RTSP"),
        (587, "SMTP"),
        (3128, "HTTP"),
        (6667, "IRC"),
        (8080, "HTTP"),
        (8554, "RTSP"),
    ];
    let (_, name) = by_port.iter().find(|(port, _)| is_of(*port))?;
    let is_text = |line: &&[u8]| {
        let mut bytes = line.iter();
        bytes.all(|byte| (b' '..=b'~').contains(byte) || *byte == b'\t')
    };
    // The bodies of these are not lines.
    let is_line = !["HTTP", "RTSP", "SSH"].contains(name);
    Some(match line.filter(|line| is_line && is_text(line)) {
        Some(line) => format!("{name} {}", harmless(line)),
        None => (*name).to_owned(),
    })
}

/// Telnet's commands and options, and the first text between them.
fn telnet(payload: &[u8]) -> String {
    const COMMANDS_MAX: usize = 32;
    const IAC: u8 = 255;
    const SUBNEGOTIATION: u8 = 250;
    const END: u8 = 240;
    let mut parts = Vec::new();
    let mut rest = payload;
    while let Some(at) = rest.iter().position(|byte| *byte == IAC) {
        if parts.len() >= COMMANDS_MAX {
            break;
        }
        rest = &rest[at + 1..];
        let Some((command, behind)) = rest.split_first() else {
            break;
        };
        rest = behind;
        let verb = match *command {
            251 => "WILL",
            252 => "WONT",
            253 => "DO",
            254 => "DONT",
            SUBNEGOTIATION => "SB",
            IAC => continue,
            command => {
                parts.push(telnet_command(command));
                continue;
            }
        };
        let Some((option, behind)) = rest.split_first() else {
            break;
        };
        rest = behind;
        parts.push(format!("{verb} {}", telnet_option(*option)));
        if *command == SUBNEGOTIATION {
            let end = rest.windows(2).position(|pair| pair == [IAC, END]);
            let data = &rest[..end.unwrap_or(rest.len())];
            for byte in data.iter().take(16) {
                parts.push(format!("{byte:#x}"));
            }
            rest = &rest[data.len()..];
        }
    }
    if parts.is_empty() {
        "Telnet".to_owned()
    } else {
        format!("Telnet [{}]", parts.join(", "))
    }
}

fn telnet_command(command: u8) -> String {
    match command {
        240 => "SE",
        241 => "NOP",
        242 => "DMARK",
        243 => "BRK",
        244 => "IP",
        245 => "AO",
        246 => "AYT",
        247 => "EC",
        248 => "EL",
        249 => "GA",
        command => return format!("command {command}"),
    }
    .to_owned()
}

fn telnet_option(option: u8) -> String {
    match option {
        0 => "BINARY",
        1 => "ECHO",
        3 => "SUPPRESS GO AHEAD",
        5 => "STATUS",
        6 => "TIMING MARK",
        23 => "SEND LOCATION",
        24 => "TERMINAL TYPE",
        25 => "END OF RECORD",
        31 => "NAWS",
        32 => "TSPEED",
        33 => "LFLOW",
        34 => "LINEMODE",
        35 => "XDISPLOC",
        36 => "OLD-ENVIRON",
        37 => "AUTHENTICATION",
        38 => "ENCRYPT",
        39 => "NEW-ENVIRON",
        option => return format!("{option:#x}"),
    }
    .to_owned()
}

/// An array of bulk strings, which is a command of Redis; other answers by their line.
fn redis(payload: &[u8]) -> Option<String> {
    const WORDS_MAX: usize = 16;
    let mut lines = payload
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next()?;
    match first.first()? {
        b'*' => {
            let words = lines.skip(1).step_by(2).take(WORDS_MAX);
            let words = words.filter(|word| !word.is_empty());
            let words: Vec<String> = words
                .map(|word| format!("\"{}\"", harmless(word)))
                .collect();
            Some(format!("RESP {}", words.join(" ")))
        }
        b'+' | b'-' | b':' | b'$' => Some(format!("RESP {}", harmless(first))),
        _ => None,
    }
}
