//! A capture of weir's: its settings, and once it is activated a port.

use crate::device::Device;
use crate::error::{ErrorText, Failure};
use crate::live::{Active, Live, lock};
use crate::types::{
    ERROR, ERROR_ACTIVATED, ERROR_NO_SUCH_DEVICE, ERROR_NOT_ACTIVATED, ERROR_RFMON_NOTSUP,
    TSTAMP_PRECISION_MICRO,
};
use libc::c_int;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use weir_broker::engine::limits;
use weir_broker::protocol::ErrorKind;
use weir_broker::{Bytes, Port, PortError};

/// The variable of the environment that names the broker's socket, unless it is the default one.
pub const SOCKET_VARIABLE: &str = "WEIR_SOCKET";

/// libpcap's `MAXIMUM_SNAPLEN`, which stands for all.
const SNAPLEN_MAX: c_int = 262_144;

/// The settings before activation.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) snaplen: c_int,
    pub(crate) milliseconds: c_int,
    pub(crate) buffer: c_int,
    pub(crate) precision: c_int,
    pub(crate) immediate: bool,
    pub(crate) nonblock: bool,
    pub(crate) rfmon: bool,
}

#[derive(Debug)]
pub(crate) struct Capture {
    device: Device,
    settings: Mutex<Settings>,
    live: OnceLock<Live>,
    pub(crate) error: ErrorText,
}

impl Capture {
    pub(crate) fn new(device: Device) -> Capture {
        Capture {
            device,
            settings: Mutex::new(Settings {
                snaplen: SNAPLEN_MAX,
                milliseconds: 0,
                buffer: 0,
                precision: TSTAMP_PRECISION_MICRO,
                immediate: false,
                nonblock: false,
                rfmon: false,
            }),
            live: OnceLock::new(),
            error: ErrorText::new(),
        }
    }

    /// The active capture, or the status for one that is not.
    pub(crate) fn live(&self) -> Result<&Live, c_int> {
        self.live.get().ok_or_else(|| {
            self.error
                .set("the capture is not activated: call pcap_activate first");
            ERROR_NOT_ACTIVATED
        })
    }

    /// Changes a setting of a capture that is not active.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) -> c_int {
        if self.live.get().is_some() {
            self.error
                .set("the capture is activated: set this before pcap_activate");
            return ERROR_ACTIVATED;
        }
        change(&mut lock(&self.settings));
        0
    }

    pub(crate) fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }

    /// Keeps the text of a failure; returns its status.
    pub(crate) fn failed(&self, failure: &Failure) -> c_int {
        self.error.set(&failure.text);
        failure.status
    }

    /// Opens the port. Returns 0, or the status of a failure. If the grant's filter hides frames,
    /// standard error says so: `PCAP_WARNING` would end programs that take it for a failure, such
    /// as arping.
    pub(crate) fn activate(&self) -> c_int {
        if self.live.get().is_some() {
            self.error.set("the capture is activated already");
            return ERROR_ACTIVATED;
        }
        match self.open() {
            Ok(live) => {
                if let Some(text) = live.active.within.as_deref().map(narrowed) {
                    // Without standard error the capture goes on.
                    let _ = writeln!(std::io::stderr(), "weir: WARNING: {text}");
                }
                let _ = self.live.set(live);
                0
            }
            Err(failure) => self.failed(&failure),
        }
    }

    fn open(&self) -> Result<Live, Failure> {
        let settings = self.settings();
        if self.device.is_missing {
            return Err(Failure {
                status: ERROR_NO_SUCH_DEVICE,
                text: format!(
                    "there is no interface {} in this network namespace: `ip link` lists them",
                    self.device.interface
                ),
            });
        }
        if settings.rfmon {
            return Err(Failure {
                status: ERROR_RFMON_NOTSUP,
                text: "weir has no monitor mode: run the program without weir".to_owned(),
            });
        }
        let snaplen = match settings.snaplen {
            given @ 1..SNAPLEN_MAX => given,
            _ => SNAPLEN_MAX,
        };
        let name = &self.device.interface;
        let mut port = Port::on(name).timestamps(true);
        if let Some(socket) = std::env::var_os(SOCKET_VARIABLE) {
            port = port.broker(Path::new(&socket));
        }
        if snaplen < SNAPLEN_MAX {
            port = port.snap_len(snaplen.unsigned_abs());
        }
        port = match (self.device.queue, u64::try_from(settings.buffer)) {
            (Some(queue), _) => port.queue(queue),
            // As libpcap, which makes a smaller ring where the kernel has no memory for this one.
            (None, Ok(bytes @ 1..)) => {
                let bytes = bytes.clamp(limits::RING_MIN.0, limits::RING_MAX.0);
                port.queue_up_to(Bytes(bytes))
            }
            (None, _) => port,
        };
        port = port.priority(self.device.priority.unwrap_or(0));
        if let Some(fanout) = &self.device.fanout {
            port = port.fanout(fanout.clone());
        }
        let mut port = port.open().map_err(|error| refusal(name, error))?;
        port.set_latency_mode(settings.immediate);
        let active = Active {
            interface: name.clone(),
            linktype: linktype(port.linktype().0),
            snaplen,
            queue: c_int::try_from(port.queue().0).unwrap_or(c_int::MAX),
            within: port.within().map(str::to_owned),
            precision: settings.precision,
            timeout: u64::try_from(settings.milliseconds)
                .ok()
                .filter(|time| *time > 0)
                .map(Duration::from_millis),
            immediate: settings.immediate,
        };
        Live::new(port, active, settings.nonblock)
    }
}

/// The warning of a capture whose frames the policy limits.
fn narrowed(filter: &str) -> String {
    // The filter comes last: libpcap's buffers for texts may cut it.
    format!("frames outside of the policy's grant are not captured; the grant is for `{filter}`")
}

/// A port that was not opened: the reason, and what to do.
fn refusal(interface: &str, error: PortError) -> Failure {
    match &error {
        PortError::Refused(refusal) => match refusal.kind {
            ErrorKind::Denied => {
                let failure = Failure::from(error);
                Failure {
                    text: format!(
                        "{}. weir's broker opens ports by its policy, in which a grant for \
                         {interface} can be added or changed",
                        failure.text
                    ),
                    ..failure
                }
            }
            ErrorKind::Interface => Failure {
                status: ERROR_NO_SUCH_DEVICE,
                text: error.to_string(),
            },
            _ => error.into(),
        },
        _ => Failure {
            status: ERROR,
            text: error.to_string(),
        },
    }
}

/// The `DLT_` number of a `LINKTYPE_` number; Linux' differ in one of weir's.
fn linktype(linktype: u32) -> c_int {
    const LINKTYPE_RAW: u32 = 101;
    const DLT_RAW: c_int = 12;
    match linktype {
        LINKTYPE_RAW => DLT_RAW,
        other => c_int::try_from(other).unwrap_or(c_int::MAX),
    }
}
