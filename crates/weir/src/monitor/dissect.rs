//! The fields of one frame as tshark sees them, where it is installed.
//!
//! One tshark at a time runs, for one frame that it reads from a pipe; it is ended if it takes long.

use roxmltree::{Document, Node, ParsingOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use weir_link::pcap::{FrameRef, Interface, Writer};

/// Longest time that tshark may take.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Most bytes of its output.
const OUTPUT_MAX: u64 = 4 << 20;
/// Largest number of lines that are made of it.
const LINES_MAX: usize = 20_000;

/// A run of tshark.
pub(crate) struct Dissection {
    result: Receiver<Result<Vec<(usize, String)>, String>>,
    child: Arc<Mutex<Child>>,
    began: Instant,
}

impl Dissection {
    /// Starts tshark for a frame.
    pub(crate) fn start(
        bytes: &[u8],
        len: u32,
        time_ns: Option<i64>,
        interface: &Interface,
    ) -> Result<Dissection, String> {
        let mut file = Writer::new(Vec::new()).map_err(|error| error.to_string())?;
        let frame = FrameRef {
            bytes,
            wire_len: len,
            time_ns,
            interface_index: 0,
            interface,
        };
        let written = file.write(&frame).and_then(|()| file.finish());
        let capture = written.map_err(|error| error.to_string())?;
        let child = Command::new("tshark")
            .args(["-n", "-r", "-", "-T", "pdml"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "no tshark in PATH".to_owned(),
            _ => format!("tshark: {error}"),
        })?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (put, result) = sync_channel(1);
        let child = Arc::new(Mutex::new(child));
        let run = move || {
            // tshark may end before it has read all: then it says nothing.
            let _ = input.map(|mut input| input.write_all(&capture));
            let mut text = String::new();
            let read = output.map(|output| output.take(OUTPUT_MAX).read_to_string(&mut text));
            let lines = match read {
                Some(Ok(_)) => lines(&text),
                _ => Err("tshark said nothing that is text".to_owned()),
            };
            let _ = put.send(lines);
        };
        let thread = thread::Builder::new().name("tshark".to_owned());
        thread.spawn(run).map_err(|error| error.to_string())?;
        Ok(Dissection {
            result,
            child,
            began: Instant::now(),
        })
    }

    /// Its lines with their depths; `None` while it runs.
    pub(crate) fn poll(&self) -> Option<Result<Vec<(usize, String)>, String>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) if self.began.elapsed() < TIME_MAX => None,
            Err(_) => Some(Err(format!(
                "tshark took longer than {} s",
                TIME_MAX.as_secs()
            ))),
        }
    }
}

impl Drop for Dissection {
    fn drop(&mut self) {
        if let Ok(mut child) = self.child.lock() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The fields in a PDML text.
fn lines(text: &str) -> Result<Vec<(usize, String)>, String> {
    let options = ParsingOptions {
        nodes_limit: 100_000,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options);
    let document = document.map_err(|error| format!("tshark's PDML: {error}"))?;
    let mut lines = Vec::new();
    let packet = document
        .descendants()
        .find(|node| node.has_tag_name("packet"));
    let packet = packet.ok_or("tshark found no frame")?;
    for proto in packet.children().filter(|node| node.has_tag_name("proto")) {
        if proto.attribute("name") != Some("geninfo") {
            push(&mut lines, proto, 0);
        }
    }
    Ok(lines)
}

fn push(lines: &mut Vec<(usize, String)>, node: Node<'_, '_>, depth: usize) {
    if lines.len() >= LINES_MAX || depth > 64 || node.attribute("hide") == Some("yes") {
        return;
    }
    let named = ["showname", "show", "name"]
        .iter()
        .find_map(|name| node.attribute(*name));
    let text = named.unwrap_or_default();
    lines.push((depth, text.chars().filter(|c| !c.is_control()).collect()));
    for child in node.children().filter(Node::is_element) {
        push(lines, child, depth + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_nest_and_hidden_ones_stay_away() {
        let text = r#"<?xml version="1.0"?><pdml><packet>
            <proto name="geninfo" showname="General"/>
            <proto name="ip" showname="IPv4"><field name="ip.ttl" showname="TTL: 64">
                <field name="x" show="deep"/></field><field name="y" hide="yes" show="n"/></proto>
            </packet></pdml>"#;
        let expected = [(0, "IPv4"), (1, "TTL: 64"), (2, "deep")];
        let expected = expected.map(|(depth, text)| (depth, text.to_owned()));
        assert_eq!(lines(text), Ok(expected.to_vec()));
        assert!(lines("<pdml>").is_err());
        assert!(lines("<pdml/>").is_err());
    }
}
