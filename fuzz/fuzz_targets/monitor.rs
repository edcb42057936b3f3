//! Bytes as a frame of any link type: put into a line, counted, decoded within the limits, and
//! followed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_monitor::tree::{FIELDS_MAX, LAYERS_MAX, decode, payload, server_name};
use weir_monitor::{Digest, Follow, Limits, Model, Seen, frame_summary};
use weir_wire::LinkType;

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    let linktype = LinkType::NAMED[usize::from(*first) % LinkType::NAMED.len()].0;
    let line = frame_summary::line(bytes, bytes.len(), linktype);
    assert!(!line.is_empty() && line.len() <= frame_summary::LINE_MAX);
    assert!(!line.chars().any(char::is_control));
    let layers = decode(bytes, linktype);
    assert!(layers.len() <= LAYERS_MAX);
    assert!(layers.iter().map(|layer| layer.fields.len()).sum::<usize>() <= FIELDS_MAX);
    for layer in &layers {
        assert!(layer.range.end <= bytes.len());
        for field in &layer.fields {
            assert!(field.range.start <= field.range.end && field.range.end <= bytes.len());
            assert!(!field.value.chars().any(char::is_control));
        }
    }
    let payload = payload(bytes, linktype);
    assert!(payload.start <= payload.end && payload.end <= bytes.len());
    let _ = server_name(bytes);
    let mut model = Model::new(Limits::default(), [1, 2]);
    // Several frames: each piece of the bytes.
    let mut follow: Option<Follow> = None;
    for piece in bytes.chunks(usize::from(*first).max(40)) {
        model.frame(&Seen {
            bytes: piece,
            len: piece.len() as u32,
            time_ns: Some(i64::from(piece[0])),
            linktype,
            lost_before: 0,
        });
        let digest = Digest::of(piece, linktype);
        let follow = follow.get_or_insert_with(|| Follow::new(digest.flow().0));
        follow.frame(piece, &digest);
    }
    assert!(follow.is_none_or(|follow| follow.finish().0.len() <= bytes.len() + 1));
});
