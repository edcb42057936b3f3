//! Records are taken apart whatever their header, and whatever they claim.

use weir_demux::kernel::record::{FLAG_VLAN, Record, RecordError};

/// The bit of the short header.
const SHORT: u32 = 16;

fn record(words: &[u32], bytes: &[u8]) -> Vec<u8> {
    let header = words.iter().flat_map(|word| word.to_ne_bytes());
    header.chain(bytes.iter().copied()).collect()
}

#[test]
fn a_short_header_says_the_same_as_a_long_one() {
    let bytes: Vec<u8> = (0..64).collect();
    let short = record(&[60, 7, 5, 3 << 16 | FLAG_VLAN | SHORT], &bytes);
    let long = record(&[60, 60, 5, FLAG_VLAN, 0, 7, 0, 3, 0, 0], &bytes);
    let parsed = Record::parse(&short).unwrap();
    assert_eq!(parsed, Record::parse(&long).unwrap());
    assert_eq!(parsed.bytes, &bytes[..60]);
    assert_eq!((parsed.tag, parsed.ifindex, parsed.queue), (5, 7, 3));
    assert_eq!((parsed.wire_len, parsed.flags), (60, FLAG_VLAN));
}

#[test]
fn a_record_that_claims_more_than_it_has_is_none() {
    let short = |wire_len| record(&[wire_len, 0, 0, SHORT], &[0; 64]);
    assert!(Record::parse(&short(64)).is_ok());
    let cut = short(65);
    let error = Record::parse(&cut);
    let (len, captured) = (80, 65);
    assert_eq!(error, Err(RecordError::Cut { len, captured }));
    let long = record(&[90, 65, 0, 0, 0, 0, 0, 0, 0, 0], &[0; 64]);
    let (len, captured) = (104, 65);
    let error = Record::parse(&long);
    assert_eq!(error, Err(RecordError::Cut { len, captured }));
}

#[test]
fn a_piece_of_a_header_is_no_record() {
    let (short, long) = (record(&[0, 0, 0, SHORT], &[]), record(&[0; 10], &[]));
    assert!(Record::parse(&short).is_ok() && Record::parse(&long).is_ok());
    for (whole, header) in [(short, 16), (long, 40)] {
        for len in 0..header {
            let error = Record::parse(&whole[..len]);
            assert_eq!(error, Err(RecordError::Short { len }));
        }
    }
}
