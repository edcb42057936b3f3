//! A gate's descriptors, by which another process uses the same gate.

use super::shared_page::{LINKS_MAX, SharedPage};
use super::{Gate, GateError, GateLink};
use crate::bpf::{Attachment, Hook, Map};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// A gate's descriptors, to be passed to another process.
#[derive(Debug)]
pub struct GateFds<F> {
    /// The page shared with the programs.
    pub page: F,
    /// The XSKMAP.
    pub sockets: F,
    /// The map of joined links.
    pub peers: F,
}

/// The descriptors of one link of a gate.
#[derive(Debug)]
pub struct LinkFds<F> {
    /// The interface's number.
    pub ifindex: u32,
    /// The XDP hook in use.
    pub hook: Hook,
    /// The XDP program.
    pub xdp: F,
    /// The tc program, which joins links for the bypass.
    pub tc: Option<F>,
    /// The socket that keeps the interface promiscuous.
    pub promiscuous: Option<F>,
}

impl Gate {
    /// The gate's descriptors, to be passed on; those of its links are in
    /// [`link_fds`](Self::link_fds).
    pub fn fds(&self) -> GateFds<BorrowedFd<'_>> {
        GateFds {
            page: self.page_map.as_fd(),
            sockets: self.sockets.as_fd(),
            peers: self.peers.as_fd(),
        }
    }

    /// The descriptors of a link; `None` if there is no such link.
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

    /// The gate of another process, still without its links.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn from_fds(gate_fds: GateFds<OwnedFd>) -> Result<Gate, GateError> {
        let page_map = Map::from_fd(gate_fds.page)?;
        let page = Rc::new(SharedPage::of(&page_map)?);
        if !page.is_current() {
            return Err(GateError::OtherVersion);
        }
        Ok(Gate {
            page,
            page_map,
            sockets: Map::from_fd(gate_fds.sockets)?,
            peers: Map::from_fd(gate_fds.peers)?,
            links: Vec::new(),
            pins: None,
            adopted: false,
            host: None,
            meters: Vec::new(),
            was_metered: false,
            is_joined: true,
            still_promiscuous: None,
        })
    }

    /// Adds a link of the other process, with the same number.
    ///
    /// # Errors
    /// If the number is too large.
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
