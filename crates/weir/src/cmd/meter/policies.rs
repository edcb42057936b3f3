//! Which policy a session has, and where the portal is.

use crate::error::{CliError, say};
use std::collections::HashMap;
use weir_link::net::Interface;
use weir_link::xdp::{Meter, supports_ndo_xmit};
use weir_meter::SessionInfo;
use weir_meter::config::Config;
use weir_meter::policy::Policy;

/// The policies of the configuration.
#[derive(Debug, Default)]
pub(super) struct Policies {
    by_name: HashMap<String, Policy>,
    default: Option<String>,
}

impl Policies {
    pub(super) fn new(config: &Config) -> Policies {
        let policies = config.policies.iter();
        Policies {
            by_name: policies
                .map(|policy| (policy.name.clone(), policy.clone()))
                .collect(),
            default: config.default_policy.clone(),
        }
    }

    /// Whether there is a policy of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The policy of a session: the one that it names, else the default. A session that names one
    /// which the configuration has no more has the default.
    pub(super) fn of(&self, info: &SessionInfo) -> Option<&Policy> {
        let named = info.policy.as_ref().and_then(|name| self.by_name.get(name));
        named.or_else(|| self.by_name.get(self.default.as_ref()?))
    }
}

/// Has frames for the portal go out on its interface.
pub(super) fn set_portal(config: &Config, meter: &Meter) -> Result<(), CliError> {
    let index = match &config.portal {
        None => None,
        Some(name) => Some(Interface::named(name).map_err(CliError::run)?.index),
    };
    meter.set_portal(index);
    Ok(())
}

/// Says it if the driver of the portal's interface does not take frames from XDP programs.
pub(super) fn warn_of_portal(config: &Config) {
    let Some(name) = &config.portal else { return };
    let takes = Interface::named(name).is_ok_and(|interface| {
        // An older kernel does not say.
        supports_ndo_xmit(interface.index).unwrap_or(true)
    });
    if !takes {
        say(&format!(
            "weir: {name} does not accept redirected frames, so frames for the portal are lost; if it \
             is a veth, `ethtool -K PEER gro on` for its other end"
        ));
    }
}
