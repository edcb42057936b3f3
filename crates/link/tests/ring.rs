//! The ring reader with the kernel as producer.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_filter::backend::ebpf::{Insn, Reg, helper, op};
use weir_lab::net::unprivileged;
use weir_lab::{rings, testenv};
use weir_link::bpf::{Load, Map, MapMemory, MapSpec, Program, ProgramType, TestRun};
use weir_ring::{Error, Mode, Reader, Woke};

fn open(ring: OwnedFd) -> Reader {
    rings::reader(ring).unwrap()
}

/// A program that writes one record a run: a run counter, in 8 to 64 bytes
/// depending on the counter. Records without room are counted.
struct Producer {
    program: Program,
    ring: Map,
    counts: MapMemory,
}

impl Producer {
    /// For tc: a test run of XDP waits for an RCU grace period.
    ///
    /// `None`, with the test skipped, without privilege.
    fn new(ring_bytes: u32) -> Option<Producer> {
        let spec = MapSpec {
            mmapable: true,
            ..MapSpec::array(16, 1)
        };
        let counts = match Map::create("counts", &spec) {
            Ok(map) => map,
            Err(error) => {
                testenv::skip(&error.to_string());
                return None;
            }
        };
        let ring = Map::create("ring", &MapSpec::ring_buf(ring_bytes)).unwrap();
        let [value, value_upper] = Insn::load_map_value(Reg::R6, 0, 0);
        let payload = |at| Insn::store(op::DW, Reg::FP, at, 0x3fff_fff0);
        let [to, to_upper] = Insn::load_map(Reg::R1, 1);
        let insns = [
            value,
            value_upper,
            Insn::load(op::DW, Reg::R3, Reg::R6, 0),
            Insn::store(op::DW, Reg::FP, -64, Reg::R3),
            Insn::alu64(op::ADD, Reg::R3, 1),
            Insn::store(op::DW, Reg::R6, 0, Reg::R3),
            Insn::alu64(op::SUB, Reg::R3, 1),
            Insn::alu64(op::AND, Reg::R3, 0x38),
            // The bytes behind the counter would read as a header of 1 GiB.
            payload(-56),
            payload(-48),
            payload(-40),
            payload(-32),
            payload(-24),
            payload(-16),
            payload(-8),
            Insn::alu64(op::ADD, Reg::R3, 8),
            to,
            to_upper,
            Insn::mov64(Reg::R2, Reg::FP),
            Insn::alu64(op::ADD, Reg::R2, -64),
            Insn::mov32(Reg::R4, 0),
            Insn::call(helper::RINGBUF_OUTPUT),
            Insn {
                off: 3,
                ..Insn::jump64(op::JEQ, Reg::R0, 0)
            },
            Insn::load(op::DW, Reg::R1, Reg::R6, 8),
            Insn::alu64(op::ADD, Reg::R1, 1),
            Insn::store(op::DW, Reg::R6, 8, Reg::R1),
            Insn::mov32(Reg::R0, 2),
            Insn::exit(),
        ];
        let maps = [counts.as_fd(), ring.as_fd()];
        let load = Load {
            maps: &maps,
            ..Load::new(ProgramType::SchedCls)
        };
        let program = Program::load(&insns, &load).unwrap();
        Some(Producer {
            program,
            ring,
            counts: counts.map_memory(false).unwrap(),
        })
    }

    fn fd(&self) -> OwnedFd {
        self.ring.try_clone().unwrap().into()
    }

    fn produce(&self, records: u32) {
        let mut run = TestRun::new(&[0; 64]);
        run.repeat = records;
        self.program.test_run(&run, &mut []).unwrap();
    }

    fn lost(&self) -> u64 {
        self.counts.load_u64(0, 8).unwrap()
    }
}

/// Reads and releases all records without looking at their bytes.
fn take_all(reader: &mut Reader) -> usize {
    let mut taken = 0;
    while let Ok(batch) = reader.peek()
        && !batch.is_empty()
    {
        taken += batch.len();
    }
    taken
}

