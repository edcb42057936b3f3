//! Socket options: `setsockopt` and `getsockopt`.

use crate::simulation::{Inner, Simulation};
use crate::socket::{Options, Socket, SocketPhase, errno};
use crate::{Answer, Errno, tcp_info, user_memory};
use std::num::NonZeroU32;
use weir_stack::tcp::{FastOpenServer, TcpConfig, TcpOptions};

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
/// Largest length of an option's value, in bytes.
const VALUE_MAX: usize = 256;
/// `SO_MEMINFO`, and the number of its values.
const SO_MEMINFO: i32 = 55;
const MEMINFO_VARS: usize = 9;
const TCP_CC_INFO: i32 = 26;
/// The bits of `tcp_fastopen`.
pub(crate) const CLIENT: u32 = 1;
const SERVER: u32 = 2;
pub(crate) const CLIENT_WITHOUT_COOKIE: u32 = 4;
const SERVER_WITHOUT_COOKIE: u32 = 0x200;
const SERVER_WITHOUT_OPTION: u32 = 0x400;

impl Options {
    /// Applies the options to the configuration of new connections.
    pub(crate) fn apply(&self, config: &mut TcpConfig) {
        config.send_buffer = self.send_buffer;
        let mss = self.number(TCP, libc::TCP_MAXSEG);
        config.mss_max = u16::try_from(mss).ok().filter(|mss| *mss > 0);
        let retries = self.number(TCP, libc::TCP_SYNCNT);
        if let Some(retries) = u8::try_from(retries).ok().filter(|times| *times > 0) {
            config.syn_retries = retries;
        }
    }

    fn keep(&mut self, option: (i32, i32), value: &[u8]) {
        self.kept.retain(|(kept, _)| *kept != option);
        self.kept.push((option, value.to_vec()));
    }

    fn kept(&self, option: (i32, i32)) -> Option<&[u8]> {
        let mut kept = self.kept.iter().filter(|(kept, _)| *kept == option);
        kept.next().map(|(_, value)| value.as_slice())
    }

    /// The value that was set; 0 if none was.
    pub(crate) fn number(&self, level: i32, name: i32) -> i32 {
        self.kept((level, name)).and_then(number).unwrap_or(0)
    }
}

/// A value of one byte or four as a number.
fn number(value: &[u8]) -> Option<i32> {
    match *value {
        [a, b, c, d, ..] => Some(i32::from_ne_bytes([a, b, c, d])),
        [a, ..] => Some(a.into()),
        [] => None,
    }
}

/// A `struct timeval`.
fn time_ns(value: &[u8]) -> Option<u64> {
    let half = |bytes: &[u8]| Some(i64::from_ne_bytes(bytes.try_into().ok()?));
    let (seconds, us) = (half(value.get(..8)?)?, half(value.get(8..16)?)?);
    let seconds = u64::try_from(seconds).ok()?;
    Some(seconds * 1_000_000_000 + u64::try_from(us).ok()? * 1000)
}

impl Simulation {
    pub(crate) fn setsockopt(
        &self,
        fd: i32,
        level: i32,
        name: i32,
        value: usize,
        len: u32,
    ) -> Answer {
        let value = user_memory::take(value, (len as usize).min(VALUE_MAX))?;
        self.act(|inner| inner.set(fd, (level, name), &value))
    }

    pub(crate) fn getsockopt(
        &self,
        fd: i32,
        level: i32,
        name: i32,
        value: usize,
        len: usize,
    ) -> Answer {
        let room = user_memory::take_u32(len)? as usize;
        let mut answer = self.lock().get(fd, (level, name), room)?;
        answer.truncate(room);
        user_memory::give(value, &answer)?;
        user_memory::give(len, &(answer.len() as u32).to_ne_bytes())?;
        Ok(0)
    }
}

