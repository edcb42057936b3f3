//! Frames in memory between two hosts, of our stack, of smoltcp and of lwIP.

#![allow(dead_code, reason = "each bench uses its part")]

pub(crate) mod lwip;

use smoltcp::iface::{Config as OtherConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as OtherInstant;
use smoltcp::wire::{EthernetAddress, IpCidr};
use std::collections::VecDeque;
use weir_stack::TxSink;

/// Bytes of each buffer.
pub(crate) const BUFFER: usize = 512 << 10;

/// Frames from one host to the other; spent ones are used again.
#[derive(Default)]
pub(crate) struct Wire {
    pub(crate) frames: VecDeque<Vec<u8>>,
    pub(crate) spare: Vec<Vec<u8>>,
}

impl Wire {
    pub(crate) fn frame(&mut self, len: usize) -> Vec<u8> {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.resize(len, 0);
        frame
    }
}

pub(crate) struct Out<'a> {
    pub(crate) wire: &'a mut Wire,
    pub(crate) frame: Vec<u8>,
}

impl TxSink for Out<'_> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame = self.wire.frame(len);
        Some(&mut self.frame)
    }

    fn submit(&mut self) {
        self.wire.frames.push_back(std::mem::take(&mut self.frame));
    }
}

pub(crate) struct Ends<'a> {
    pub(crate) from: &'a mut Wire,
    pub(crate) to: &'a mut Wire,
}

pub(crate) struct Rx<'a>(Vec<u8>, &'a mut Vec<Vec<u8>>);
pub(crate) struct Tx<'a>(&'a mut Wire);

impl RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let done = f(&self.0);
        self.1.push(self.0);
        done
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = self.0.frame(len);
        let done = f(&mut frame);
        self.0.frames.push_back(frame);
        done
    }
}

impl Device for Ends<'_> {
    type RxToken<'b>
        = Rx<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Tx<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: OtherInstant) -> Option<(Rx<'_>, Tx<'_>)> {
        let frame = self.from.frames.pop_front()?;
        Some((Rx(frame, &mut self.from.spare), Tx(self.to)))
    }

    fn transmit(&mut self, _: OtherInstant) -> Option<Tx<'_>> {
        Some(Tx(self.to))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

pub(crate) struct Other {
    pub(crate) interface: Interface,
    pub(crate) sockets: SocketSet<'static>,
    pub(crate) socket: SocketHandle,
}

impl Other {
    pub(crate) fn new(number: u8, ends: &mut Ends<'_>) -> Other {
        let config = OtherConfig::new(EthernetAddress([2, 0, 0, 0, 0, number]).into());
        let mut interface = Interface::new(config, ends, OtherInstant::ZERO);
        let address: IpCidr = format!("192.0.2.{number}/24").parse().unwrap();
        interface.update_ip_addrs(|addresses| addresses.push(address).unwrap());
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Other {
            interface,
            sockets,
            socket,
        }
    }

    pub(crate) fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut::<tcp::Socket<'_>>(self.socket)
    }
}
