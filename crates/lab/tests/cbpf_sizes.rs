//! weir's optimiser is not worse than libpcap's.

use weir_filter::lang::expr::Context;
use weir_lab::cbpf_sizes::{Row, row};
use weir_lab::corpus;
use weir_lab::oracle::Oracle;
use weir_wire::LinkType;

/// In a debug build, one expression in this many is compared.
const STRIDE: usize = if cfg!(debug_assertions) { 6 } else { 1 };

/// Families for which libpcap 1.10 has the semantics of 1.11, which weir
/// follows.
const UNCHANGED: &[&str] = &[
    "accessors",
    "arithmetic",
    "constants",
    "ether",
    "hosts",
    "lengths",
    "nets",
    "operators",
    "portranges",
    "ports",
    "qualifiers",
    "tags",
];

#[test]
fn no_expression_takes_more_instructions_than_libpcaps() {
    let Some(oracle) = Oracle::load() else { return };
    let follows = oracle
        .version_numbers()
        .is_some_and(|version| version >= (1, 11));
    let context = Context::new(LinkType::EN10MB);
    let entries = corpus::entries();
    let rows = entries.iter().step_by(STRIDE);
    let rows: Vec<Row> = rows
        .filter_map(|entry| row(&oracle, entry, &context))
        .filter(|row| !row.is_refused())
        .collect();
    let (mut libpcap, mut ours) = (0, 0);
    for row in &rows {
        let Some(insns) = &row.weir else { continue };
        libpcap += row.libpcap.len();
        ours += insns.len();
        if follows || UNCHANGED.contains(&row.entry.family) {
            assert!(
                insns.len() <= row.libpcap.len(),
                "{}: {} instructions, libpcap's {}",
                row.entry.text,
                insns.len(),
                row.libpcap.len()
            );
        }
    }
    assert!(rows.len() * STRIDE > 3_000, "{} expressions", rows.len());
    assert!(
        ours * 100 < libpcap * 95,
        "{ours} instructions, libpcap's {libpcap}"
    );
}
