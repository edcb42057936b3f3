//! Outputs: forms, shapes, replay, late chunks.

mod common;

use common::{Folder, MINUTE, chunk, files};
use jiff::tz::TimeZone;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use weir_lab::wait;
use weir_ledger::{
    Column, Difference, Filter, Format, Group, Ledger, Output, Replay, Shape, Span, Target, encode,
};
use weir_meter::{Direction, Flags, OwnerKind};

fn ledger(folder: &Folder, periods: u64) -> Ledger {
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    for period in 0..periods {
        let mut chunk = chunk(period, MINUTE * period as i64, 10);
        chunk.owners[0].reported = Some([11, 22, 1, 2]);
        ledger.accept(&encode(&chunk)).unwrap();
    }
    ledger
}

fn text(ledger: &mut Ledger, output: &Output) -> String {
    let delivered = ledger.deliver(output).unwrap();
    fs::read_to_string(delivered[0].path.as_ref().unwrap()).unwrap()
}

#[test]
fn every_form_is_proven_and_damage_named() {
    let folder = Folder::new("forms");
    let mut ledger = ledger(&folder, 3);
    for format in Format::ALL {
        let output = files(format.name(), *format, &folder.0);
        let delivered = ledger.deliver(&output).unwrap();
        assert_eq!(delivered[0].records, 9, "{format:?}");
        let path = delivered[0].path.as_ref().unwrap();
        assert_eq!(Format::of_path(path), Some(*format));
    }
    let proof = ledger.prove(None, None).unwrap();
    assert!(proof.holds(), "{proof:#?}");
    assert_eq!(proof.periods[0].outputs.len(), Format::ALL.len());
    for entry in fs::read_dir(&folder.0).unwrap() {
        let path = entry.unwrap().path();
        if Format::of_path(&path).is_some() {
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() * 2 / 3]).unwrap();
        }
    }
    let proof = ledger.prove(None, None).unwrap();
    let named = |it: &Difference| match it {
        Difference::Output { output, .. } | Difference::OutputFile { output, .. } => output.clone(),
        other => panic!("{other:?}"),
    };
    let mut wrong: Vec<String> = proof.periods[2].differences.iter().map(named).collect();
    wrong.sort();
    let mut all: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
    all.sort_unstable();
    assert_eq!(wrong, all);
}

#[test]
fn a_line_has_what_the_access_server_reports() {
    let folder = Folder::new("reported");
    let mut ledger = ledger(&folder, 1);
    let csv = text(&mut ledger, &files("csv", Format::Csv, &folder.0));
    let mut lines = csv.lines();
    let head = lines.next().unwrap();
    assert!(
        head.ends_with("packets,bytes,reported_packets,reported_bytes,more"),
        "{head}"
    );
    let expected = [
        (",up,0,10,1000,1,11,", "alice up"),
        (",down,0,10,1000,2,22,", "alice down"),
        (",up,0,1,100,,,", "unattributed"),
    ];
    for (line, (cells, of)) in lines.zip(expected) {
        assert!(line.contains(cells), "{of}: {line}");
    }
    let json = text(&mut ledger, &files("json", Format::JsonLines, &folder.0));
    let line: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(line["reported_bytes"], 11);
    assert_eq!(line["class"], "676f6c64");
}

#[test]
fn names_are_no_formulas_for_spreadsheets() {
    let folder = Folder::new("formulas");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    let mut hostile = chunk(0, 0, 10);
    hostile.owners[0].subscriber = "=HYPERLINK(\"x\")".to_owned();
    hostile.services[0] = "@web".to_owned();
    hostile.manifest.id.counter = "-pop".to_owned();
    ledger.accept(&encode(&hostile)).unwrap();
    let csv = text(&mut ledger, &files("csv", Format::Csv, &folder.0));
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let first = reader.records().next().unwrap().unwrap();
    let formula = |cell: &str| cell.starts_with(['=', '+', '-', '@']);
    assert!(!first.iter().any(formula), "{first:?}");
    assert!(first.iter().any(|cell| cell == "'=HYPERLINK(\"x\")"));
    // JSON has the names as they are; both can be proven.
    let json = text(&mut ledger, &files("json", Format::JsonLines, &folder.0));
    assert!(json.contains("\"=HYPERLINK"));
    assert!(ledger.prove(None, None).unwrap().holds());
}

