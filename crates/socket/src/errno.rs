//! The stack's errors as a kernel's sockets have them.

use rustix::io::Errno;
use weir_stack::tcp::TcpError;
use weir_stack::udp::{BindError, GroupError, SendError};

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
        SendError::Closed => Errno::BADF,
    }
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