impl Inner {
    fn set(&mut self, fd: i32, option: (i32, i32), value: &[u8]) -> Answer {
        let wrong = Errno(libc::EINVAL);
        let fast_open = self.settings.fast_open();
        let socket = self.socket(fd)?;
        socket.options.keep(option, value);
        let options = &mut socket.options;
        match option {
            (SOCKET, libc::SO_SNDBUF) => {
                // Linux doubles the value to account for its overhead.
                let bytes = number(value).ok_or(wrong)?.max(0) as usize;
                options.send_buffer = 2 * bytes;
            }
            (SOCKET, libc::SO_LINGER) => {
                let on = number(value).ok_or(wrong)? != 0;
                let seconds = value.get(4..).and_then(number).ok_or(wrong)?;
                options.linger = on.then_some(seconds as u32);
            }
            (SOCKET, libc::SO_RCVTIMEO) => {
                options.receive_timeout_ns = time_ns(value).ok_or(wrong)?;
            }
            (SOCKET, libc::SO_SNDTIMEO) => {
                options.send_timeout_ns = time_ns(value).ok_or(wrong)?;
            }
            (TCP, libc::TCP_FASTOPEN_CONNECT) if fast_open & CLIENT == 0 => {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            (TCP, libc::TCP_FASTOPEN_KEY) => {
                let key = value.try_into().map_err(|_| wrong)?;
                options.fast_open_key = Some(key);
            }
            (SOCKET, libc::SO_TIMESTAMPING) => socket.stamps_from = socket.written,
            (TCP, libc::TCP_NOTSENT_LOWAT) => {
                options.notsent_lowat = number(value).ok_or(wrong)? as u32;
            }
            _ => {}
        }
        if option == (TCP, libc::TCP_NODELAY)
            && let Some(id) = self.socket(fd)?.stream()
        {
            let on = number(value).ok_or(wrong)? != 0;
            self.stack.tcp_set_nodelay(id, on).map_err(errno)?;
        }
        self.apply(fd)?;
        Ok(0)
    }

    /// Applies the options to a socket's connection.
    pub(crate) fn apply(&mut self, fd: i32) -> Answer<()> {
        let now_ns = self.now_ns;
        let socket = self.socket(fd)?;
        let id = match socket.phase {
            SocketPhase::Stream(id) => id,
            SocketPhase::Listens(_) => {
                self.prepare(fd, false)?;
                return self.open_fast(fd);
            }
            SocketPhase::New(_) => return Ok(()),
        };
        let options = socket.options.clone();
        let stack = &mut self.stack;
        let on = |level, name| options.number(level, name) != 0;
        let done = stack
            .tcp_set_cork(id, on(TCP, libc::TCP_CORK))
            .and_then(|()| stack.tcp_set_send_buffer(id, options.send_buffer))
            .and_then(|()| {
                let set = stack.tcp_options(id).unwrap_or_default();
                let user_timeout = options.number(TCP, libc::TCP_USER_TIMEOUT);
                let user_timeout_ms = NonZeroU32::new(user_timeout.max(0) as u32);
                let set = TcpOptions {
                    user_timeout_ms,
                    ..set
                };
                stack.tcp_set_options(id, set)
            })
            .and_then(|()| match options.number(TCP, libc::TCP_SYNCNT) {
                0 => Ok(()),
                times => stack.tcp_set_syn_retries(id, times as u8),
            })
            .and_then(|()| {
                let idle = match options.number(TCP, libc::TCP_KEEPIDLE) {
                    0 => 7200,
                    seconds => seconds as u64,
                };
                let idle_ns = idle * 1_000_000_000;
                let after_ns = on(SOCKET, libc::SO_KEEPALIVE).then_some(idle_ns);
                stack.tcp_set_keep_alive(now_ns, id, after_ns)
            });
        done.map_err(errno)
    }

    /// Enables TCP Fast Open on a listener, if configured (`tcp_fastopen` in
    /// ip-sysctl).
    pub(crate) fn open_fast(&mut self, fd: i32) -> Answer<()> {
        let bits = self.settings.fast_open();
        let key = self.settings.fast_open_key();
        let socket = self.socket(fd)?;
        let SocketPhase::Listens(listener) = socket.phase else {
            return Ok(());
        };
        let options = &socket.options;
        let asked = options.number(TCP, libc::TCP_FASTOPEN);
        let pending_max = match bits & SERVER_WITHOUT_OPTION {
            0 => usize::try_from(asked).unwrap_or(0),
            _ => usize::try_from(asked).unwrap_or(0).max(options.backlog),
        };
        let server = FastOpenServer {
            pending_max,
            key: options.fast_open_key.unwrap_or(key),
            without_cookie: bits & SERVER_WITHOUT_COOKIE != 0,
        };
        let server = (bits & SERVER != 0 && pending_max > 0).then_some(server);
        self.stack
            .tcp_set_fast_open(listener, server)
            .map_err(errno)
    }

    fn get(&mut self, fd: i32, option: (i32, i32), room: usize) -> Answer<Vec<u8>> {
        let now_ns = self.now_ns;
        let lowat = self.settings.notsent_lowat();
        let socket = self.socket(fd)?;
        let (id, is_open) = (socket.stream(), socket.was_open);
        let word = |value: i32| Ok(value.to_ne_bytes().to_vec());
        match option {
            (SOCKET, libc::SO_ERROR) => {
                let error = self.pending(fd)?;
                word(error.map_or(0, |Errno(number)| number))
            }
            (SOCKET, libc::SO_SNDBUF) => word(socket.options.send_buffer as i32),
            (SOCKET, SO_MEMINFO) => Ok(vec![0; 4 * MEMINFO_VARS]),
            (TCP, libc::TCP_MAXSEG) => {
                let set = socket.options.number(TCP, libc::TCP_MAXSEG);
                let info = id.and_then(|id| self.stack.tcp_info(now_ns, id));
                match info.filter(|_| is_open) {
                    Some(info) => word(info.mss as i32),
                    None if set > 0 => word(set),
                    None => word(536),
                }
            }
            (TCP, libc::TCP_NOTSENT_LOWAT) => {
                let set = socket.options.notsent_lowat;
                let _ = lowat;
                word(set as i32)
            }
            (TCP, TCP_CC_INFO) => Ok(Vec::new()),
            (TCP, libc::TCP_INFO) => {
                let socket = Socket::socket_info(socket);
                let info = id.and_then(|id| self.stack.tcp_info(now_ns, id));
                let mut bytes = tcp_info::bytes(info.as_ref(), &socket);
                bytes.resize(room, 0);
                Ok(bytes)
            }
            _ => match socket.options.kept(option) {
                Some(value) => Ok(value.to_vec()),
                None => word(0),
            },
        }
    }

    /// The error of a connection, if it was not reported yet.
    fn pending(&mut self, fd: i32) -> Answer<Option<Errno>> {
        let socket = self.socket(fd)?;
        let (Some(id), None) = (socket.stream(), socket.reported) else {
            return Ok(None);
        };
        let now_ns = self.now_ns;
        let info = self.stack.tcp_info(now_ns, id);
        let error = info.and_then(|info| info.error);
        if error.is_some() {
            self.socket(fd)?.reported = error;
        }
        Ok(error.map(errno))
    }
}