#[test]
fn a_filter_and_classes_shape_an_output() {
    let folder = Folder::new("filter");
    let mut ledger = ledger(&folder, 2);
    let output = Output {
        shape: Shape {
            filter: Filter {
                owners: Some(vec![OwnerKind::Session]),
                direction: Some(Direction::Down),
                ..Filter::default()
            },
            classes: [("web".to_owned(), "charged".to_owned())].into(),
            ..Shape::default()
        },
        ..files("part", Format::Csv, &folder.0)
    };
    let csv = text(&mut ledger, &output);
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(
        csv.lines()
            .skip(1)
            .all(|line| line.contains(",charged,down,"))
    );
    let proof = ledger.prove(None, None).unwrap();
    assert!(proof.holds(), "{proof:#?}");
    assert_eq!(proof.periods[0].outputs, ["part (part)"]);
    // A filter that accepts nothing makes no file.
    let nothing = Output {
        shape: Shape {
            filter: Filter {
                services: Some(vec!["mail".to_owned()]),
                ..Filter::default()
            },
            ..Shape::default()
        },
        ..files("nothing", Format::Csv, &folder.0)
    };
    assert_eq!(ledger.deliver(&nothing).unwrap(), []);
    assert!(!folder.at("nothing-00000001-00000002.csv").exists());
    assert!(ledger.prove(None, None).unwrap().holds());
}

#[test]
fn aggregates_add_up_within_a_chunk_and_carry_the_span() {
    let folder = Folder::new("aggregate");
    let mut ledger = ledger(&folder, 2);
    let shape = Shape {
        by: Some(vec![Column::Service]),
        span: Some(Span {
            group: Group::Month,
            zone: TimeZone::get("Europe/Berlin").unwrap(),
        }),
        ..Shape::default()
    };
    let output = Output {
        shape: shape.clone(),
        ..files("sum", Format::Csv, &folder.0)
    };
    let csv = text(&mut ledger, &output);
    let lines: Vec<&str> = csv.lines().skip(1).collect();
    assert_eq!(lines.len(), 2, "{csv}");
    // 10 up, 10 down, 1 unattributed up; the largest of the measure that does not add.
    assert!(lines[0].contains("1969-12-31T23:00:00Z,1970-01-31T23:00:00Z,,,,,,,web,,0,21,2100,,,"));
    assert!(lines[0].ends_with("\"{\"\"peak\"\":3}\""), "{}", lines[0]);
    let proof = ledger.prove(None, None).unwrap();
    assert!(proof.holds(), "{proof:#?}");
    let kept = Output {
        shape: Shape {
            by: Some(vec![Column::Subscriber, Column::Direction]),
            ..shape
        },
        ..files("kept", Format::JsonLines, &folder.0)
    };
    let json = text(&mut ledger, &kept);
    assert_eq!(json.lines().count(), 6, "{json}");
    let proof = ledger.prove(None, None).unwrap();
    assert_eq!(proof.periods[0].outputs, ["kept", "sum (part)"]);
}

