//! Slots of ports that are closed while the kernel refuses a change.

use super::*;
use crate::Bytes;
use crate::compile::{Compiler, Source};
use crate::engine::Backend;
use crate::engine::kernel::KernelBackend;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use weir_demux::Target;
use weir_lab::net::{Device, Lab};
use weir_lab::testenv;
use weir_lab::wait::until;
use weir_wire::LinkType;

const QUEUE: Queue = Queue {
    ring: Bytes(4096),
    snap_len: 0,
    timestamps: false,
};

impl KernelDemux {
    /// A slot with a ring.
    fn slot(&mut self) -> u32 {
        self.reserve(1, &QUEUE);
        let mut found = None;
        until("a ring", || {
            found = self.reserved().pop();
            found.is_some()
        });
        found.unwrap().1.unwrap().slot
    }

    fn bind_slot(&mut self, slot: u32, filter: &str) -> Result<BindingId, Refusal> {
        let filter = Compiler::for_linktype(LinkType::EN10MB).filter(&Source::expr(filter));
        self.bind(Binding {
            filter: filter.unwrap(),
            priority: 1,
            copy: true,
            target: Target::Port(slot),
            tag: 0,
        })
    }

    /// Waits until a slot may be another port's.
    fn wait_free(&mut self, slot: u32) {
        until("a free slot", || {
            self.take_in();
            self.free.contains(&slot)
        });
    }
}

/// Runs a function with a host's device and its demultiplexer, if this is root.
fn with_demux(run: impl FnOnce(Device, KernelDemux) + Send) {
    with_demux_for(None, run);
}

/// As [`with_demux`], of a demultiplexer that knows where it will be attached.
fn with_demux_for(attach: Option<Attach>, run: impl FnOnce(Device, KernelDemux) + Send) {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (device, _) = lab.link(&a, &b).connect().unwrap();
    a.run(|| {
        let mut backend = KernelBackend::open().unwrap();
        let facts = backend.by_index(device.index()).unwrap();
        let demux = backend.demux(&facts, attach).unwrap();
        run(device, demux);
    });
}

/// Runs a function without the right to load programs.
fn without_rights<T>(run: impl FnOnce() -> T) -> T {
    let rights = capabilities(None).unwrap();
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        ..rights
    };
    set_capabilities(None, none).unwrap();
    let result = run();
    set_capabilities(None, rights).unwrap();
    result
}

/// The kernel still delivers frames by the binding: they would come to the slot's next port.
#[test]
fn a_slot_whose_unbinding_failed_is_not_another_ports() {
    with_demux(|_, mut demux| {
        demux.attach(Attach::Tc).unwrap();
        let [failed, witness, last] = [(); 3].map(|()| demux.slot());
        let bound = demux.bind_slot(last, "udp dst port 53").unwrap();

        // A filter of another kind needs a program; that the kernel refuses, for the binding and to
        // be rid of it.
        let refused = without_rights(|| demux.bind_slot(failed, "tcp[13] & 2 != 0"));
        refused.unwrap_err();
        assert!(demux.is_behind, "the kernel took the change");
        demux.release(failed);
        // Slots are freed in order: this one, which was never bound, would be after the first.
        demux.worker.submit(Job::Remove { slot: witness });
        demux.wait_free(witness);
        assert!(!demux.free.contains(&failed), "its binding may be there");

        // The next change that the kernel takes removes the binding.
        demux.unbind(bound);
        assert!(!demux.is_behind);
        demux.wait_free(failed);
        demux.release(last);
        demux.wait_free(last);
    });
}

/// Attaching goes on while the first binding's program is loaded: that binding has the refusal.
#[test]
fn the_first_binding_is_refused_if_nothing_can_be_attached() {
    with_demux(|device, mut demux| {
        device.delete().unwrap();
        demux.attach(Attach::Tc).unwrap();
        assert_eq!(demux.attached(), Some(Attach::Tc));
        let slot = demux.slot();
        let refused = demux.bind_slot(slot, "udp").unwrap_err();
        assert_eq!(refused.kind, ErrorKind::System, "{refused:?}");
        assert_eq!(demux.attached(), None);
        assert!(demux.dispatchers.is_empty());
    });
}

/// A copying port's attach point is known before the maps are made, and attaching begins there.
#[test]
fn attaching_begins_before_the_maps_are_made() {
    with_demux_for(Some(Attach::Tc), |_, mut demux| {
        assert!(demux.attaching.is_some() && demux.dispatchers.is_empty());
        assert_eq!(demux.attached(), Some(Attach::Tc));
        let slot = demux.slot();
        demux.bind_slot(slot, "udp").unwrap();
        let hooks: Vec<Hook> = demux.dispatchers.iter().map(Dispatcher::hook).collect();
        assert_eq!(hooks, [Hook::TcEgress, Hook::TcIngress]);
    });
    // An XDP hook may be refused, and another be tried.
    with_demux_for(Some(Attach::XdpNative), |_, demux| {
        assert!(demux.attaching.is_none());
        assert_eq!(demux.attached(), None);
    });
}
