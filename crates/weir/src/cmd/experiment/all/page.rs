//! The HTML page of all results.

use super::super::NOT_IN_OUR_COPY;
use super::Outcome;
use super::against::Compared;
use super::merge::with_ranges;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt::Write;

/// The page's beginning.
const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
<title>The papers' experiments</title>\n<style>\n\
body { font-family: sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }\n\
table { border-collapse: collapse; margin: 0.5em 0 }\n\
th, td { border: 1px solid #bbb; padding: 0.2em 0.6em; text-align: left }\n\
td.number { text-align: right; font-variant-numeric: tabular-nums }\n\
img { max-width: 100% }\n.no { color: #a00 }\n</style>\n</head>\n<body>\n\
<h1>The papers' experiments</h1>\n\
<p>Figures of this machine beside those that the papers state. Where our copy of a paper lacks a \
value, it says so. A figure is the median of some runs, and in brackets the range in which a further \
run's lies with 95 %, at least 5 % to either side. Plots are of the last run.</p>\n";

/// The page.
pub(super) fn html(outcomes: &[Outcome], agreements: Option<&[Compared]>) -> String {
    let mut out = HEAD.to_owned();
    out += "<ul>\n";
    for Outcome { part, .. } in outcomes {
        let _ = writeln!(
            out,
            "<li><a href=\"#{0}\">{1}</a></li>",
            part.name, part.title
        );
    }
    out += "</ul>\n";
    if let Some(agreements) = agreements {
        show_agreements(&mut out, agreements);
    }
    for outcome in outcomes {
        let part = outcome.part;
        let _ = writeln!(out, "<h2 id=\"{}\">{}</h2>", part.name, part.title);
        let _ = writeln!(out, "<p><code>weir experiment {}</code></p>", part.name);
        match &outcome.result {
            Ok(value) => {
                let _ = writeln!(out, "<p><a href=\"{0}.json\">{0}.json</a></p>", part.name);
                show(&mut out, &with_ranges(value, rounded), 3);
            }
            Err(why) => {
                let _ = writeln!(out, "<p class=\"no\">{}</p>", escaped(why));
            }
        }
        for plot in &outcome.plots {
            let _ = writeln!(out, "<p><img src=\"{0}\" alt=\"{0}\"></p>", escaped(plot));
        }
    }
    out += "</body>\n</html>\n";
    out
}

/// How each part agrees with an earlier run.
fn show_agreements(out: &mut String, agreements: &[Compared]) {
    *out += "<h2>Agreement with the earlier run</h2>\n<table>\n<tr><th>part</th><th>figures</th>\
             <th>outside of its ranges</th></tr>\n";
    for Compared { part, agreement } in agreements {
        let named = agreement.outside.iter();
        let named = named.map(|one| format!("<br>{}", escaped(&one.text())));
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"number\">{}</td><td>{}{}</td></tr>",
            part.name,
            agreement.figures,
            agreement.outside.len(),
            named.collect::<String>()
        );
    }
    *out += "</table>\n";
}

/// Any value: an object's lists of objects become tables, the rest a list.
fn show(out: &mut String, value: &Value, level: usize) {
    match value {
        Value::Object(fields) => {
            let (plain, nested): (Vec<_>, Vec<_>) =
                fields.iter().partition(|(_, value)| is_plain(value));
            if !plain.is_empty() {
                *out += "<table>\n";
                for (name, value) in plain {
                    let _ = writeln!(out, "<tr><th>{}</th>{}</tr>", escaped(name), cell(value));
                }
                *out += "</table>\n";
            }
            for (name, value) in nested {
                let level = level.min(6);
                let _ = writeln!(out, "<h{level}>{}</h{level}>", escaped(name));
                show(out, value, level + 1);
            }
        }
        Value::Array(items) if items.iter().all(Value::is_object) && !items.is_empty() => {
            table(out, items);
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(text).collect();
            let _ = writeln!(out, "<p>{}</p>", escaped(&items.join(", ")));
        }
        other => {
            let _ = writeln!(out, "<p>{}</p>", escaped(&text(other)));
        }
    }
}

fn is_plain(value: &Value) -> bool {
    !value.is_object() && !value.is_array()
}

/// Cells of a table at most: no part's has a tenth of it.
const CELLS_MAX: usize = 10_000;