#[test]
fn a_late_chunk_adjusts_and_changes_nothing_that_was_written() {
    let folder = Folder::new("late");
    let mut ledger = Ledger::open(&folder.at("ledger")).unwrap();
    let output = files("billing", Format::Csv, &folder.0);
    ledger.accept(&encode(&chunk(0, 0, 10))).unwrap();
    ledger.accept(&encode(&chunk(2, 2 * MINUTE, 10))).unwrap();
    let first = ledger.deliver(&output).unwrap();
    let before = fs::read(first[0].path.as_ref().unwrap()).unwrap();
    ledger.accept(&encode(&chunk(1, MINUTE, 10))).unwrap();
    let late = text(&mut ledger, &output);
    let flags = format!(",web,up,{},10,1000,", Flags::ADJUSTMENT.0);
    assert!(late.contains(&flags), "{late}");
    assert_eq!(fs::read(first[0].path.as_ref().unwrap()).unwrap(), before);
    ledger.accept(&encode(&chunk(3, 3 * MINUTE, 10))).unwrap();
    assert!(text(&mut ledger, &output).contains(",web,up,0,10,1000,"));
    let proof = ledger.prove(None, None).unwrap();
    assert!(proof.holds(), "{proof:#?}");
}

#[test]
fn periods_are_replayed_as_they_were() {
    let folder = Folder::new("replay");
    let mut ledger = ledger(&folder, 3);
    let output = files("billing", Format::Csv, &folder.0);
    let whole = text(&mut ledger, &output);
    let which = Replay {
        period: Some(1),
        counter: Some("pop-1".to_owned()),
        ..Replay::default()
    };
    let again = ledger.replay(&output, &which).unwrap();
    assert_eq!(again.records, 3);
    let path = again.path.unwrap();
    assert!(
        path.ends_with("billing-replay-00000002-00000002.csv"),
        "{path:?}"
    );
    let again = fs::read_to_string(path).unwrap();
    assert!(again.lines().all(|line| whole.lines().any(|it| it == line)));
    assert!(ledger.deliver(&output).unwrap().is_empty());
    let none = Replay {
        period: Some(9),
        ..Replay::default()
    };
    let said = ledger.replay(&output, &none).unwrap_err().to_string();
    assert!(said.contains("no such periods"), "{said}");
}

#[test]
fn a_collector_is_sent_messages_once_it_is_there() {
    let folder = Folder::new("collector");
    let mut ledger = ledger(&folder, 3);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let output = Output {
        name: "ipfix".to_owned(),
        target: Target::Collector {
            address: address.clone(),
        },
        shape: Shape::default(),
    };
    let said = ledger.deliver(&output).unwrap_err().to_string();
    assert!(
        said.contains(&address) && said.contains("tried again"),
        "{said}"
    );
    let listener = TcpListener::bind(&address).unwrap();
    let (bytes, delivered) = std::thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut bytes = Vec::new();
            let (mut stream, _) = wait::accept(&listener).unwrap();
            stream.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let delivered = ledger.deliver(&output).unwrap();
        (collector.join().unwrap(), delivered)
    });
    assert_eq!((delivered[0].records, &delivered[0].path), (9, &None));
    // The same messages as in a file.
    let file = ledger
        .deliver(&files("file", Format::Ipfix, &folder.0))
        .unwrap();
    assert_eq!(fs::read(file[0].path.as_ref().unwrap()).unwrap(), bytes);
    assert_eq!(bytes[..2], [0, 10]);
    assert!(ledger.prove(None, None).unwrap().holds());
    // One that ends amid the records: they are sent again, whole.
    ledger
        .accept(&encode(&common::chunk(3, 3 * MINUTE, 10)))
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = wait::accept(&listener).unwrap();
            let _ = stream.write_all(b"no");
        });
        // Closed with bytes unread: TCP resets.
        let _ = ledger.deliver(&output);
    });
}

#[test]
fn an_output_whose_folder_was_wrong_goes_to_the_right_one() {
    let folder = Folder::new("moved");
    let mut ledger = ledger(&folder, 1);
    let wrong = files("billing", Format::Csv, &folder.at("nowhere"));
    ledger.deliver(&wrong).unwrap_err();
    let right = files("billing", Format::JsonLines, &folder.0);
    let json = text(&mut ledger, &right);
    assert!(json.starts_with("{\"counter\":\"pop-1\""), "{json}");
    assert!(ledger.prove(None, None).unwrap().holds());
}
