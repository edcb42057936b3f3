//! Every map type in the kernel, by system calls and from a program.

use std::os::fd::{AsFd, BorrowedFd};
use weir_filter::backend::ebpf::{Insn, Listing, Reg, helper, op};
use weir_lab::testenv;
use weir_link::bpf::{
    self, Load, LoadError, Map, MapError, MapSpec, MapType, ObjectKind, Program, ProgramType,
    TestRun,
};

/// Whether this process may create maps; skips the test otherwise.
fn permitted() -> bool {
    let made = Map::create("permitted", &MapSpec::array(4, 1));
    if let Err(error) = &made {
        testenv::skip(&error.to_string());
    }
    made.is_ok()
}

fn key(number: u32) -> [u8; 4] {
    number.to_ne_bytes()
}

fn keys(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    numbers.into_iter().flat_map(key).collect()
}

/// Loads an XDP program with these maps.
fn load(insns: &[Insn], maps: &[BorrowedFd<'_>]) -> Result<Program, LoadError> {
    Program::load(
        insns,
        &Load {
            maps,
            frags: true,
            ..Load::new(ProgramType::Xdp)
        },
    )
}

fn run(program: &Program) -> u32 {
    let run = TestRun::new(&[0; 64]);
    program.test_run(&run, &mut []).unwrap().returned
}

#[test]
fn every_kind_is_made_and_known_again_by_its_descriptor() {
    if !permitted() {
        return;
    }
    let ring = Map::create("ring", &MapSpec::ring_buf(4096)).unwrap();
    let large = MapSpec {
        no_prealloc: true,
        ..MapSpec::hash(4, 8, 1 << 20)
    };
    let mapped = MapSpec {
        mmapable: true,
        ..MapSpec::array(8, 3)
    };
    let specs = [
        MapSpec::hash(4, 8, 2),
        large,
        MapSpec::lru_hash(4, 8, 16),
        MapSpec::per_cpu_hash(4, 8, 2),
        MapSpec::lpm_trie(8, 4, 10),
        MapSpec::array(8, 3),
        mapped,
        MapSpec::per_cpu_array(3, 2),
        MapSpec::prog_array(2),
        MapSpec::array_of_maps(2, &ring),
        MapSpec::dev_map(2),
        MapSpec::dev_map_hash(2),
        MapSpec::xsk_map(2),
        MapSpec::ring_buf(8192),
    ];
    for spec in specs {
        let map = Map::create("a kind", &spec).unwrap_or_else(|e| panic!("{e}"));
        let info = map.info().unwrap();
        assert_eq!(
            (&*info.name, info.entries_max),
            ("a_kind", spec.entries_max)
        );
        assert!(bpf::ids(ObjectKind::Map).unwrap().contains(&info.id));
        let again = Map::from_fd(map.try_clone().unwrap().into()).unwrap();
        assert_eq!(again.map_type(), Some(spec.map_type));
        assert_eq!(again.key_bytes(), map.key_bytes());
        assert_eq!(again.value_bytes(), map.value_bytes());
    }
}

#[test]
fn a_refused_map_says_what_it_was_to_be() {
    if !permitted() {
        return;
    }
    let error = Map::create("odd", &MapSpec::ring_buf(5000)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("RingBuf, 5000 bytes"), "{text}");
}

#[test]
fn only_a_maps_descriptor_makes_a_map() {
    if !permitted() {
        return;
    }
    let program = load(&[Insn::mov32(Reg::R0, 2), Insn::exit()], &[]).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    for fd in [program.into(), file.into()] {
        let error = Map::from_fd(fd).unwrap_err();
        assert!(matches!(error, MapError::NotAMap { .. }), "{error}");
    }
}

#[test]
fn values_by_cpu_come_together() {
    if !permitted() {
        return;
    }
    let cpus = bpf::possible_cpus().unwrap();
    let map = Map::create("percpu", &MapSpec::per_cpu_array(4, 2)).unwrap();
    assert_eq!(map.value_bytes(), 8 * cpus);
    let value: Vec<u8> = (0..cpus)
        .flat_map(|cpu| (cpu as u64 + 7).to_ne_bytes())
        .collect();
    map.update(&key(1), &value).unwrap();
    assert_eq!(map.lookup(&key(1)).unwrap(), Some(value));
    assert_eq!(map.lookup(&key(0)).unwrap(), Some(vec![0; 8 * cpus]));
}

#[test]
fn batches_go_as_far_as_they_can() {
    if !permitted() {
        return;
    }
    let map = Map::create("batch", &MapSpec::hash(4, 4, 100)).unwrap();
    map.update_batch(&keys(0..100), &keys(1000..1100)).unwrap();
    let (found, values) = map.entries().unwrap();
    assert_eq!(found.len(), 400);
    for (key, value) in found.chunks(4).zip(values.chunks(4)) {
        let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
        assert_eq!(number(key) + 1000, number(value));
    }
    map.delete_batch(&keys(0..50)).unwrap();
    let error = map.delete_batch(&keys([50, 51, 3, 52])).unwrap_err();
    assert_eq!(error.done, 2, "{error}");
    assert!(map.lookup(&key(52)).unwrap().is_some());
    let error = map
        .update_batch(&keys(200..300), &keys(0..100))
        .unwrap_err();
    assert!(matches!(error.source, MapError::Full { .. }), "{error}");
    assert_eq!(error.done, 100 - 48);
    let error = map.update_batch(&keys([1, 2]), &keys([1])).unwrap_err();
    assert!(
        matches!(error.source, MapError::WrongSize { .. }),
        "{error}"
    );
    let mut listed = 0;
    let mut at = None;
    while let Some(next) = map.next_key(at.as_deref()).unwrap() {
        listed += 1;
        at = Some(next);
    }
    assert_eq!(listed, 100);
}

#[test]
fn a_map_of_rings_takes_a_batch_of_any_sizes() {
    if !permitted() {
        return;
    }
    let ring = |bytes| Map::create("ring", &MapSpec::ring_buf(bytes)).unwrap();
    let rings: Vec<Map> = (0..20).map(|n| ring(4096 << (n % 3))).collect();
    let map = Map::create("rings", &MapSpec::array_of_maps(100, &rings[0])).unwrap();
    let fds: Vec<BorrowedFd<'_>> = rings.iter().map(AsFd::as_fd).collect();
    map.put_batch(&keys(0..20), &fds).unwrap();
    let id = map.lookup(&key(7)).unwrap().unwrap();
    assert_eq!(id, rings[7].info().unwrap().id.to_ne_bytes());
    map.put_batch(&keys(0..20), &[rings[1].as_fd(); 20])
        .unwrap();
    let id = map.lookup(&key(7)).unwrap().unwrap();
    assert_eq!(id, rings[1].info().unwrap().id.to_ne_bytes());
    assert!(map.delete(&key(7)).unwrap());
    assert_eq!(map.lookup(&key(7)).unwrap(), None);
    map.put(&key(7), &rings[3]).unwrap();
    let other = Map::create("array", &MapSpec::array(4, 1)).unwrap();
    assert!(map.put(&key(7), &other).is_err(), "an array is no ring");
}

#[test]
fn mapped_values_are_shared_with_programs() {
    if !permitted() {
        return;
    }
    let spec = MapSpec {
        mmapable: true,
        ..MapSpec::array(16, 1)
    };
    let map = Map::create("shared", &spec).unwrap();
    let [wide, upper] = Insn::load_map_value(Reg::R1, 0, 8);
    let program = [
        wide,
        upper,
        Insn::load(op::DW, Reg::R0, Reg::R1, 0),
        Insn::store(op::DW, Reg::R1, 0, 5),
        Insn::exit(),
    ];
    let listing = Listing(&program).to_string();
    assert!(listing.contains("r1 = value of map[0]"), "{listing}");
    let program = load(&program, &[map.as_fd()]).unwrap();
    let memory = map.map_memory(true).unwrap();
    memory
        .u64(0, 8)
        .unwrap()
        .store(3, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(run(&program), 3);
    assert_eq!(memory.load_u64(0, 8), Some(5));
    assert_eq!(memory.load_u32(0, 0), Some(0));
    assert_eq!(memory.load_u64(1, 0), None);
    assert_eq!(memory.load_u64(0, 16), None);
    assert_eq!(memory.load_u64(0, 4), None);
    let reader = map.read_only().unwrap();
    assert!(reader.map_memory(true).is_err());
    assert!(reader.update(&key(0), &[1; 16]).is_err());
    assert!(
        reader.map_memory(false).is_err(),
        "the kernel maps none such"
    );
    assert_eq!(
        reader.lookup(&key(0)).unwrap().unwrap()[8..],
        5_u64.to_ne_bytes()
    );
    let memory = map.map_memory(false).unwrap();
    assert_eq!(memory.load_u64(0, 8), Some(5));
    assert!(memory.u64(0, 8).is_none(), "mapped to read");
}

#[test]
fn a_frozen_map_changes_no_more() {
    if !permitted() {
        return;
    }
    let map = Map::create("frozen", &MapSpec::array(4, 1)).unwrap();
    map.update(&key(0), &key(9)).unwrap();
    map.freeze().unwrap();
    assert!(matches!(
        map.update(&key(0), &key(1)),
        Err(MapError::NotPermitted)
    ));
    assert_eq!(map.lookup(&key(0)).unwrap(), Some(key(9).to_vec()));
}

#[test]
fn a_slot_is_swapped_under_a_program_that_calls_it() {
    if !permitted() {
        return;
    }
    let slots = Map::create("slots", &MapSpec::prog_array(1)).unwrap();
    let [wide, upper] = Insn::load_map(Reg::R2, 0);
    let caller = [
        wide,
        upper,
        Insn::mov32(Reg::R3, 0),
        Insn::call(helper::TAIL_CALL),
        Insn::mov32(Reg::R0, 2),
        Insn::exit(),
    ];
    let caller = load(&caller, &[slots.as_fd()]).unwrap();
    assert_eq!(run(&caller), 2);
    for result in [1, 3, 4] {
        let callee = load(&[Insn::mov32(Reg::R0, result), Insn::exit()], &[]).unwrap();
        slots.put(&key(0), &callee).unwrap();
        assert_eq!(run(&caller), result as u32);
    }
    assert!(slots.delete(&key(0)).unwrap());
    assert_eq!(run(&caller), 2);
    let of_tc = Program::load(
        &[Insn::mov32(Reg::R0, 0), Insn::exit()],
        &Load::new(ProgramType::SchedCls),
    );
    assert!(slots.put(&key(0), of_tc.unwrap()).is_err(), "another type");
}

#[test]
fn a_map_that_was_not_given_is_named() {
    if !permitted() {
        return;
    }
    let [wide, upper] = Insn::load_map(Reg::R2, 1);
    let program = [Insn::mov32(Reg::R0, 2), wide, upper, Insn::exit()];
    let map = Map::create("only", &MapSpec::prog_array(1)).unwrap();
    let error = load(&program, &[map.as_fd()]).unwrap_err();
    let expected = "instruction 1 names map 1, but the program was given 1";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_programs_facts_are_found_by_number() {
    if !permitted() {
        return;
    }
    let map = Map::create("used", &MapSpec::array(4, 1)).unwrap();
    let [wide, upper] = Insn::load_map(Reg::R2, 0);
    let program = [wide, upper, Insn::mov32(Reg::R0, 2), Insn::exit()];
    let program = load(&program, &[map.as_fd()]).unwrap();
    let info = program.info().unwrap();
    assert_eq!((&*info.name, info.maps, info.uid), ("weir", 1, 0));
    assert!(bpf::ids(ObjectKind::Program).unwrap().contains(&info.id));
    assert_eq!(bpf::program_info(info.id).unwrap(), info);
    drop(program);
    assert_eq!(map.map_type(), Some(MapType::Array));
}
