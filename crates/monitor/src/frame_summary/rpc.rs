//! ONC RPC (RFC 5531), and the procedures of NFS (RFC 1094, RFC 1813).

use super::{byte, half, harmless, hex, word};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const NFS: u32 = 100_003;
/// NFS' transport port. A reply does not name its program.
const NFS_PORT: u16 = 2049;

/// The message of a segment behind its record mark (RFC 5531 section 11).
pub(super) fn in_segment(payload: &[u8], port: u16) -> Option<String> {
    let len = word(payload, 0)? & 0x7fff_ffff;
    message(payload.get(4..)?, len as usize, port)
}

/// A call or a reply of `len` bytes, of a service at that transport port.
pub(super) fn message(bytes: &[u8], len: usize, port: u16) -> Option<String> {
    let (id, kind) = (word(bytes, 0)?, word(bytes, 4)?);
    match kind {
        CALL => call(bytes, id, len),
        REPLY => {
            let status = match (word(bytes, 8)?, word(bytes, 12)) {
                // Accepted: the verifier, then the state.
                (0, _) => match reply_status(bytes)? {
                    0 => "ok".to_owned(),
                    1 => "program unavailable".to_owned(),
                    2 => "program mismatch".to_owned(),
                    3 => "procedure unavailable".to_owned(),
                    4 => "garbage arguments".to_owned(),
                    5 => "system error".to_owned(),
                    number => format!("status {number}"),
                },
                (1, Some(0)) => "ERR: RPC version mismatch".to_owned(),
                (1, Some(1)) => "ERR: authentication".to_owned(),
                _ => return None,
            };
            let name = if port == NFS_PORT { "NFS" } else { "RPC" };
            Some(format!(
                "{name} reply xid {id}, {len} bytes, reply {status}"
            ))
        }
        _ => None,
    }
}

fn reply_status(bytes: &[u8]) -> Option<u32> {
    let verifier = word(bytes, 16)? as usize;
    word(
        bytes,
        20_usize.checked_add(verifier.checked_next_multiple_of(4)?)?,
    )
}

fn call(bytes: &[u8], id: u32, len: usize) -> Option<String> {
    const RPC_VERSION: u32 = 2;
    if word(bytes, 8)? != RPC_VERSION {
        return None;
    }
    let (program, version, procedure) = (word(bytes, 12)?, word(bytes, 16)?, word(bytes, 20)?);
    let name = match program {
        100_000 => "portmap".to_owned(),
        NFS => "NFS".to_owned(),
        100_005 => "mount".to_owned(),
        100_021 => "nlockmgr".to_owned(),
        100_024 => "status".to_owned(),
        100_227 => "nfs_acl".to_owned(),
        program => format!("program {program}"),
    };
    let (credentials, flavor) = (word(bytes, 28)? as usize, word(bytes, 24)?);
    // Behind the credentials, the verifier.
    let verifier = 32_usize.checked_add(credentials.checked_next_multiple_of(4)?)?;
    let arguments = word(bytes, verifier.checked_add(4)?).and_then(|len| {
        let start = verifier
            .checked_add(8)?
            .checked_add((len as usize).checked_next_multiple_of(4)?)?;
        bytes.get(start..)
    });
    let what = match (program, version) {
        (NFS, 2 | 3) => nfs(version, procedure, arguments.unwrap_or_default()),
        (NFS, _) => match procedure {
            0 => "null".to_owned(),
            1 => "compound".to_owned(),
            procedure => format!("proc {procedure}"),
        },
        _ => format!("proc {procedure}"),
    };
    let flavor = match flavor {
        6 => ", RPCSEC_GSS",
        _ => "",
    };
    Some(format!(
        "RPC call xid {id}, {len} bytes, {name} v{version} {what}{flavor}"
    ))
}

