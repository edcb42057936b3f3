//! Drives a headless Chromium by the protocol of its developer tools, over pipes.
#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::common::{Folder, make_fifo};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Process};
use weir_lab::testenv;
use weir_lab::wait::{Limited, WAIT_MAX};

/// Chromium reads commands of descriptor 3, and writes to 4. Both ends of a FIFO are open at once, so
/// that no opening waits.
const SCRIPT: &str = "exec chromium --headless --no-sandbox --disable-gpu --remote-debugging-pipe \
                      --user-data-dir=\"$1/profile\" 3<>\"$1/commands\" 4<>\"$1/answers\"";

/// A page of a browser that runs on a host.
pub(crate) struct Page {
    browser: Process,
    commands: File,
    answers: BufReader<Limited<File>>,
    session: Option<String>,
    last: u64,
}

impl Page {
    /// Opens an address; `None` without Chromium. Files that are downloaded are put into the folder.
    pub(crate) fn open(host: &Host, folder: &Folder, url: &str) -> Option<Page> {
        testenv::programs(&["chromium", "sh"]).then_some(())?;
        let open = |name: &str| {
            make_fifo(&folder.path(name));
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(folder.path(name));
            file.unwrap()
        };
        let (commands, answers) = (open("commands"), open("answers"));
        let mut chromium = testenv::program("sh").unwrap();
        chromium
            .args(["-c", SCRIPT, "sh", &folder.path("")])
            .env("HOME", folder.path(""))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut page = Page {
            browser: host.spawn(chromium).unwrap(),
            commands,
            answers: BufReader::new(Limited::new(answers, "an answer of Chromium")),
            session: None,
            last: 0,
        };
        let allow = json!({"behavior": "allow", "downloadPath": folder.path("")});
        page.call("Browser.setDownloadBehavior", &allow);
        let target = page.call("Target.createTarget", &json!({"url": url}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = page.call("Target.attachToTarget", &attach);
        page.session = session["sessionId"].as_str().map(str::to_owned);
        Some(page)
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        // A message ends with a zero byte.
        write!(self.commands, "{message}\0").unwrap();
        loop {
            let mut bytes = Vec::new();
            self.answers.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "Chromium has ended");
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            // What has no number, or an earlier one, is news.
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{message}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// The value of an expression of JavaScript in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let evaluate = json!({"expression": expression, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", &evaluate);
        let failed = &answer["exceptionDetails"];
        assert!(failed.is_null(), "{expression}: {failed}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression has this value.
    pub(crate) fn until(&mut self, expression: &str, expected: &str) {
        let began = Instant::now();
        loop {
            // Until the page is there, elements may be missing.
            let value = self.value(&format!("try {{ {expression} }} catch {{ null }}"));
            if value == expected {
                return;
            }
            assert!(began.elapsed() < WAIT_MAX, "{expression}: {value}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Clicks with the mouse in the middle of an element.
    pub(crate) fn click(&mut self, element: &str) {
        let at = self.press(element, "left");
        self.release(&at);
    }

    /// The first half of a click, by a button; returns where it is.
    pub(crate) fn press(&mut self, element: &str, button: &str) -> Value {
        let middle = format!(
            "(() => {{ const e = {element}; e.scrollIntoView(); const r = e.getBoundingClientRect(); \
             return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        );
        let at = self.value(&middle);
        self.mouse("mousePressed", &at, button);
        at
    }

    /// The second half, by the left button.
    pub(crate) fn release(&mut self, at: &Value) {
        self.mouse("mouseReleased", at, "left");
    }

    fn mouse(&mut self, kind: &str, at: &Value, button: &str) {
        let event = json!({
            "type": kind, "x": at[0], "y": at[1], "button": button, "clickCount": 1,
        });
        self.call("Input.dispatchMouseEvent", &event);
    }

    /// Types text where the cursor is.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", &json!({"text": text}));
    }

    /// Ends the browser.
    pub(crate) fn close(mut self) {
        self.session = None;
        self.call("Browser.close", &json!({}));
        self.browser.ended(WAIT_MAX).unwrap();
    }
}
