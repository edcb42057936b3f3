//! Opens ports on live interfaces for commands.

use crate::error::CliError;
use crate::filterset::compile::Compiler;
use std::path::Path;
use weir_broker::protocol::{ErrorKind, Event};
use weir_broker::{Builder, Port, PortError};
use weir_filter::lang::Language;
use weir_link::bpf::program_info;
use weir_link::net::Interface;
use weir_wire::LinkType;

/// A port with an expression as its filter; through the broker at `socket` if
/// given.
pub(crate) fn port(
    interface: &str,
    filter: &str,
    socket: Option<&Path>,
) -> Result<Builder, CliError> {
    // weir's own compiler shows the position of an error.
    Compiler::default()
        .compile(Language::Expr, filter.as_bytes(), LinkType::EN10MB)
        .map_err(CliError::refused)?;
    let builder = Port::on(interface).filter(filter).map_err(failure)?;
    Ok(match socket {
        Some(socket) => builder.broker(socket),
        None => builder,
    })
}

/// The exit status for an error of the broker.
pub(crate) fn failure(error: PortError) -> CliError {
    match &error {
        PortError::Filter(_) => CliError::refused(error),
        PortError::Refused(refusal)
            if matches!(
                refusal.kind,
                ErrorKind::Filter | ErrorKind::Denied | ErrorKind::Request
            ) =>
        {
            CliError::refused(error)
        }
        _ => CliError::run(error),
    }
}

/// The events of a port since the last call; none while no broker runs, without which the port goes on.
pub(crate) fn events(port: &mut Port) -> Result<Vec<Event>, CliError> {
    match port.events() {
        Err(error) if error.is_end_of_port() => Err(failure(error)),
        events => Ok(events.unwrap_or_default()),
    }
}

/// A note on the XDP program that may take an interface's frames before this port; `None` if the kernel
/// reports none, or one that belongs to the port itself.
pub(crate) fn earlier_program(interface: &str, port: &mut Port) -> Option<String> {
    // Before and after the look: the port may be moved to XDP, or back, for the sake of another port.
    let mut is_at_tc = || {
        let attach = port.status().ok().and_then(|status| status.attach);
        attach.as_deref().unwrap_or(port.attached()) == "tc"
    };
    if !is_at_tc() {
        return None;
    }
    let id = Interface::named(interface).ok()?.xdp?.program_id?;
    if !is_at_tc() {
        return None;
    }
    let program = match program_info(id) {
        Ok(facts) if !facts.name.is_empty() => format!("the program `{}`", facts.name),
        _ => format!("program {id}"),
    };
    Some(format!(
        "{interface} has {program} at XDP, before this port, which does not get the frames that the \
         program takes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_broker::protocol::Attach;
    use weir_lab::net::Lab;
    use weir_lab::testenv;
    use weir_link::bpf::Hook;
    use weir_link::live::Dispatcher;

    #[test]
    fn a_program_before_a_port_is_named_unless_the_port_has_moved_there() {
        if !testenv::root() {
            return;
        }
        let lab = Lab::new();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (device, _) = lab.link(&a, &b).connect().unwrap();
        a.run(|| {
            let name = device.name();
            let copies = || Port::on(name).filter("udp").unwrap().in_process();
            let mut port = copies().open().unwrap();
            assert_eq!(port.attached(), "tc");
            assert_eq!(earlier_program(name, &mut port), None);
            let other = Dispatcher::attach(device.index(), Hook::XdpGeneric, None).unwrap();
            let note = earlier_program(name, &mut port).unwrap();
            let said = format!("{name} has the program `weir_dispatch` at XDP, before this port");
            assert!(note.starts_with(&said), "{note}");
            drop(other);
            let second = copies().take(true).attach(Attach::XdpGeneric).open();
            let second = second.unwrap();
            assert_eq!(second.attached(), "xdp-generic");
            assert_eq!(port.attached(), "tc", "as it was opened");
            assert_eq!(earlier_program(name, &mut port), None);
        });
    }
}
