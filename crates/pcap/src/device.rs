//! Names of devices: `eth0`, or `weir:eth0` with options as `weir:eth0?queue=8MiB&fanout=4`.

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use weir_broker::{Bytes, Fanout};

/// The prefix of a name that is weir's alone.
const SCHEME: &str = "weir:";

/// A device that a port is opened on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) interface: String,
    pub(crate) queue: Option<Bytes>,
    pub(crate) priority: Option<u16>,
    pub(crate) fanout: Option<Fanout>,
    /// Whether neither weir nor the system's library has it.
    pub(crate) is_missing: bool,
}

/// Whether this network namespace has an interface of this name.
pub(crate) fn is_interface(name: &str) -> bool {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    any.is_ok_and(|any| name_to_index(any, name).is_ok())
}

impl Device {
    /// The device of this name; `None` if it is not weir's, but perhaps one of the system's
    /// library, such as `usbmon0`.
    ///
    /// # Errors
    /// If it is weir's, and cannot be used so: the reason.
    pub(crate) fn parse(name: &str) -> Option<Result<Device, String>> {
        if let Some(rest) = name.strip_prefix(SCHEME) {
            return Some(Device::with_options(name, rest));
        }
        if name.is_empty() || name == "any" {
            return Some(Err(
                "weir has no device `any`, since a port is of one interface: name one \
                 (-i eth0), or run the program without weir"
                    .to_owned(),
            ));
        }
        is_interface(name).then(|| {
            Ok(Device {
                interface: name.to_owned(),
                queue: None,
                priority: None,
                fanout: None,
                is_missing: false,
            })
        })
    }

    /// A device that cannot be activated. libpcap's programs expect it to be created: tcpdump takes
    /// `1` for the first interface once there is none of that name.
    pub(crate) fn missing(name: &str) -> Device {
        Device {
            interface: name.to_owned(),
            queue: None,
            priority: None,
            fanout: None,
            is_missing: true,
        }
    }

    fn with_options(name: &str, rest: &str) -> Result<Device, String> {
        let (interface, options) = rest.split_once('?').unwrap_or((rest, ""));
        if interface.is_empty() {
            return Err(format!("`{name}` names no interface: write weir:eth0"));
        }
        let mut device = Device {
            interface: interface.to_owned(),
            queue: None,
            priority: None,
            fanout: None,
            is_missing: false,
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            match key {
                "queue" => {
                    let bytes = value.parse::<Bytes>();
                    device.queue =
                        Some(bytes.map_err(|error| format!("queue in `{name}`: {error}"))?);
                }
                "priority" => {
                    let number = value.parse();
                    device.priority = Some(number.map_err(|error| {
                        format!("priority `{value}` in `{name}`: {error}; give 0 to 65535")
                    })?);
                }
                "fanout" => {
                    let fanout = value.parse::<Fanout>();
                    device.fanout =
                        Some(fanout.map_err(|error| format!("fanout in `{name}`: {error}"))?);
                }
                _ => {
                    return Err(format!(
                        "`{key}` in `{name}` is no option: there are queue, priority and fanout"
                    ));
                }
            }
        }
        Ok(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> Result<Device, String> {
        Device::parse(name).expect("weir's")
    }

    #[test]
    fn interfaces_are_weirs_and_other_devices_the_systems() {
        assert_eq!(parsed("lo").unwrap().interface, "lo");
        for other in ["usbmon0", "bluetooth-monitor", "nflog", "../lo"] {
            assert_eq!(Device::parse(other), None, "{other}");
        }
        assert!(parsed("any").unwrap_err().contains("one interface"));
    }

    #[test]
    fn options_are_read_and_wrong_ones_named() {
        let device = parsed("weir:eth0?queue=8MiB&priority=3").unwrap();
        assert_eq!(device.interface, "eth0");
        assert_eq!(device.queue, Some(Bytes(8 << 20)));
        assert_eq!(device.priority, Some(3));
        assert_eq!(parsed("weir:eth0").unwrap().queue, None);
        for fanout in ["4", "0/4", "workers"] {
            let device = parsed(&format!("weir:eth0?fanout={fanout}")).unwrap();
            assert_eq!(device.fanout, fanout.parse().ok());
        }
        for (name, said) in [
            ("weir:", "names no interface"),
            ("weir:eth0?fanout=4/4", "`4/4` is no share"),
            ("weir:eth0?fanout=0", "`0` is no group"),
            ("weir:eth0?fanout=", "is no group"),
            ("weir:eth0?queue=much", "queue in"),
            ("weir:eth0?priority=-1", "priority `-1`"),
            ("weir:eth0?speed=9", "`speed`"),
        ] {
            let error = parsed(name).unwrap_err();
            assert!(error.contains(said), "{name}: {error}");
        }
    }
}