#[test]
fn a_second_reader_leads_no_slice_out_of_the_ring() {
    let mut torn = 0;
    for round in 0..24 {
        let Some(producer) = Producer::new(4096) else {
            return;
        };
        // By another descriptor of the same ring.
        let (mut first, mut second) = (open(producer.fd()), open(producer.fd()));
        producer.produce(10 + round);
        let batch = first.peek().unwrap();
        let records = batch.len();
        assert!(records > 0);
        assert!(take_all(&mut second) >= records);
        // Several times around the ring: headers are where payload was, and the
        // reverse.
        for more in 0..6 {
            producer.produce(40 + 3 * round + more);
            take_all(&mut second);
        }
        let (mut found, mut bytes) = (0, 0);
        for record in &batch {
            (found, bytes) = (found + 1, bytes + record.len());
            let sum: u64 = record.iter().map(|byte| u64::from(*byte)).sum();
            std::hint::black_box(sum);
        }
        assert!(bytes <= 4096 && found <= records);
        torn += u32::from(found < records);
    }
    assert!(torn > 0, "no header was another one");
}

#[test]
fn a_forked_process_cannot_use_the_reader() {
    let Some(producer) = Producer::new(4096) else {
        return;
    };
    let mut reader = open(producer.fd());
    producer.produce(5);
    assert_eq!(reader.peek().unwrap().iter().len(), 5);
    producer.produce(3);
    let batch = reader.peek().unwrap();
    std::mem::forget(batch);
    let ended = rings::in_fork(|| {
        let refused = matches!(reader.peek(), Err(Error::Forked))
            && matches!(reader.records(), Err(Error::Forked))
            && matches!(reader.wait(Some(Duration::ZERO)), Err(Error::Forked))
            && !reader.arm();
        u8::from(refused)
    });
    assert_eq!(ended, 1);
    let batch = reader.peek().unwrap();
    assert_eq!(batch.iter().map(number).collect::<Vec<_>>(), [5, 6, 7]);
    let ended = rings::in_fork(|| {
        drop(batch);
        1
    });
    assert_eq!(ended, 1);
    // The parent's copy of the batch was moved into the closure and is
    // released.
    assert_eq!(take_all(&mut reader), 0);
}

/// The counter in a record, whose length must be the counter's.
fn number(record: &[u8]) -> u64 {
    let (number, _) = record.split_first_chunk().expect("8 bytes at least");
    let number = u64::from_ne_bytes(*number);
    assert_eq!(record.len() as u64, 8 + (number & 0x38));
    number
}

#[test]
fn records_come_whole_and_in_order_however_often_the_ring_wraps() {
    let Some(producer) = Producer::new(4096) else {
        return;
    };
    let mut reader = open(producer.fd());
    assert_eq!(reader.bytes(), 4096);
    let mut expected = 0;
    for round in 0..1_000 {
        producer.produce(1 + round % 40);
        while reader.wait(Some(Duration::ZERO)).unwrap() == Woke::Ready {
            for record in &reader.peek().unwrap() {
                assert_eq!(number(record), expected);
                expected += 1;
            }
        }
    }
    assert_eq!(producer.lost(), 0);
    assert_eq!(Some(expected), producer.counts.load_u64(0, 0));
    assert_eq!(reader.used_bytes(), 0);
}

#[test]
fn a_full_ring_loses_and_says_so_and_what_was_there_stays() {
    let Some(producer) = Producer::new(4096) else {
        return;
    };
    let mut reader = open(producer.fd());
    producer.produce(1_000);
    let lost = producer.lost();
    assert!((800..960).contains(&lost), "{lost}");
    let mut found = Vec::new();
    loop {
        let batch = reader.peek().unwrap();
        if batch.is_empty() {
            break;
        }
        let bytes: usize = batch.iter().map(<[u8]>::len).sum();
        assert!(bytes <= 1024, "a quarter of the ring at a time");
        assert_eq!(batch.len(), batch.iter().len());
        found.extend(batch.iter().map(number));
    }
    assert_eq!(found.len() as u64, 1_000 - lost);
    assert!(found.is_sorted());
}

