//! Several runs of a part: the median of each figure, and the range for a further run.

use serde_json::{Map, Number, Value, json};
use weir_lab::results::Figures;

/// The member of a part's JSON that has the ranges, by JSON pointers (RFC 6901).
const RANGES: &str = "ranges";
/// The member with the number of runs. `runs` alone is a part's own: `setup` has its rows there.
const COUNT: &str = "runs_merged";

/// The member of a part's JSON that has least and most of a figure within one run.
const RANGE: &str = "range";

/// Quantiles 0.975 of Student's t distribution, by degrees of freedom from 1.
const T: [f64; 9] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262,
];

/// Most runs: there is a quantile for each.
pub(super) const RUNS_MAX: usize = T.len() + 1;

/// The JSON of several runs as one: each number is the median, and `ranges` has, for those that are
/// not always the same, where a further run's lies with 95 %. A member `range` becomes the range that
/// holds those of all runs. Of what is not the same in all runs and no number, the last counts; and of
/// rows that other runs have otherwise or not at all.
pub(super) fn merged(runs: &[Value]) -> Value {
    let mut ranges = Map::new();
    let all: Vec<&Value> = runs.iter().collect();
    let mut value = merge(&all, "", &mut ranges);
    if let Value::Object(fields) = &mut value {
        fields.insert(COUNT.to_owned(), json!(runs.len()));
        if !ranges.is_empty() {
            fields.insert(RANGES.to_owned(), Value::Object(ranges));
        }
    }
    value
}

fn merge(runs: &[&Value], path: &str, ranges: &mut Map<String, Value>) -> Value {
    let Some(last) = runs.last() else {
        return Value::Null;
    };
    match last {
        Value::Object(_) if runs.iter().any(|run| !are_alike(run, last)) => (*last).clone(),
        Value::Array(items) if runs.iter().any(|run| len(run) != Some(items.len())) => {
            (*last).clone()
        }
        Value::Object(fields) => {
            let members = fields.iter().map(|(name, _)| {
                let each: Vec<&Value> = runs.iter().filter_map(|run| run.get(name)).collect();
                let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
                let value = match name.as_str() {
                    RANGE => enclosing(&each),
                    _ => None,
                };
                let value = value.unwrap_or_else(|| merge(&each, &path, ranges));
                (name.clone(), value)
            });
            Value::Object(members.collect())
        }
        Value::Array(items) => {
            let items = (0..items.len()).map(|index| {
                let each: Vec<&Value> = runs.iter().filter_map(|run| run.get(index)).collect();
                merge(&each, &format!("{path}/{index}"), ranges)
            });
            Value::Array(items.collect())
        }
        Value::Number(number) if runs.iter().any(|run| run != last) => {
            let values: Vec<f64> = runs.iter().filter_map(|run| run.as_f64()).collect();
            if let Some([least, most]) = range(&values) {
                ranges.insert(path.to_owned(), json!([least, most]));
            }
            let median = Figures::of(values).map(|figures| figures.median());
            let median = median.and_then(Number::from_f64);
            Value::Number(median.unwrap_or_else(|| number.clone()))
        }
        other => (*other).clone(),
    }
}

fn len(value: &Value) -> Option<usize> {
    value.as_array().map(Vec::len)
}

/// The range that holds the ranges of all runs, if they are such. Its ends are no figures, and have no
/// ranges of their own.
fn enclosing(runs: &[&Value]) -> Option<Value> {
    let ends = runs.iter().map(|run| match run.as_array()?.as_slice() {
        [least, most] => Some((least.as_f64()?, most.as_f64()?)),
        _ => None,
    });
    let ends: Vec<(f64, f64)> = ends.collect::<Option<_>>()?;
    let least = ends.iter().map(|(least, _)| *least).reduce(f64::min)?;
    let most = ends.iter().map(|(_, most)| *most).reduce(f64::max)?;
    Some(json!([least, most]))
}

/// Whether two objects are of the same thing: their texts say what it is.
pub(super) fn are_alike(one: &Value, other: &Value) -> bool {
    texts(one).eq(texts(other))
}

/// The members of an object that are texts, with their names.
fn texts(value: &Value) -> impl Iterator<Item = (&String, &str)> {
    let fields = value.as_object().into_iter().flatten();
    fields.filter_map(|(name, value)| Some((name, value.as_str()?)))
}

/// The least range, as a share of the mean to either side: runs that follow each other do not show
/// how the machine changes from hour to hour.
const RANGE_MIN: f64 = 0.05;

/// Where a further value lies with 95 %, if they are distributed normally, and at least [`RANGE_MIN`];
/// what is never negative is not expected to be.
fn range(values: &[f64]) -> Option<[f64; 2]> {
    let t = T.get(values.len().checked_sub(2)?)?;
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    let deviation = (squares.sum::<f64>() / (count - 1.0)).sqrt();
    let half = t * deviation * (1.0 + 1.0 / count).sqrt();
    let half = half.max(RANGE_MIN * mean.abs());
    let least = if values.iter().any(|value| *value < 0.0) {
        mean - half
    } else {
        (mean - half).max(0.0)
    };
    Some([least, mean + half])
}

