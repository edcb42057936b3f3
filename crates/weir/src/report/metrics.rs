//! Metrics of commands: the text of Prometheus' exposition format, version 0.0.4, and the server that
//! shows it.

use crate::error::{CliError, say};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time limit for a metrics client to send its request and read the response.
const CLIENT_MAX: Duration = Duration::from_secs(1);
/// Clients that are served at a time; a further one is closed.
const CLIENTS_MAX: usize = 64;
/// Largest request, in bytes.
const QUESTION_BYTES_MAX: usize = 4096;

/// A counter's name, its help, and its value in a row.
pub(crate) type CounterOf<T> = (&'static str, &'static str, fn(&T) -> u64);

/// The metrics of a command, as text.
#[derive(Debug)]
pub(crate) struct Exposition {
    prefix: &'static str,
    text: String,
}

impl Exposition {
    /// No metrics yet; names begin with `prefix`, such as `weir_route_`.
    pub(crate) fn new(prefix: &'static str) -> Exposition {
        Exposition {
            prefix,
            text: String::new(),
        }
    }

    /// Adds a metric of this type (`counter`, `gauge`) with a line for each row of [labels](label)
    /// and value.
    pub(crate) fn metric(&mut self, name: &str, kind: &str, help: &str, rows: &[(String, u64)]) {
        let (prefix, out) = (self.prefix, &mut self.text);
        let _ = writeln!(out, "# HELP {prefix}{name} {help}");
        let _ = writeln!(out, "# TYPE {prefix}{name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(out, "{prefix}{name}{labels} {value}");
        }
    }

    /// Adds these counters of links, each with a line for each link.
    pub(crate) fn of_links<'l, L: 'l>(
        &mut self,
        links: impl Iterator<Item = (&'l str, &'l L)> + Clone,
        counters: &[CounterOf<L>],
    ) {
        for (name, help, value) in counters {
            let lines = links
                .clone()
                .map(|(link, counts)| (label("link", link), value(counts)));
            self.metric(name, "counter", help, &lines.collect::<Vec<_>>());
        }
    }

    /// Adds these counters, each with a line for each row, which has [labels](label).
    pub(crate) fn counters<T>(&mut self, rows: &[(String, T)], counters: &[CounterOf<T>]) {
        for (name, help, value) in counters {
            let lines = rows
                .iter()
                .map(|(labels, row)| (labels.clone(), value(row)));
            self.metric(name, "counter", help, &lines.collect::<Vec<_>>());
        }
    }

    /// Adds a metric without labels.
    pub(crate) fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.metric(name, kind, help, &[(String::new(), value)]);
    }
}

/// A label, with its value escaped.
pub(crate) fn label(name: &str, value: &str) -> String {
    labels(&[(name, value)])
}

/// Labels, with their values escaped.
pub(crate) fn labels(labels: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        format!("{name}=\"{}\"", value.replace('\n', "\\n"))
    };
    let all: Vec<String> = labels.iter().map(one).collect();
    format!("{{{}}}", all.join(","))
}

/// An address to listen at, of `--metrics`.
///
/// # Errors
/// The correct form.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| "write an address and a port, as in 127.0.0.1:9600 or [::1]:9600".to_owned();
    text.parse().map_err(wrong)
}

/// Serves the last metrics on a separate thread, so that a slow reader delays no frame. Copies are the
/// same server: a command's parts, such as a bridge and its counter, each show their own.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    parts: Arc<Mutex<Parts>>,
    /// Where it listens.
    #[cfg(test)]
    address: SocketAddr,
}

/// The text of each part, by the prefix of its names.
type Parts = BTreeMap<&'static str, String>;

impl Metrics {
    /// Listens at the address; port 0 chooses a free port, which is printed.
    pub(crate) fn serve(address: SocketAddr) -> Result<Metrics, CliError> {
        let cannot = |error: io::Error| CliError::run(format!("metrics at {address}: {error}"));
        let listener = TcpListener::bind(address).map_err(cannot)?;
        let at = listener.local_addr().map_err(cannot)?;
        if address.port() == 0 {
            say(&format!("weir: metrics at http://{at}/metrics"));
        }
        let parts = Arc::new(Mutex::new(Parts::new()));
        let shown = Arc::clone(&parts);
        let serve = move || {
            let clients = Arc::new(());
            for client in listener.incoming() {
                let Ok(client) = client else {
                    // Out of descriptors, for example.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                };
                // Each client that is served holds one; what is beyond the limit is closed.
                let served = Arc::clone(&clients);
                if Arc::strong_count(&served) > CLIENTS_MAX + 1 {
                    continue;
                }
                let text = text(&shown.lock().unwrap_or_else(PoisonError::into_inner));
                let serve = move || {
                    let _served = served;
                    // A client that has disconnected is not an error.
                    let _ = answer(client, &text);
                };
                // Without a thread the client is closed.
                let _ = std::thread::Builder::new()
                    .name("metrics".into())
                    .spawn(serve);
            }
        };
        let thread = std::thread::Builder::new().name("metrics".into());
        thread.spawn(serve).map_err(cannot)?;
        Ok(Metrics {
            parts,
            #[cfg(test)]
            address: at,
        })
    }

    /// Replaces what is served of these names.
    pub(crate) fn show(&self, metrics: Exposition) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(metrics.prefix, metrics.text);
    }
}

