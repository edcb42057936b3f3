//! Loading, running and maps of eBPF: successes and error messages.

use weir_filter::backend::ebpf::{Insn, Reg, op};
use weir_lab::command::Command;
use weir_lab::testenv;
use weir_link::bpf::{
    LOG_LINES_MAX, Load, LoadError, Map, MapError, MapSpec, Program, ProgramType, TestRun,
    TestRunError,
};

fn constant(result: i32) -> [Insn; 2] {
    [Insn::mov32(Reg::R0, result), Insn::exit()]
}

/// Whether this process may load programs; skips the test otherwise.
fn permitted() -> bool {
    let loaded = Program::load(&constant(0), &Load::new(ProgramType::Xdp));
    if let Err(error) = &loaded {
        testenv::skip(&error.to_string());
    }
    loaded.is_ok()
}

#[test]
fn every_type_loads_and_runs() {
    if !permitted() {
        return;
    }
    for kind in [
        ProgramType::SocketFilter,
        ProgramType::SchedCls,
        ProgramType::Xdp,
    ] {
        let program = Program::load(&constant(-2), &Load::new(kind)).unwrap();
        let ran = program.test_run(&TestRun::new(&[0; 60]), &mut []).unwrap();
        assert_eq!(ran.returned, -2_i32 as u32, "{kind:?}");
    }
}

#[test]
fn a_users_program_says_that_it_has_no_barriers() {
    if !permitted() {
        return;
    }
    let load = Load {
        is_users: true,
        ..Load::new(ProgramType::SocketFilter)
    };
    let plain = Program::load(&constant(0), &load).unwrap();
    assert!(!plain.needs_perfmon());
    // The program leaks an address, which the verifier permits only to
    // privileged callers.
    let address = [Insn::mov64(Reg::R0, Reg::FP), Insn::exit()];
    let leaks = Program::load(&address, &load).unwrap();
    assert!(leaks.needs_perfmon());
    // The verifier also rejects this for privileged callers.
    let wrong = Program::load(&[Insn::exit()], &load).unwrap_err();
    assert!(matches!(wrong, LoadError::Refused { .. }), "{wrong}");
}

#[test]
fn a_run_gives_the_frame_back_and_takes_time() {
    if !permitted() {
        return;
    }
    let program = Program::load(&constant(2), &Load::new(ProgramType::Xdp)).unwrap();
    let frame: Vec<u8> = (0..100).collect();
    let mut run = TestRun::new(&frame);
    run.repeat = 1_000;
    let mut output = [0; 200];
    let ran = program.test_run(&run, &mut output).unwrap();
    assert_eq!(ran.output_len, 100);
    assert_eq!(output[..100], frame);
    assert!(ran.duration.as_millis() < 10, "{ran:?}");
}

#[test]
fn a_frame_without_a_header_is_refused() {
    if !permitted() {
        return;
    }
    let program = Program::load(&constant(2), &Load::new(ProgramType::Xdp)).unwrap();
    let error = program
        .test_run(&TestRun::new(&[0; 13]), &mut [])
        .unwrap_err();
    assert!(
        matches!(error, TestRunError::FrameTooShort { len: 13 }),
        "{error}"
    );
    let error = program
        .test_run(&TestRun::new(&[0; 90_000]), &mut [])
        .unwrap_err();
    assert!(
        matches!(error, TestRunError::System { len: 90_000, .. }),
        "{error}"
    );
}

#[test]
fn a_refusal_has_the_end_of_the_verifiers_log() {
    if !permitted() {
        return;
    }
    let mut insns = vec![Insn::mov32(Reg::R0, 0); 100];
    insns.extend([Insn::load(op::W, Reg::R0, Reg::R1, 100), Insn::exit()]);
    let error = Program::load(&insns, &Load::new(ProgramType::Xdp)).unwrap_err();
    let LoadError::Refused { insns, log, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*insns, 102);
    assert!(log.contains("invalid bpf_context access"), "{log}");
    assert!(log.lines().count() <= LOG_LINES_MAX, "{log}");
    assert!(error.to_string().contains("invalid bpf_context access"));
}