/// The ranges of a part's JSON.
pub(super) fn ranges(json: &Value) -> impl Iterator<Item = (&String, [f64; 2])> {
    let all = json.get(RANGES).and_then(Value::as_object);
    all.into_iter().flatten().filter_map(|(path, range)| {
        let of = |at: usize| range.get(at)?.as_f64();
        Some((path, [of(0)?, of(1)?]))
    })
}

/// The JSON with a text for each number that has a range, which says it; without the ranges.
pub(super) fn with_ranges(json: &Value, text: impl Fn(f64) -> String) -> Value {
    let mut shown = json.clone();
    for (path, [least, most]) in ranges(json) {
        if let Some(value) = shown.pointer_mut(path)
            && let Some(median) = value.as_f64()
        {
            let (median, least, most) = (text(median), text(least), text(most));
            *value = Value::String(format!("{median} ({least} to {most})"));
        }
    }
    if let Value::Object(fields) = &mut shown {
        fields.remove(RANGES);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> [Value; 3] {
        [3.0, 1.0, 2.0].map(|time| {
            json!({"rows": [{"what": "a/b", "paper": 7, "now": time, "a/b": -time}], "holds": time < 3.0})
        })
    }

    #[test]
    fn runs_become_medians_with_the_range_of_a_further_one() {
        let merged = merged(&runs());
        assert_eq!(merged["rows"][0]["now"], 2.0);
        assert_eq!(merged["rows"][0]["paper"], 7);
        assert_eq!(merged["holds"], true);
        assert_eq!(merged["runs_merged"], 3);
        // 2 ± 4.303 · 1 · √(4/3), and nothing below zero where nothing was.
        let ranges = merged["ranges"].as_object().unwrap();
        assert_eq!(ranges.len(), 2, "{ranges:?}");
        let of = |path: &str| [0, 1].map(|at| ranges[path][at].as_f64().unwrap());
        let [least, most] = of("/rows/0/now");
        assert_eq!(least, 0.0);
        assert!((most - 6.969).abs() < 1e-3, "{most}");
        assert!((of("/rows/0/a~1b")[0] + 6.969).abs() < 1e-3);
    }

    #[test]
    fn a_range_is_not_narrower_than_a_machines_moods() {
        let runs = [100.0, 100.1, 100.2].map(|time| json!({ "now": time }));
        let range = &merged(&runs)["ranges"]["/now"];
        let [least, most] = [0, 1].map(|at| range[at].as_f64().unwrap());
        assert!((least - 95.095).abs() < 1e-3 && (most - 105.105).abs() < 1e-3);
    }

    #[test]
    fn a_parts_own_runs_stay() {
        let runs = [1.0, 2.0].map(|ms| json!({ "runs": [{ "ms": ms }] }));
        let merged = merged(&runs);
        assert_eq!(merged["runs"][0]["ms"], 1.5);
        assert!(merged["ranges"]["/runs/0/ms"].is_array(), "{merged}");
    }

    #[test]
    fn ranges_within_the_runs_become_one_that_holds_them() {
        let runs = [[1.0, 3.0], [2.0, 2.5], [0.5, 2.0]].map(|range| json!({ "range": range }));
        let merged = merged(&runs);
        assert_eq!(merged["range"], json!([0.5, 3.0]));
        assert!(merged.get("ranges").is_none(), "{merged}");
        let others = ["1 to 3", "2 to 3"].map(|range| json!({ "range": range }));
        assert_eq!(super::merged(&others)["range"], "2 to 3");
    }

    #[test]
    fn rows_that_not_all_runs_have_are_not_mixed() {
        let row = |what: &str, now: f64| json!({ "what": what, "now": now });
        let lacks_one = [
            json!({ "rows": [row("MUX", 1.0), row("OPT", 2.0)] }),
            json!({ "rows": [row("OPT", 4.0)] }),
        ];
        let (both, last) = (merged(&lacks_one), &lacks_one[1]);
        assert_eq!(both["rows"], last["rows"]);
        assert!(both.get("ranges").is_none(), "{both}");
        let others = [
            json!({ "rows": [row("MUX", 1.0), row("same", 2.0)] }),
            json!({ "rows": [row("OPT", 4.0), row("same", 3.0)] }),
        ];
        let both = merged(&others);
        assert_eq!(both["rows"][0], row("OPT", 4.0));
        assert_eq!(both["rows"][1]["now"], 2.5);
        assert_eq!(both["ranges"].as_object().unwrap().len(), 1);
    }

    #[test]
    fn one_run_has_no_ranges() {
        let merged = merged(&runs()[..1]);
        assert_eq!(merged["rows"][0]["now"], 3.0);
        assert!(merged.get("ranges").is_none());
    }

    #[test]
    fn ranges_are_shown_beside_the_figures() {
        let shown = with_ranges(&merged(&runs()), |number| format!("{number:.1}"));
        assert_eq!(shown["rows"][0]["now"], "2.0 (0.0 to 7.0)");
        assert_eq!(shown["rows"][0]["paper"], 7);
        assert!(shown.get("ranges").is_none());
    }
}
