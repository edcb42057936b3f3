//! The interface of an attachment, in the calling thread's network namespace or in another one.
//!
//! The kernel gives an attachment's interface as a number, without the namespace that has the number. A moved
//! interface keeps its program. So the interface is the one of that number, in any namespace, whose program has
//! the attachment's program id, which is unique on the machine. rtnetlink(7) could look into other namespaces by
//! `IFLA_TARGET_NETNSID`, but not change an interface there.

use super::GateError;
use crate::bpf::{Attachment, is_missing};
use crate::net::{self, Interface, InterfaceError};
use crate::xdp::xsk::promiscuous;
use std::io;

/// The interface that a program is attached to, in the calling thread's
/// namespace. An interface that was moved to another namespace keeps its
/// number, which another interface may have here.
pub(super) fn interface_here(xdp: &Attachment) -> Result<Option<Interface>, GateError> {
    let info = xdp.info()?;
    match info.ifindex {
        Some(ifindex) => with_program(ifindex, info.program_id),
        None => Ok(None),
    }
}

fn with_program(ifindex: u32, program_id: u32) -> Result<Option<Interface>, GateError> {
    match Interface::numbered(ifindex) {
        Ok(interface) => {
            let program = interface.xdp.and_then(|xdp| xdp.program_id);
            Ok((program == Some(program_id)).then_some(interface))
        }
        Err(InterfaceError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Clears the promiscuous flag of the interface that a program is attached to, wherever the interface is; one
/// that is gone needs nothing. The program must still be attached.
pub(super) fn clear_promiscuous(xdp: &Attachment) -> Result<(), GateError> {
    let info = xdp.info()?;
    let Some(ifindex) = info.ifindex else {
        return Ok(());
    };
    let clear = |interface: Interface| promiscuous::set(&interface.name, false).map(drop);
    let cleared = match with_program(ifindex, info.program_id)? {
        Some(interface) => clear(interface),
        None => {
            let searched = net::search(|| {
                if is_missing(ifindex) {
                    return Ok(None);
                }
                let there = with_program(ifindex, info.program_id).map_err(io::Error::other)?;
                Ok(there.map(clear))
            });
            let searched = searched.map_err(failed)?;
            match searched.found {
                Some(cleared) => cleared,
                // The interface went away meanwhile.
                None if xdp.info()?.ifindex.is_none() => Ok(()),
                None => {
                    return Err(GateError::StillPromiscuous {
                        ifindex,
                        source: searched.refused,
                    });
                }
            }
        }
    };
    cleared.map_err(failed)
}

fn failed(source: io::Error) -> GateError {
    GateError::System {
        what: "receive only frames to the interface again",
        source,
    }
}