#[test]
fn too_long_a_program_is_refused_by_its_length() {
    if !permitted() {
        return;
    }
    let insns = vec![Insn::exit(); 1_000_001];
    let error = Program::load(&insns, &Load::new(ProgramType::Xdp)).unwrap_err();
    assert!(
        matches!(error, LoadError::TooLong { insns: 1_000_001 }),
        "{error}"
    );
}

#[test]
fn maps_hold_what_they_are_given() {
    if !permitted() {
        return;
    }
    let map = Map::create("weir test", &MapSpec::hash(4, 8, 2)).unwrap();
    let key = |n: u32| n.to_ne_bytes();
    assert_eq!(map.lookup(&key(1)).unwrap(), None);
    map.update(&key(1), &[1; 8]).unwrap();
    map.update(&key(2), &[2; 8]).unwrap();
    map.update(&key(1), &[3; 8]).unwrap();
    assert_eq!(map.lookup(&key(1)).unwrap(), Some(vec![3; 8]));
    let error = map.update(&key(3), &[0; 8]).unwrap_err();
    assert!(
        matches!(error, MapError::Full { entries_max: 2 }),
        "{error}"
    );
    assert!(map.delete(&key(1)).unwrap());
    assert!(!map.delete(&key(1)).unwrap());
    assert_eq!(map.lookup(&key(1)).unwrap(), None);
}

#[test]
fn an_arrays_entries_are_all_there() {
    if !permitted() {
        return;
    }
    let map = Map::create("array", &MapSpec::array(2, 3)).unwrap();
    let key = |n: u32| n.to_ne_bytes();
    assert_eq!(map.lookup(&key(2)).unwrap(), Some(vec![0; 2]));
    map.update(&key(2), &[7; 2]).unwrap();
    assert_eq!(map.lookup(&key(2)).unwrap(), Some(vec![7; 2]));
    assert_eq!(map.lookup(&key(3)).unwrap(), None);
    assert!(matches!(map.delete(&key(0)), Err(MapError::System { .. })));
}

#[test]
fn keys_and_values_of_the_wrong_size_never_reach_the_kernel() {
    if !permitted() {
        return;
    }
    let map = Map::create("sizes", &MapSpec::hash(4, 8, 2)).unwrap();
    for error in [
        map.update(&[0; 3], &[0; 8]).unwrap_err(),
        map.update(&[0; 5], &[0; 8]).unwrap_err(),
        map.update(&[0; 4], &[0; 7]).unwrap_err(),
        map.lookup(&[]).unwrap_err(),
        map.delete(&[0; 8]).unwrap_err(),
    ] {
        assert!(matches!(error, MapError::WrongSize { .. }), "{error}");
    }
    let error = Map::create("none", &MapSpec::hash(0, 8, 2)).unwrap_err();
    assert!(matches!(error, MapError::Refused { .. }), "{error}");
}

/// The other half of [`without_privilege_the_error_names_what_is_missing`]:
/// runs as user nobody in a separate process, selected by the environment.
#[test]
fn as_nobody() {
    if std::env::var_os("WEIR_TEST_AS_NOBODY").is_none() {
        return;
    }
    let error = Program::load(&constant(0), &Load::new(ProgramType::Xdp)).unwrap_err();
    assert!(matches!(error, LoadError::NotPermitted), "{error}");
    assert!(error.to_string().contains("CAP_BPF"), "{error}");
    let error = Map::create("map", &MapSpec::hash(4, 4, 1)).unwrap_err();
    assert!(matches!(error, MapError::NotPermitted), "{error}");
}

#[test]
fn without_privilege_the_error_names_what_is_missing() {
    if !permitted() {
        return;
    }
    let nobody = 65_534;
    let output = Command::itself()
        .args(["--exact", "as_nobody"])
        .env("WEIR_TEST_AS_NOBODY", "1")
        .gid(nobody)
        .uid(nobody)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}
