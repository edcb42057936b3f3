//! The stack's errors as a kernel's sockets have them.

use rustix::io::Errno;
use weir_stack::tcp::TcpError;
use weir_stack::udp::{BindError, GroupError, IcmpCause, SendError};

/// As `connect(2)`, `read(2)` and `write(2)` fail.
pub(crate) fn tcp(error: TcpError) -> Errno {
    match error {
        TcpError::WouldBlock => Errno::AGAIN,
        TcpError::Refused => Errno::CONNREFUSED,
        TcpError::HostUnreachable => Errno::HOSTUNREACH,
        TcpError::NetworkUnreachable => Errno::NETUNREACH,
        TcpError::Reset => Errno::CONNRESET,
        TcpError::TimedOut => Errno::TIMEDOUT,
        TcpError::WriteClosed => Errno::PIPE,
        TcpError::Closed => Errno::NOTCONN,
        TcpError::AddrNotAvailable(_) => Errno::ADDRNOTAVAIL,
        TcpError::AddrInUse(_) => Errno::ADDRINUSE,
        TcpError::NoRoute(_) => Errno::NETUNREACH,
        TcpError::Full => Errno::NOBUFS,
    }
}

/// As `connect(2)` fails before the first segment: with `EADDRNOTAVAIL`, as on Linux, where a
/// connection has the same two addresses and ports already.
pub(crate) fn connect(error: TcpError) -> Errno {
    match error {
        TcpError::AddrInUse(_) => Errno::ADDRNOTAVAIL,
        error => tcp(error),
    }
}

/// As `bind(2)` and `connect(2)` fail.
pub(crate) fn bind(error: BindError) -> Errno {
    match error {
        BindError::Address(_) => Errno::ADDRNOTAVAIL,
        BindError::InUse(_) => Errno::ADDRINUSE,
        BindError::Full => Errno::NOBUFS,
        BindError::NoRoute(_) => Errno::NETUNREACH,
        BindError::Closed => Errno::BADF,
    }
}

/// As `sendto(2)` fails.
pub(crate) fn send(error: SendError) -> Errno {
    match error {
        SendError::TooLong(..) => Errno::MSGSIZE,
        SendError::NoRoute(_) => Errno::NETUNREACH,
        SendError::Full => Errno::AGAIN,
        SendError::Refused(_) => Errno::CONNREFUSED,
        SendError::Source(from) if from.is_ipv4() => Errno::NETUNREACH,
        SendError::Source(_) => Errno::INVAL,
        SendError::NoLink(_) => Errno::NODEV,
        SendError::Icmp(cause) => icmp(cause),
        SendError::Closed => Errno::BADF,
    }
}

/// The error of an ICMP message, as Linux has it (`icmp_err_convert`, `icmpv6_err_convert`).
pub(crate) fn icmp(cause: IcmpCause) -> Errno {
    match (cause.v6, cause.kind, cause.code) {
        (false, 3, 0 | 6 | 9 | 11) => Errno::NETUNREACH,
        (false, 3, 2) => Errno::NOPROTOOPT,
        (false, 3, 3) => Errno::CONNREFUSED,
        (false, 3, 4) => Errno::MSGSIZE,
        (false, 3, 5) => Errno::OPNOTSUPP,
        (false, 3, 7) => Errno::HOSTDOWN,
        (false, 3, 8) => Errno::NONET,
        (false, 12, _) => Errno::PROTO,
        (false, _, _) => Errno::HOSTUNREACH,
        (true, 1, 0) => Errno::NETUNREACH,
        (true, 1, 1 | 5 | 6) => Errno::ACCESS,
        (true, 1, 2 | 3) | (true, 3, _) => Errno::HOSTUNREACH,
        (true, 1, 4) => Errno::CONNREFUSED,
        (true, 2, _) => Errno::MSGSIZE,
        (true, _, _) => Errno::PROTO,
    }
}

/// The number of the error that Linux has for an ICMP message (`ee_errno` of ip(7)).
pub fn icmp_error_number(cause: IcmpCause) -> i32 {
    icmp(cause).raw_os_error()
}

/// As `setsockopt(2)` fails for groups.
pub(crate) fn group(error: GroupError) -> Errno {
    match error {
        GroupError::NoGroup(_) => Errno::INVAL,
        GroupError::Joined(_) => Errno::ADDRINUSE,
        GroupError::NotJoined(_) => Errno::ADDRNOTAVAIL,
        GroupError::NoLink(_) => Errno::NODEV,
        GroupError::Full => Errno::NOBUFS,
        GroupError::Closed => Errno::BADF,
    }
}