#[test]
fn what_is_not_released_comes_again() {
    let Some(producer) = Producer::new(4096) else {
        return;
    };
    let mut reader = open(producer.fd());
    producer.produce(5);
    let first = |reader: &mut Reader| reader.peek().unwrap().iter().next().map(number);
    reader.peek().unwrap().release(2);
    let batch = reader.peek().unwrap();
    assert_eq!(batch.iter().map(number).collect::<Vec<_>>(), [2, 3, 4]);
    std::mem::forget(batch);
    assert_eq!(first(&mut reader), Some(2));
    assert_eq!(first(&mut reader), None);
}

#[test]
fn the_next_reader_goes_on_where_the_last_one_was() {
    let Some(producer) = Producer::new(4096) else {
        return;
    };
    for start in [0, 4, 8] {
        let mut reader = open(producer.fd());
        producer.produce(4);
        let numbers: Vec<u64> = reader.peek().unwrap().iter().map(number).collect();
        assert_eq!(numbers, [start, start + 1, start + 2, start + 3]);
        // Dropped as after a kill: awake, without an exact position published.
    }
}

#[test]
fn a_descriptor_alone_reads_no_ring() {
    let Some(producer) = Producer::new(1 << 16) else {
        return;
    };
    if !testenv::root() {
        return;
    }
    let fd = producer.fd();
    let read = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            unprivileged::run(|| {
                let mut reader = open(fd);
                let mut read = 0;
                while read < 1_000
                    && reader.wait(Some(Duration::from_secs(5))).unwrap() == Woke::Ready
                {
                    read += reader.peek().unwrap().len();
                }
                read
            })
        });
        for _ in 0..100 {
            producer.produce(10);
            std::thread::sleep(Duration::from_micros(50));
        }
        reading.join().unwrap()
    });
    assert_eq!(read, 1_000);
}

#[test]
fn a_sleeping_reader_is_always_woken() {
    let busy = Duration::from_micros(50);
    for (mode, busy) in [
        (Mode::Throughput, Duration::ZERO),
        (Mode::Latency, Duration::ZERO),
        (Mode::Latency, busy),
    ] {
        let Some(producer) = Producer::new(1 << 16) else {
            return;
        };
        let mut reader = open(producer.fd());
        reader.set_mode(mode);
        reader.set_busy_poll(busy);
        let done = AtomicBool::new(false);
        let read = std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut read = 0;
                loop {
                    // A lost wake-up would cost a whole second without a
                    // record.
                    let woke = reader.wait(Some(Duration::from_secs(1))).unwrap();
                    if woke == Woke::TimedOut {
                        assert!(done.load(Ordering::SeqCst), "asleep after {read}");
                        return read;
                    }
                    read += reader.peek().unwrap().len() as u64;
                }
            });
            for round in 0..1_000_u32 {
                producer.produce(1 + round % 7);
                if round % 16 == 0 {
                    std::thread::sleep(Duration::from_micros(u64::from(round % 60)));
                }
            }
            done.store(true, Ordering::SeqCst);
            reading.join().unwrap()
        });
        let sent = producer.counts.load_u64(0, 0).unwrap();
        assert_eq!(read + producer.lost(), sent, "{mode:?} {busy:?}");
    }
}

#[test]
fn waiting_ends_in_time() {
    let Some(producer) = Producer::new(4096) else {
        return;
    };
    let mut reader = open(producer.fd());
    for millis in [0, 1, 30] {
        let start = Instant::now();
        let time = Duration::from_millis(millis);
        assert_eq!(reader.wait(Some(time)).unwrap(), Woke::TimedOut);
        assert!(start.elapsed() >= time);
        assert!(start.elapsed() < time + Duration::from_secs(30));
    }
    assert!(reader.arm());
    producer.produce(1);
    assert!(!reader.arm());
    assert_eq!(reader.wait(None).unwrap(), Woke::Ready);
}

#[test]
fn what_is_no_ring_is_refused_by_what_it_is() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = rings::reader(file.into()).unwrap_err();
    assert!(error.to_string().contains("no BPF map"), "{error}");
    let Ok(map) = Map::create("array", &MapSpec::array(4, 1)) else {
        return testenv::skip("maps are not permitted");
    };
    let error = rings::reader(map.into()).unwrap_err();
    assert!(matches!(error, Error::NotARing { .. }), "{error}");
    assert!(error.to_string().contains("map of type 2"), "{error}");
}