/// A table with a column for each name, in order of appearance.
fn table(out: &mut String, rows: &[Value]) {
    let flat: Vec<Map<String, Value>> = rows
        .iter()
        .filter_map(Value::as_object)
        .map(flattened)
        .collect();
    let mut names: Vec<&String> = Vec::new();
    let mut seen = HashSet::new();
    for name in flat.iter().flat_map(Map::keys) {
        if seen.insert(name) {
            names.push(name);
        }
    }
    if names.len() * rows.len() > CELLS_MAX {
        let (rows, columns) = (rows.len(), names.len());
        let _ = writeln!(
            out,
            "<p>{rows} rows of {columns} columns: too many for this page.</p>"
        );
        return;
    }
    // A row without the paper's value has `paper`, others `paper.text` and so on.
    if names.iter().any(|name| name.starts_with("paper.")) {
        names.retain(|name| *name != "paper");
    }
    *out += "<table>\n<tr>";
    for name in &names {
        let _ = write!(out, "<th>{}</th>", escaped(name));
    }
    *out += "</tr>\n";
    for row in &flat {
        *out += "<tr>";
        for name in &names {
            *out += &match row.get(*name) {
                Some(Value::Null) if is_papers(name) => format!("<td>{NOT_IN_OUR_COPY}</td>"),
                None if is_papers(name) && lacks_paper(row) => {
                    format!("<td>{NOT_IN_OUR_COPY}</td>")
                }
                Some(value) => cell(value),
                None => "<td></td>".to_owned(),
            };
        }
        *out += "</tr>\n";
    }
    *out += "</table>\n";
}

/// Whether a column has what the paper states.
fn is_papers(name: &str) -> bool {
    name.starts_with("paper")
}

/// Whether a row has nothing of the paper's.
fn lacks_paper(row: &Map<String, Value>) -> bool {
    row.get("paper").is_some_and(Value::is_null)
}

/// An object whose objects have become fields of their own: `a.b`.
fn flattened(object: &Map<String, Value>) -> Map<String, Value> {
    let mut flat = Map::new();
    for (name, value) in object {
        match value {
            Value::Object(inner) => {
                let inner = flattened(inner).into_iter();
                flat.extend(inner.map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            other => {
                flat.insert(name.clone(), other.clone());
            }
        }
    }
    flat
}

fn cell(value: &Value) -> String {
    let class = match value {
        Value::Number(_) => " class=\"number\"",
        // With its range.
        Value::String(text) if text.ends_with(')') && text.starts_with(is_of_number) => {
            " class=\"number\""
        }
        Value::Bool(false) => " class=\"no\"",
        _ => "",
    };
    format!("<td{class}>{}</td>", escaped(&text(value)))
}

fn is_of_number(first: char) -> bool {
    first == '-' || first.is_ascii_digit()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => rounded(float),
            _ => number.to_string(),
        },
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Object(_) => value.to_string(),
    }
}

/// Four digits that count.
pub(super) fn rounded(number: f64) -> String {
    match number.abs() {
        size if size >= 1000.0 || size == 0.0 => format!("{number:.0}"),
        size if size >= 100.0 => format!("{number:.1}"),
        size if size >= 10.0 => format!("{number:.2}"),
        size if size >= 0.01 => format!("{number:.3}"),
        _ => format!("{number:.2e}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::PARTS;
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_become_a_table_and_failures_are_listed() {
        let value = json!({
            "rows": [{"a": 1, "b": {"c": "<x>"}}, {"a": 2.5}],
            "seed": 7,
            "costs": [{"paper": {"text": "53", "value": 53}, "now": 2.0}, {"paper": null, "now": 3}],
            "ranges": {"/costs/0/now": [1.5, 2.5]},
        });
        let outcomes = [
            Outcome {
                part: &PARTS[0],
                result: Ok(value),
                plots: vec!["tpca/figure4.svg".to_owned()],
            },
            Outcome {
                part: &PARTS[1],
                result: Err("failed <1>".to_owned()),
                plots: Vec::new(),
            },
        ];
        let page = html(&outcomes, None);
        for piece in [
            "<tr><th>seed</th><td class=\"number\">7</td></tr>",
            "<tr><th>a</th><th>b.c</th></tr>",
            "<tr><td class=\"number\">1</td><td>&lt;x&gt;</td></tr>",
            "<tr><td class=\"number\">2.500</td><td></td></tr>",
            "<p class=\"no\">failed &lt;1&gt;</p>",
            "<tr><th>now</th><th>paper.text</th><th>paper.value</th></tr>",
            "<td class=\"number\">2.000 (1.500 to 2.500)</td>",
            "<td class=\"number\">3</td><td>not in our copy</td><td>not in our copy</td></tr>",
            "<img src=\"tpca/figure4.svg\"",
        ] {
            assert!(page.contains(piece), "{piece} in {page}");
        }
    }
}
