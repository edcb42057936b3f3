//! Written captures are read back unchanged, by this crate and by common tools.

mod support;

use support::*;
use weir_lab::oracle::Oracle;
use weir_lab::testenv;
use weir_link::pcap::{FrameRef, Interface, Reader, Resolution, WriteError, Writer};
use weir_wire::LinkType;

fn described(linktype: LinkType, name: Option<&str>) -> Interface {
    Interface {
        linktype,
        snaplen: 65535,
        resolution: Resolution::MICRO,
        offset_s: 0,
        name: name.map(str::to_owned),
    }
}

fn frame<'a>(interface: &'a Interface, index: u32, time_ns: i64, bytes: &'a [u8]) -> FrameRef<'a> {
    FrameRef {
        bytes,
        wire_len: bytes.len() as u32 + 7,
        time_ns: Some(time_ns),
        interface_index: index,
        interface,
    }
}

/// The path of a temporary file.
fn scratch(name: &str) -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    folder.join(format!("{}-{name}", std::process::id()))
}

#[test]
fn real_captures_survive_being_written() {
    for path in testenv::capture_files() {
        let mut reader = Reader::open(&path).unwrap();
        let mut writer = Writer::new(Vec::new()).unwrap();
        while let Some(frame) = reader.next_frame().unwrap() {
            writer.write(&frame).unwrap();
        }
        let (before, _) = drain(&mut Reader::open(&path).unwrap());
        let after = read_whole(&writer.finish().unwrap());
        assert!(before == after, "{}", path.display());
    }
}

#[test]
fn interfaces_are_described_as_they_are_met() {
    let ether = described(LinkType::EN10MB, Some("eth0"));
    let pup = described(LinkType::EN3MB, None);
    let mut writer = Writer::new(Vec::new()).unwrap();
    let max = 262_144;
    writer.write(&frame(&pup, 4, 5, b"pup")).unwrap();
    writer.write(&frame(&ether, 0, i64::MAX, b"")).unwrap();
    writer.write(&frame(&pup, 4, -5, b"pupp")).unwrap();
    let long = vec![1; max + 1];
    let refused = writer.write(&frame(&ether, 0, 6, &long));
    assert!(matches!(refused, Err(WriteError::TooLong { len, .. }) if len == max + 1));
    // Interface 4 of another source is another interface.
    writer.next_source();
    writer.write(&frame(&ether, 4, 7, &long[..max])).unwrap();
    let file = writer.finish().unwrap();

    let mut reader = Reader::new(std::io::Cursor::new(file)).unwrap();
    let (seen, error) = drain(&mut reader);
    assert!(error.is_none(), "{error:?}");
    let told: Vec<_> = seen
        .iter()
        .map(|seen| (seen.interface, seen.time_ns.unwrap()))
        .collect();
    assert_eq!(told, [(0, 5), (1, i64::MAX), (0, 0), (2, 7)]);
    assert_eq!(seen[0].wire_len, 10);
    assert_eq!(seen[3].bytes.len(), 65535, "cut to the snap length it says");
    let nano = |interface: Interface| Interface {
        resolution: Resolution::NANO,
        ..interface
    };
    assert_eq!(
        reader.interfaces(),
        [nano(pup), nano(ether.clone()), nano(ether)]
    );
}

