//! The corpus has the size and composition that the differential test needs.

use weir_lab::corpus;
use weir_lab::oracle::Oracle;
use weir_wire::LinkType;

#[test]
fn is_large_and_the_same_every_time() {
    let entries = corpus::entries();
    assert!(entries.len() >= 2500, "{} expressions", entries.len());
    assert_eq!(entries, corpus::entries());
}

#[test]
fn has_many_accepted_and_many_refused() {
    let Some(oracle) = Oracle::load() else { return };
    let entries = corpus::entries();
    let accepted = entries
        .iter()
        .filter(|entry| oracle.compile(&entry.text, LinkType::EN10MB, false).is_ok())
        .count();
    let refused = entries.len() - accepted;
    println!(
        "{accepted} accepted, {refused} refused on EN10MB by {}",
        oracle.version()
    );
    assert!(
        accepted >= 2000 && refused >= 500,
        "{accepted} and {refused}"
    );
}
