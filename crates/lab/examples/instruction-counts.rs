//! Prints the number of classic BPF instructions for each expression of the shared corpus, weir's
//! beside libpcap's.
//!
//! ```text
//! cargo run --release -p weir-lab --example instruction-counts [--all | EXPRESSION …]
//! ```
//!
//! Without arguments: the sums by family, and every expression with more instructions than
//! libpcap's, with a frame on which the two programs differ, if one was found. With `--all`: every
//! expression. Both from weir's front end and from libpcap's unoptimised programs. libpcap's
//! programs that the kernel refuses are counted separately. `WEIR_LIBPCAP=/path/libpcap.so` selects
//! another libpcap.

use std::collections::BTreeMap;
use weir_filter::lang::cbpf::Insn;
use weir_filter::lang::expr::Context;
use weir_lab::cbpf_sizes::{Row, difference, row, rows};
use weir_lab::corpus::Entry;
use weir_lab::oracle::Oracle;
use weir_wire::LinkType;

/// Total lengths of some programs, libpcap's and weir's.
#[derive(Default)]
struct Sums {
    libpcap: Vec<usize>,
    ours: Vec<usize>,
    fewer: usize,
    more: usize,
}

impl Sums {
    fn add(&mut self, libpcap: usize, ours: usize) {
        self.libpcap.push(libpcap);
        self.ours.push(ours);
        self.fewer += usize::from(ours < libpcap);
        self.more += usize::from(ours > libpcap);
    }

    fn print(&self, name: &str) {
        let libpcap: usize = self.libpcap.iter().sum();
        let ours: usize = self.ours.iter().sum();
        println!(
            "{name:<16} {:>11} {libpcap:>9} {ours:>9} {:>7.1} % {:>7} {:>7} {:>7} {:>9}",
            self.libpcap.len(),
            100.0 * ours as f64 / libpcap.max(1) as f64,
            self.fewer,
            self.libpcap.len() - self.fewer - self.more,
            self.more,
            format!("{}, {}", median(&self.libpcap), median(&self.ours)),
        );
    }
}

fn median(lengths: &[usize]) -> usize {
    let mut lengths = lengths.to_vec();
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).copied().unwrap_or(0)
}

fn main() {
    let Some(oracle) = Oracle::load() else { return };
    let context = Context::new(LinkType::EN10MB);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let all = arguments
        .first()
        .is_some_and(|argument| argument == "--all");
    let rows = if all || arguments.is_empty() {
        rows(&oracle, &context)
    } else {
        let entry = |text| Entry {
            family: "given",
            text,
        };
        let entries = arguments.into_iter().map(entry);
        entries
            .filter_map(|entry| row(&oracle, &entry, &context))
            .collect()
    };
    println!("{}", oracle.version());
    println!("\nfrom weir's front end");
    report(&rows, all, |row| row.weir.as_deref());
    println!("\nfrom libpcap's unoptimised programs");
    report(&rows, all, |row| row.lifted.as_deref());
}

fn report(rows: &[Row], all: bool, ours: impl Fn(&Row) -> Option<&[Insn]>) {
    println!(
        "{:<16} {:>11} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>9}",
        "family", "expressions", "libpcap", "weir", "ratio", "fewer", "same", "more", "medians"
    );
    let mut families: BTreeMap<&str, Sums> = BTreeMap::new();
    let (mut total, mut refused, mut skipped) = (Sums::default(), Sums::default(), 0);
    for row in rows {
        let Some(ours) = ours(row) else {
            skipped += 1;
            continue;
        };
        if row.is_refused() {
            refused.add(row.libpcap.len(), ours.len());
            continue;
        }
        let family = families.entry(row.entry.family).or_default();
        family.add(row.libpcap.len(), ours.len());
        total.add(row.libpcap.len(), ours.len());
    }
    for (family, sums) in &families {
        sums.print(family);
    }
    total.print("all");
    refused.print("kernel refuses");
    println!("{skipped} expressions that libpcap takes are not compared");
    println!("\nunoptimised, libpcap's, ours; where ours is longer:");
    for row in rows {
        if let Some(ours) = ours(row) {
            list(row, ours, all);
        }
    }
}

fn list(row: &Row, ours: &[Insn], all: bool) {
    let longer = ours.len() > row.libpcap.len() && !row.is_refused();
    if !all && !longer {
        return;
    }
    let (text, libpcap) = (&row.entry.text, row.libpcap.len());
    println!(
        "{:>6} {libpcap:>6} {:>6}  {text}",
        row.unoptimised.len(),
        ours.len()
    );
    if longer {
        match difference(ours, &row.libpcap, 1) {
            Some(frame) => println!(
                "{:>22} on a frame of {} bytes",
                "other verdict",
                frame.bytes.len()
            ),
            None => println!("{:>22}", "no difference found"),
        }
    }
}
