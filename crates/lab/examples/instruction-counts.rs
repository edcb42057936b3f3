//! Prints how many classic BPF instructions each expression of the shared
//! corpus takes, ours beside libpcap's.
//!
//! ```text
//! cargo run --release -p weir-lab --example instruction-counts [--all | EXPRESSION …]
//! ```
//!
//! Without arguments: the sums by family, and every expression that takes more
//! than libpcap's, with a frame on which the two programs differ, if one was
//! found. With `--all`: every expression. Expressions for which libpcap's
//! program loops, which the kernel refuses, are counted apart.
//! `WEIR_LIBPCAP=/path/libpcap.so` names another libpcap.

use std::collections::BTreeMap;
use weir_filter::lang::cbpf::Insn;
use weir_filter::lang::expr::Context;
use weir_lab::corpus::Entry;
use weir_lab::counts::{Row, difference, row, rows};
use weir_lab::oracle::Oracle;
use weir_wire::LinkType;

/// Sums over some rows.
#[derive(Default)]
struct Sums {
    expressions: usize,
    libpcap: usize,
    ours: usize,
    fewer: usize,
    more: usize,
}

impl Sums {
    fn add(&mut self, libpcap: usize, ours: usize) {
        self.expressions += 1;
        self.libpcap += libpcap;
        self.ours += ours;
        self.fewer += usize::from(ours < libpcap);
        self.more += usize::from(ours > libpcap);
    }

    fn print(&self, name: &str) {
        println!(
            "{name:<16} {:>11} {:>9} {:>9} {:>7.1} % {:>7} {:>7}",
            self.expressions,
            self.libpcap,
            self.ours,
            100.0 * self.ours as f64 / self.libpcap.max(1) as f64,
            self.fewer,
            self.more,
        );
    }
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
    sums(&rows, |row| row.ours.as_deref());
    println!("\nfrom libpcap's unoptimised programs");
    sums(&rows, |row| row.lifted.as_deref());
    println!("\nunoptimised, libpcap's, ours; where ours is longer:");
    list(&rows, all);
}

fn sums(rows: &[Row], ours: impl Fn(&Row) -> Option<&[Insn]>) {
    println!(
        "{:<16} {:>11} {:>9} {:>9} {:>9} {:>7} {:>7}",
        "family", "expressions", "libpcap", "weir", "ratio", "fewer", "more"
    );
    let mut families: BTreeMap<&str, Sums> = BTreeMap::new();
    let (mut total, mut loops, mut skipped) = (Sums::default(), Sums::default(), 0);
    for row in rows {
        let Some(ours) = ours(row) else {
            skipped += 1;
            continue;
        };
        if row.loops() {
            loops.add(row.libpcap.len(), ours.len());
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
    loops.print("libpcap loops");
    println!("{skipped} expressions that libpcap takes are not compared");
}

fn list(rows: &[Row], all: bool) {
    for row in rows {
        let Some(ours) = &row.ours else { continue };
        let longer = ours.len() > row.libpcap.len() && !row.loops();
        if !all && !longer {
            continue;
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
}