#[test]
fn libpcap_reads_what_is_written() {
    let Some(oracle) = Oracle::load() else { return };
    let path = scratch("libpcap.pcapng");
    let ether = described(LinkType::EN10MB, Some("eth0"));
    let mut writer = Writer::create(&path).unwrap();
    for len in 0..9usize {
        writer
            .write(&frame(&ether, 0, 1_000_000_007 * len as i64, &vec![9; len]))
            .unwrap();
    }
    writer.finish().unwrap();
    let read = oracle.read(&path).unwrap();
    assert_eq!((read.linktype, read.error), (LinkType::EN10MB, None));
    let lengths = read
        .frames
        .iter()
        .map(|frame| (frame.bytes.len(), frame.wire_len));
    assert!(lengths.eq((0..9).map(|len| (len, len as u32 + 7))));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_usual_tools_read_what_is_written() {
    let path = scratch("tools.pcapng");
    let ether = described(LinkType::EN10MB, Some("veth7"));
    let mut writer = Writer::create(&path).unwrap();
    for second in 0..3i64 {
        let time_ns = 1_700_000_000_000_000_000 + second * 1_000_000_001;
        writer
            .write(&frame(&ether, 0, time_ns, &[0x42; 61]))
            .unwrap();
    }
    writer.finish().unwrap();
    let tools = [
        (
            "tcpdump",
            vec!["-tt", "--nano", "-nn", "-r"],
            "1700000002.000000002",
        ),
        (
            "tshark",
            vec![
                "-T",
                "fields",
                "-e",
                "frame.time_epoch",
                "-e",
                "frame.len",
                "-e",
                "frame.cap_len",
                "-e",
                "frame.interface_name",
                "-r",
            ],
            "1700000002.000000002\t68\t61\tveth7",
        ),
    ];
    for (tool, arguments, expected) in tools {
        let Some(mut tool) = testenv::program(tool) else {
            continue;
        };
        let output = tool.args(arguments).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // tcpdump prints the bytes of unknown protocols on further lines.
        let frames: Vec<&str> = text.lines().filter(|line| line.starts_with('1')).collect();
        assert_eq!(frames.len(), 3, "{text}");
        assert!(frames[2].starts_with(expected), "{text}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_capture_without_frames_still_has_its_interface() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let pup = described(LinkType::EN3MB, None);
    assert_eq!(writer.describe(&pup).unwrap(), 0);
    let file = writer.finish().unwrap();
    let mut reader = Reader::new(std::io::Cursor::new(file)).unwrap();
    assert_eq!(drain(&mut reader).0, []);
    assert_eq!(reader.interfaces()[0].linktype, LinkType::EN3MB);
}

#[test]
fn what_was_written_is_kept_when_the_writer_is_dropped() {
    let path = scratch("dropped.pcapng");
    let ether = described(LinkType::EN10MB, None);
    let mut writer = Writer::create(&path).unwrap();
    writer.write(&frame(&ether, 0, 1, b"kept")).unwrap();
    drop(writer);
    assert_eq!(read_whole(&std::fs::read(&path).unwrap())[0].bytes, b"kept");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_full_disk_is_reported() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        return testenv::skip("no /dev/full");
    };
    let ether = described(LinkType::EN10MB, None);
    let mut writer = Writer::new(full).unwrap();
    writer.write(&frame(&ether, 0, 1, b"lost")).unwrap();
    let error = writer.finish().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cannot write the capture after byte"),
        "{error}"
    );
    assert!(matches!(
        Writer::create("/nonexistent/x"),
        Err(WriteError::Create { .. })
    ));
}

/// Accepts a number of bytes and then fails.
struct Small(Vec<u8>, usize);

impl std::io::Write for Small {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = bytes.len().min(self.1 - self.0.len());
        if taken == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn after_a_failed_write_it_says_where_the_last_whole_frame_ends() {
    let ether = described(LinkType::EN10MB, None);
    // Short frames, which are buffered, and long frames, which are not; the
    // disk is full at each byte of a few frames.
    for (frame_len, gathered) in [(61, 4096), (5, 64), (700, 256)] {
        for room in 400..2200 {
            let output = Small(Vec::new(), room);
            let mut writer = Writer::with_buffer(output, gathered).unwrap();
            let bytes = vec![7; frame_len];
            let frames = (0..200).map(|time| frame(&ether, 0, time, &bytes));
            let written: Result<Vec<()>, _> = frames.map(|one| writer.write(&one)).collect();
            let error = written.map(|_| ()).and_then(|()| writer.flush());
            let Err(WriteError::Write { whole, .. }) = error else {
                panic!("{error:?}");
            };
            let arrived = &writer.get_ref().0;
            assert_eq!(arrived.len(), room, "all that there was room for");
            let kept = read_whole(&arrived[..whole as usize]);
            let block = 32 + frame_len.next_multiple_of(4);
            assert!(room - (whole as usize) < block, "{room} {whole}");
            assert!(kept.iter().all(|seen| seen.bytes == bytes));
            assert!(writer.write(&frame(&ether, 0, 0, b"")).is_err());
            let full = arrived_len(writer);
            assert_eq!(full, room, "nothing follows a torn block");
        }
    }
}

fn arrived_len(mut writer: Writer<Small>) -> usize {
    assert!(writer.flush().is_err());
    writer.get_ref().0.len()
}

#[test]
fn a_link_type_that_no_file_has_is_refused() {
    let (strange, ethernet) = (
        described(LinkType(0x0001_0001), None),
        described(LinkType::EN10MB, None),
    );
    let mut writer = Writer::new(Vec::new()).unwrap();
    let refused = [
        writer.describe(&strange).map(|_| ()),
        writer.write(&frame(&strange, 0, 1, b"abcd")),
    ];
    for outcome in refused {
        assert!(matches!(outcome, Err(WriteError::LinkType(0x0001_0001))));
    }
    writer.write(&frame(&ethernet, 1, 1, b"efgh")).unwrap();
    let seen = read_whole(&writer.finish().unwrap());
    assert_eq!((seen.len(), seen[0].linktype), (1, 1));
}