fn nfs(version: u32, procedure: u32, arguments: &[u8]) -> String {
    const V2: [&str; 18] = [
        "null",
        "getattr",
        "setattr",
        "root",
        "lookup",
        "readlink",
        "read",
        "writecache",
        "write",
        "create",
        "remove",
        "rename",
        "link",
        "symlink",
        "mkdir",
        "rmdir",
        "readdir",
        "fsstat",
    ];
    const V3: [&str; 22] = [
        "null",
        "getattr",
        "setattr",
        "lookup",
        "access",
        "readlink",
        "read",
        "write",
        "create",
        "mkdir",
        "symlink",
        "mknod",
        "remove",
        "rmdir",
        "rename",
        "link",
        "readdir",
        "readdirplus",
        "fsstat",
        "fsinfo",
        "pathconf",
        "commit",
    ];
    let names = if version == 2 { &V2[..] } else { &V3[..] };
    let Some(name) = names.get(procedure as usize) else {
        return format!("proc {procedure}");
    };
    let mut text = (*name).to_owned();
    let Some((handle, rest)) = handle(version, arguments).filter(|_| procedure != 0) else {
        return text;
    };
    text += &format!(" fh {}", hex(handle));
    let more = match (version, *name) {
        (
            _,
            "lookup" | "create" | "mkdir" | "symlink" | "mknod" | "remove" | "rmdir" | "rename",
        ) => file_name(rest).map(|name| format!(" \"{}\"", harmless(name))),
        (3, "access") => word(rest, 0).map(|access| format!(" {access:#06x}")),
        (3, "read" | "write" | "commit") => read_range(rest),
        (2, "read") => word(rest, 4)
            .zip(word(rest, 0))
            .map(|(count, offset)| format!(" {count} bytes @ {offset}")),
        _ => None,
    };
    text + &more.unwrap_or_default()
}

/// A handle is of 32 bytes in version 2, and is counted in version 3.
fn handle(version: u32, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    if version == 2 {
        return bytes.split_at_checked(32);
    }
    let len = word(bytes, 0)? as usize;
    let (handle, rest) = bytes.get(4..)?.split_at_checked(len.min(64))?;
    Some((
        handle,
        rest.get(handle.len().next_multiple_of(4) - handle.len()..)?,
    ))
}

fn file_name(bytes: &[u8]) -> Option<&[u8]> {
    let len = word(bytes, 0)? as usize;
    bytes.get(4..4_usize.checked_add(len)?)
}

fn read_range(bytes: &[u8]) -> Option<String> {
    let offset = u64::from(word(bytes, 0)?) << 32 | u64::from(word(bytes, 4)?);
    Some(format!(" {} bytes @ {offset}", word(bytes, 8)?))
}

/// An SMB message behind its NetBIOS session header (MS-SMB, MS-SMB2).
pub(super) fn smb(payload: &[u8]) -> Option<String> {
    const V2: [&str; 19] = [
        "Negotiate",
        "Session Setup",
        "Logoff",
        "Tree Connect",
        "Tree Disconnect",
        "Create",
        "Close",
        "Flush",
        "Read",
        "Write",
        "Lock",
        "Ioctl",
        "Cancel",
        "Echo",
        "Query Directory",
        "Change Notify",
        "Query Info",
        "Set Info",
        "Oplock Break",
    ];
    let message = payload.get(4..)?;
    match message {
        [0xfe, b'S', b'M', b'B', ..] => {
            // Fields are little-endian.
            let command = half(message, 12)?.swap_bytes();
            let status = word(message, 8)?.swap_bytes();
            let is_response = byte(message, 16)? & 1 != 0;
            let name = V2.get(usize::from(command)).copied().unwrap_or("command");
            let kind = if is_response {
                format!("response, status {status:#010x}")
            } else {
                "request".to_owned()
            };
            Some(format!("SMB2 {name} ({command}) {kind}"))
        }
        [0xff, b'S', b'M', b'B', command, ..] => {
            let kind = match byte(message, 9)? & 0x80 {
                0 => "request",
                _ => "response",
            };
            Some(format!("SMB command {command:#04x} {kind}"))
        }
        [0xfd, b'S', b'M', b'B', ..] => Some("SMB3 encrypted".to_owned()),
        _ => None,
    }
}
