//! `weir pup`: the PARC Universal Packet and its protocols.

mod echo;
mod ftp;
mod gateway;
mod link;
mod serve;
mod session;
mod telnet;

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use clap::Subcommand;

/// Talk Pup: echo, FTP and Telnet of the Xerox Alto's network
///
/// Pup (1980) on a port, as EtherType 0x0200: as root, or as any user with a grant that has
/// `send = { ethertypes = [0x0200] }` in the broker's policy; or over UDP, as Alto emulators and
/// their file server speak it. See docs/how-to/protocols-of-1987.md.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Links:
  port:IF         an Ethernet interface
  udp:ADDR[:PORT] UDP: frames go to this address, a broadcast address or a host's, and to this UDP
                  port (42424), at which they are received too

Addresses are NET#HOST#, in octal: 1#2#. A file is its server's address and its path: 1#2#a/b.txt.

Examples:
  weir pup serve /srv/files --own 1#2# --link port:eth0
  weir pup echo 1#2# --link port:eth0
  weir pup list 1#2# --link port:eth0
  weir pup get 1#2#hello.txt --link port:eth0
  weir pup put hello.txt 1#2#hello.txt --link udp:192.0.2.255
  weir pup telnet 1#2# --link port:eth0
  weir pup gateway 1#1#@port:eth0 2#1#@udp:192.0.2.255

Exit status: 0, of a server after a signal too; 1 if the link cannot be used, no host answers, or a
file cannot be read or stored; 2 if an option is wrong, or the policy refuses; a client's 129, 130
or 143 after SIGHUP, SIGINT or SIGTERM.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    Echo(echo::Args),
    List(ftp::ListArgs),
    Get(ftp::GetArgs),
    Put(ftp::PutArgs),
    Telnet(telnet::Args),
    Serve(serve::Args),
    Gateway(gateway::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    match &args.action {
        Action::Echo(args) => echo::run(args, &stop),
        Action::List(args) => ftp::list(args, &stop),
        Action::Get(args) => ftp::get(args, &stop),
        Action::Put(args) => ftp::put(args, &stop),
        Action::Telnet(args) => telnet::run(args, &stop),
        Action::Serve(args) => serve::run(args, &stop),
        Action::Gateway(args) => gateway::run(args, &stop),
    }
}
