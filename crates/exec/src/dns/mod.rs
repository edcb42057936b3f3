//! Names through weir: the C library's resolver asks forwarders of this library instead of the servers
//! of resolv.conf(5).
//!
//! The C library opens its resolver's sockets by calls within itself, which no other library can
//! define. Its servers, however, are public (resolver(3), `_res`): this module has them be loopback
//! addresses of the kernel, at which the host's process listens. A forwarder passes each query on by a
//! socket of weir, and the answer back. The order of sources, search domains, the hosts file, time-outs
//! and retries stay the C library's.
//!
//! An own `getaddrinfo` would have to repeat all of that; another resolv.conf in a mount namespace needs
//! privileges, and a server at port 53.
//!
//! ```text
//!  program ─► getaddrinfo ─► C library ─► 127.0.0.1:PORT ─► forwarder ─► weir's UDP or TCP ─► server
//!              (calls::names: _res)        of the kernel     (one for each server)
//! ```

pub(crate) mod forwarder;

use crate::host::{self, Found};
use crate::relay::guest;
use crate::{real, signals};
use libc::{c_char, c_int, c_ulong, c_void};
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Once;
use weir_socket::Net;

/// Most servers of the C library's resolver (`MAXNS`).
pub(crate) const SERVERS_MAX: usize = 3;

/// The transport ports of forwarders, one for each server; 0 behind the last.
pub(crate) type Ports = [u16; SERVERS_MAX];

/// The beginning of `struct __res_state` of resolv.h, which no version of the GNU C library has changed.
#[repr(C)]
pub(crate) struct State {
    retrans: c_int,
    retry: c_int,
    options: c_ulong,
    count: c_int,
    servers: [libc::sockaddr_in; SERVERS_MAX],
}

/// The state has been initialised (`RES_INIT`).
const INITIALISED: c_ulong = 1;
/// The servers' word that an answer is authentic is passed on (`RES_TRUSTAD`): said of those of
/// resolv.conf, not of these.
const TRUSTS: c_ulong = 0x0400_0000;

unsafe extern "C" {
    /// The thread's state.
    fn __res_state() -> *mut State;
}

thread_local! {
    /// What this thread's state was given last; 0 for nothing.
    static GIVEN: Cell<Ports> = const { Cell::new([0; SERVERS_MAX]) };
}

/// The servers that names are looked up at: those of the options, or else those that DHCP servers and
/// routers have named.
pub(crate) fn servers(net: &Net) -> Vec<IpAddr> {
    let Some(settings) = host::settings() else {
        return Vec::new();
    };
    let mut servers = settings.name_servers();
    if servers.is_empty() {
        servers = net.with_stack(|stack| stack.resolvers().collect());
    }
    servers.truncate(SERVERS_MAX);
    servers
}

/// Where no other user's process can listen, and none of weir's does: look-ups fail at once.
const NOWHERE: Ports = [1, 0, 0];

/// The forwarders' ports; `None` if names are looked up by the kernel's sockets. If there should be
/// forwarders and are none, look-ups fail: they must not go to other servers.
fn ports() -> Option<Ports> {
    let settings = host::settings()?;
    if !settings.has_name_servers() {
        return None;
    }
    let ports = match host::host() {
        Ok(Found::Own(net)) => forwarder::ports(&net),
        Ok(Found::Other) => guest::forwarders(),
        // A message has said why.
        Err(_) => return Some(NOWHERE),
    };
    match ports {
        Ok(ports) => (ports[0] != 0).then_some(ports),
        Err(number) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                let error = std::io::Error::from_raw_os_error(number);
                host::say(&format!("names cannot be looked up: {error}"));
            });
            Some(NOWHERE)
        }
    }
}

/// Has the C library look up hosts in the file and by servers alone: other sources, and the daemon that
/// caches names, would ask by the kernel.
fn choose_sources() {
    type Configure = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let name = c"__nss_configure_lookup";
        // SAFETY: the name is NUL-terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if !found.is_null() {
            // SAFETY: the function of nss.h has this type, and copies what it keeps.
            unsafe {
                let configure = std::mem::transmute::<*mut c_void, Configure>(found);
                configure(c"hosts".as_ptr(), c"files dns".as_ptr());
            }
        }
    });
}

/// Gives the thread's resolver the forwarders, unless the application has changed the servers that it
/// was given before.
pub(crate) fn prepare() {
    let _inside = signals::enter();
    let Some(ports) = ports() else {
        return;
    };
    choose_sources();
    // SAFETY: the C library's state is valid in its thread.
    let state = unsafe { &mut *__res_state() };
    let given = GIVEN.get();
    if state.options & INITIALISED == 0 {
        // SAFETY: the call takes nothing.
        if unsafe { real::__res_init() } != 0 {
            return;
        }
    } else if given[0] != 0 && now(state) != Some(given) {
        return;
    }
    give(state, ports);
    GIVEN.set(ports);
}

/// The forwarders that a state has; `None` if it has other servers.
fn now(state: &State) -> Option<Ports> {
    let mut ports = [0; SERVERS_MAX];
    let count = usize::try_from(state.count).ok()?;
    for (port, server) in ports.iter_mut().zip(state.servers.get(..count)?) {
        let is_loopback = server.sin_addr.s_addr == LOOPBACK.to_be();
        *port = is_loopback.then_some(u16::from_be(server.sin_port))?;
    }
    Some(ports)
}

/// `INADDR_LOOPBACK`.
const LOOPBACK: u32 = 0x7f00_0001;

fn give(state: &mut State, ports: Ports) {
    let used = ports.iter().filter(|port| **port != 0);
    state.count = used.count() as c_int;
    state.options &= !TRUSTS;
    for (server, port) in state.servers.iter_mut().zip(ports) {
        server.sin_family = if port == 0 { 0 } else { libc::AF_INET as u16 };
        server.sin_port = port.to_be();
        server.sin_addr.s_addr = LOOPBACK.to_be();
    }
}

/// Gives a state that was just initialised the forwarders.
///
/// # Safety
/// The state is a `struct __res_state`.
pub(crate) unsafe fn give_to(state: *mut c_void) {
    let _inside = signals::enter();
    if let Some(ports) = ports() {
        choose_sources();
        // SAFETY: the caller's promise.
        give(unsafe { &mut *state.cast::<State>() }, ports);
    }
}

/// As [`prepare`], after the application has initialised the thread's state again.
pub(crate) fn prepare_anew() {
    GIVEN.set([0; SERVERS_MAX]);
    prepare();
}
