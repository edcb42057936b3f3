//! A gate's descriptors, by which another process has the same gate.

use super::shared_page::{LINKS_MAX, SharedPage};
use super::{Gate, GateError, GateLink};
use crate::bpf::{Attachment, Hook, Map};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// A gate's descriptors, for another process to have the same gate.
#[derive(Debug)]
pub struct GateFds<F> {
    /// The page that is shared with the programs.
    pub state: F,
    /// The sockets that frames go to.
    pub sockets: F,
    /// Which link is joined to which.
    pub peers: F,
}

/// The descriptors of one link of a gate.
#[derive(Debug)]
pub struct LinkFds<F> {
    /// The interface's number.
    pub ifindex: u32,
    /// Where frames are taken.
    pub hook: Hook,
    /// The program that takes them.
    pub xdp: F,
    /// The program that joins links for the bypass.
    pub tc: Option<F>,
    /// What has frames to any station received.
    pub promiscuous: Option<F>,
}

impl Gate {
    /// The descriptors of the gate, to be passed on; those of its links are
    /// [theirs](Self::link_fds).
    pub fn fds(&self) -> GateFds<BorrowedFd<'_>> {
        GateFds {
            state: self.state_map.as_fd(),
            sockets: self.sockets.as_fd(),
            peers: self.peers.as_fd(),
        }
    }

    /// The descriptors of a link.
    pub fn link_fds(&self, link: usize) -> Option<LinkFds<BorrowedFd<'_>>> {
        let found = self.links.get(link)?.as_ref()?;
        Some(LinkFds {
            ifindex: found.ifindex,
            hook: found.hook,
            xdp: found.xdp.as_fd(),
            tc: found.tc.as_ref().map(AsFd::as_fd),
            promiscuous: found.promiscuous.as_ref().map(AsFd::as_fd),
        })
    }

    /// The gate of another process, without its links.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn from_fds(gate_fds: GateFds<OwnedFd>) -> Result<Gate, GateError> {
        let state_map = Map::from_fd(gate_fds.state)?;
        let state = Rc::new(SharedPage::of(&state_map)?);
        if !state.is_current() {
            return Err(GateError::OtherVersion);
        }
        Ok(Gate {
            state,
            state_map,
            sockets: Map::from_fd(gate_fds.sockets)?,
            peers: Map::from_fd(gate_fds.peers)?,
            links: Vec::new(),
            pins: None,
            adopted: false,
            host: None,
            meters: Vec::new(),
        })
    }

    /// Has a link of the other process, under its number.
    ///
    /// # Errors
    /// For a number that is too great.
    pub fn add_fds(&mut self, link: usize, link_fds: LinkFds<OwnedFd>) -> Result<(), GateError> {
        if link >= LINKS_MAX as usize {
            let what = format!("link {link}");
            return Err(GateError::Links { what });
        }
        self.store_link(
            link,
            GateLink {
                ifindex: link_fds.ifindex,
                xdp: Attachment::from_fd(link_fds.xdp),
                hook: link_fds.hook,
                tc: link_fds.tc.map(Attachment::from_fd),
                promiscuous: link_fds.promiscuous,
            },
        );
        Ok(())
    }
}
