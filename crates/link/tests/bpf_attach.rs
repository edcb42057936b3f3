//! Attaching and pinning in the running kernel: at interfaces of the test's own
//! network namespace, and in its own BPF file system.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_filter::backend::ebpf::{Insn, Reg};
use weir_lab::net::{Device, Lab};
use weir_lab::testenv;
use weir_link::bpf::{
    self, AttachError, Attachment, Hook, Load, Map, MapSpec, ObjectKind, PinError, PinFolder,
    Program,
};

/// Runs a test in a network namespace with a link; skips the test without root.
fn on_a_link(test: impl FnOnce(&Device) + Send) {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let host = lab.host("here").unwrap();
    let (device, _other) = lab.link(&host, &host).connect().unwrap();
    host.run(|| test(&device));
}

fn pass(hook: Hook) -> Program {
    let result = if hook.is_xdp() { 2 } else { -1 };
    let insns = [Insn::mov32(Reg::R0, result), Insn::exit()];
    Program::load(&insns, &Load::at(hook)).unwrap()
}

#[test]
fn a_program_is_attached_replaced_and_detached_at_every_hook() {
    on_a_link(|device| {
        let ifindex = device.index();
        for hook in [
            Hook::XdpNative,
            Hook::XdpGeneric,
            Hook::TcIngress,
            Hook::TcEgress,
        ] {
            let (first, second) = (pass(hook), pass(hook));
            let attached = Attachment::new(&first, ifindex, hook).unwrap();
            let info = attached.info().unwrap();
            assert_eq!(info.ifindex, Some(ifindex), "{hook}");
            assert_eq!(info.program_id, first.info().unwrap().id);
            assert_eq!(info.xdp, hook.is_xdp());
            if !hook.is_xdp() {
                let there = bpf::programs_at(ifindex, hook).unwrap();
                assert_eq!(there, [info.program_id], "{hook}");
            }
            attached.replace(&second).unwrap();
            let program_id = attached.info().unwrap().program_id;
            assert_eq!(program_id, second.info().unwrap().id);
            let by_id = bpf::attachment(info.id).unwrap();
            assert_eq!(by_id.info().unwrap().id, info.id);
            attached.detach().unwrap();
            attached.detach().unwrap();
            assert_eq!(attached.info().unwrap().ifindex, None, "{hook}");
            let error = attached.replace(&first).unwrap_err();
            assert!(matches!(error, AttachError::Gone), "{error}");
        }
    });
}

#[test]
fn a_second_xdp_program_is_refused() {
    on_a_link(|device| {
        let ifindex = device.index();
        let program = pass(Hook::XdpNative);
        let _first = Attachment::new(&program, ifindex, Hook::XdpNative).unwrap();
        for hook in [Hook::XdpNative, Hook::XdpGeneric] {
            let error = Attachment::new(&program, ifindex, hook).unwrap_err();
            assert!(matches!(error, AttachError::Busy { .. }), "{hook}: {error}");
        }
    });
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    on_a_link(|_| {
        for hook in [Hook::XdpGeneric, Hook::TcIngress] {
            let error = Attachment::new(&pass(hook), 4321, hook).unwrap_err();
            assert!(
                matches!(error, AttachError::NoInterface { ifindex: 4321 }),
                "{error}"
            );
        }
    });
}

#[test]
fn an_attachment_loses_its_interface() {
    on_a_link(|device| {
        let ifindex = device.index();
        let attached = Attachment::new(&pass(Hook::TcEgress), ifindex, Hook::TcEgress).unwrap();
        device.clone().delete().unwrap();
        assert_eq!(attached.info().unwrap().ifindex, None);
    });
}

/// A temporary folder with a BPF file system.
struct OwnMount(PathBuf);

impl OwnMount {
    fn new() -> Option<OwnMount> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-pins-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        match PinFolder::mount(&path) {
            Ok(_) => Some(OwnMount(path)),
            Err(error) => {
                testenv::skip(&error.to_string());
                let _ = std::fs::remove_dir(&path);
                None
            }
        }
    }
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        PinFolder::unmount(&self.0).unwrap();
        std::fs::remove_dir(&self.0).unwrap();
    }
}

