//! Ports on live interfaces, as commands open them.

use crate::error::CliError;
use crate::filterset::compile::Compiler;
use std::path::Path;
use weir_broker::protocol::ErrorKind;
use weir_broker::{Builder, Port, PortError};
use weir_filter::lang::Language;
use weir_wire::LinkType;

/// A port for the frames that an expression accepts; through the broker at
/// `socket` if one is given.
pub(crate) fn port(
    interface: &str,
    filter: &str,
    socket: Option<&Path>,
) -> Result<Builder, CliError> {
    // Our own compiler shows where a mistake is.
    Compiler::default()
        .compile(Language::Expr, filter.as_bytes(), LinkType::EN10MB)
        .map_err(CliError::refused)?;
    let builder = Port::on(interface).filter(filter).map_err(failure)?;
    Ok(match socket {
        Some(socket) => builder.broker(socket),
        None => builder,
    })
}

/// What a refusal or a failure of the broker's means for the exit status.
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