fn text(parts: &Parts) -> String {
    parts.values().map(String::as_str).collect()
}

fn answer(mut client: TcpStream, text: &str) -> io::Result<()> {
    client.set_read_timeout(Some(CLIENT_MAX))?;
    let mut question = Vec::new();
    let mut piece = [0; 512];
    let began = Instant::now();
    while !question.windows(4).any(|end| end == b"\r\n\r\n") {
        let len = client.read(&mut piece)?;
        question.extend_from_slice(&piece[..len]);
        let is_slow = began.elapsed() > CLIENT_MAX;
        if len == 0 || is_slow || question.len() > QUESTION_BYTES_MAX {
            return Ok(());
        }
    }
    let path = question.split(|byte| *byte == b' ').nth(1);
    let (status, text) = match path {
        Some(b"/metrics" | b"/") => ("200 OK", text),
        _ => ("404 Not Found", "metrics are at /metrics\n"),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    let answer = [head.as_bytes(), text.as_bytes()].concat();
    let mut left = &answer[..];
    while !left.is_empty() {
        let time = CLIENT_MAX.saturating_sub(began.elapsed());
        // Zero would be no limit.
        client.set_write_timeout(Some(time.max(Duration::from_millis(1))))?;
        let written = client.write(left)?;
        if written == 0 || began.elapsed() > CLIENT_MAX {
            break;
        }
        left = &left[written..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_its_help_type_and_escaped_labels() {
        let mut out = Exposition::new("weir_test_");
        let rows = [(label("name", "a\"b\\c\nd"), 7)];
        out.metric("frames_total", "counter", "Frames.", &rows);
        out.one("sessions", "gauge", "Sessions.", 3);
        assert_eq!(
            out.text,
            "# HELP weir_test_frames_total Frames.\n\
             # TYPE weir_test_frames_total counter\n\
             weir_test_frames_total{name=\"a\\\"b\\\\c\\nd\"} 7\n\
             # HELP weir_test_sessions Sessions.\n\
             # TYPE weir_test_sessions gauge\n\
             weir_test_sessions 3\n"
        );
    }

    #[test]
    fn idle_clients_keep_no_other_waiting() {
        let server = Metrics::serve(([127, 0, 0, 1], 0).into()).unwrap();
        let mut out = Exposition::new("weir_test_");
        out.one("a", "gauge", "A.", 5);
        server.show(out);
        let at = server.address;
        // A client beyond the limit is closed before the first one's time is over. A machine that
        // stands still for that time gets another try.
        let is_limited = || {
            let idle: Vec<TcpStream> = (0..=CLIENTS_MAX)
                .map(|_| TcpStream::connect(at).unwrap())
                .collect();
            let (mut first, mut last) = (&idle[0], &idle[CLIENTS_MAX]);
            last.set_read_timeout(Some(20 * CLIENT_MAX)).unwrap();
            assert_eq!(last.read(&mut [0]).unwrap_or(0), 0);
            first.set_nonblocking(true).unwrap();
            let is_open = first.read(&mut [0]);
            is_open.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        assert!((0..5).any(|_| is_limited()));
        let _idle: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
        let began = Instant::now();
        // Clients of the tries before may still be served for a moment, and this one be one too many.
        let asked = || {
            let mut client = TcpStream::connect(at)?;
            client.set_read_timeout(Some(20 * CLIENT_MAX))?;
            client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
            let mut said = String::new();
            client.read_to_string(&mut said).map(|_| said)
        };
        while !asked().is_ok_and(|said| said.ends_with("weir_test_a 5\n")) {
            assert!(began.elapsed() < 10 * CLIENT_MAX, "there is no answer");
        }
        // One after the other, they would take 20 s.
        assert!(began.elapsed() < 10 * CLIENT_MAX);
    }

    #[test]
    fn parts_of_a_command_are_served_together() {
        let metrics = Metrics::serve(([127, 0, 0, 1], 0).into()).unwrap();
        let show = |prefix, value| {
            let mut out = Exposition::new(prefix);
            out.one("a", "gauge", "A.", value);
            metrics.clone().show(out);
        };
        show("weir_two_", 1);
        show("weir_one_", 2);
        show("weir_two_", 3);
        let said = text(&metrics.parts.lock().unwrap());
        let values = said.lines().filter(|line| !line.starts_with('#'));
        let values: Vec<&str> = values.collect();
        assert_eq!(values, ["weir_one_a 2", "weir_two_a 3"]);
    }
}