#[test]
fn a_pin_keeps_an_object_and_gives_it_back() {
    let Some(mount) = OwnMount::new() else { return };
    let pins = PinFolder::mount(&mount.0).unwrap();
    let below = pins.folder("eth0").unwrap();
    let map = Map::create("pinned", &MapSpec::array(4, 1)).unwrap();
    let id = map.info().unwrap().id;
    below.pin("counters", &map).unwrap();
    let taken = below.pin("counters", &map).unwrap_err();
    assert!(matches!(taken, PinError::System { .. }), "{taken}");
    map.update(&[0; 4], &[7; 4]).unwrap();
    drop(map);
    let again = Map::from_fd(below.get("counters").unwrap().unwrap()).unwrap();
    assert_eq!(again.info().unwrap().id, id);
    assert_eq!(again.lookup(&[0; 4]).unwrap(), Some(vec![7; 4]));
    assert_eq!(pins.list().unwrap(), (vec![], vec!["eth0".to_string()]));
    assert_eq!(below.list().unwrap().0, ["counters"]);
    assert!(below.get("other").unwrap().is_none());
    assert!(below.unpin("counters").unwrap());
    assert!(!below.unpin("counters").unwrap());
    assert!(pins.remove_folder("eth0").unwrap());
    drop(again);
    let left = (0..200).all(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        bpf::ids(ObjectKind::Map).unwrap().contains(&id)
    });
    assert!(!left, "the map is gone with its last pin and descriptor");
}

#[test]
fn names_lead_nowhere_else_and_links_are_not_followed() {
    let Some(mount) = OwnMount::new() else { return };
    let pins = PinFolder::open(&mount.0).unwrap();
    let map = Map::create("pinned", &MapSpec::array(4, 1)).unwrap();
    for name in ["", ".", "..", "a/b", "a.b", "ä", &"x".repeat(129)] {
        let error = pins.pin(name, map.as_fd()).unwrap_err();
        assert!(matches!(error, PinError::BadName { .. }), "{name}: {error}");
    }
    pins.pin("real", &map).unwrap();
    std::os::unix::fs::symlink(mount.0.join("real"), mount.0.join("alias")).unwrap();
    assert!(pins.get("alias").is_err());
    assert!(pins.folder("alias").is_err());
    assert!(pins.pin("alias", &map).is_err());
    assert_eq!(pins.list().unwrap().0, ["real"]);
    assert!(pins.unpin("alias").unwrap());
    assert!(pins.get("real").unwrap().is_some());
    let alias = mount.0.with_extension("alias");
    std::os::unix::fs::symlink(&mount.0, &alias).unwrap();
    let error = PinFolder::open(&alias).unwrap_err();
    std::fs::remove_file(&alias).unwrap();
    assert!(matches!(error, PinError::System { .. }), "{error}");
}

#[test]
fn a_folder_that_others_can_enter_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let Some(mount) = OwnMount::new() else { return };
    let open = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&mount.0, mode).unwrap();
        PinFolder::open(&mount.0)
    };
    let error = open(0o1777).unwrap_err();
    assert!(error.to_string().contains("mode 777"), "{error}");
    assert!(open(0o700).is_ok());
    let plain = mount.0.with_extension("plain");
    std::fs::create_dir(&plain).unwrap();
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o700)).unwrap();
    let error = PinFolder::open(&plain).unwrap_err();
    std::fs::remove_dir(&plain).unwrap();
    assert!(matches!(error, PinError::NotMounted { .. }), "{error}");
}

#[test]
fn an_attachment_stays_by_its_pin_alone() {
    let Some(mount) = OwnMount::new() else { return };
    on_a_link(|device| {
        let ifindex = device.index();
        let pins = PinFolder::open(&mount.0).unwrap();
        let attached = Attachment::new(&pass(Hook::TcIngress), ifindex, Hook::TcIngress).unwrap();
        let id = attached.info().unwrap().program_id;
        pins.pin("link", &attached).unwrap();
        drop(attached);
        assert_eq!(bpf::programs_at(ifindex, Hook::TcIngress).unwrap(), [id]);
        let attached = Attachment::from_fd(pins.get("link").unwrap().unwrap());
        assert_eq!(attached.info().unwrap().program_id, id);
        pins.unpin("link").unwrap();
        drop(attached);
        assert!(
            bpf::programs_at(ifindex, Hook::TcIngress)
                .unwrap()
                .is_empty()
        );
    });
}
