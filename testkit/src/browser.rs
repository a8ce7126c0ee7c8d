//! A real browser, driven over the DevTools protocol by a pipe: no port, no library, what a page did wrong is kept.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A browser that gives no answer for so long hangs. Nothing waits for this in a test that passes.
const PATIENCE: Duration = Duration::from_secs(120);

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// A running Chromium with a profile of its own; ends when dropped.
pub struct Browser {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<Value>,
    events: VecDeque<Value>,
    next: u64,
    folder: TempDir,
}

fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("FEEDMILL_BROWSER") {
        return path.into();
    }
    let folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let found = NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "the page's tests need Chromium: install it, on Debian with `apt-get install -y --no-install-recommends \
             chromium` (`make test` does so as root), or name a browser in FEEDMILL_BROWSER"
        )
    })
}

impl Browser {
    /// Starts it.
    ///
    /// # Panics
    /// There is none; the message says what to install.
    #[must_use]
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the browser's profile");
        let log = File::create(folder.path().join("log")).expect("a file for the browser's log");
        // The browser reads orders from descriptor 3 and writes answers to 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2"])
            .arg(program())
            .args([
                "--headless",
                "--remote-debugging-pipe",
                // Tests run as root in containers, where its sandbox cannot be made.
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--disable-extensions",
                "--disable-background-networking",
                "--disable-component-update",
                "--no-first-run",
                "--force-color-profile=srgb",
                // Nothing but this machine exists.
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--proxy-server=direct://",
            ])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .env("HOME", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("sh starts");
        let orders = child.stdin.take().expect("a pipe");
        let stdout = child.stdout.take().expect("a pipe");
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut messages = BufReader::new(stdout).split(0).map_while(Result::ok);
            while messages.next().is_some_and(|message| {
                let message = serde_json::from_slice(&message).unwrap_or(Value::Null);
                sender.send(message).is_ok()
            }) {}
        });
        Self { child, orders, answers, events: VecDeque::new(), next: 0, folder }
    }

    /// A page of its own, at an address, in a window of this size.
    pub fn open(&mut self, address: &str, (width, height): (u32, u32)) -> Tab<'_> {
        let target = self.ask(None, "Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.ask(None, "Target.attachToTarget", &attach)["sessionId"].clone();
        let mut tab = Tab { session: session.as_str().unwrap_or_default().to_owned(), browser: self };
        for domain in ["Page", "Runtime", "Log", "Audits", "Network"] {
            tab.ask(&format!("{domain}.enable"), &json!({}));
        }
        tab.resize((width, height), false);
        tab.go(address);
        tab
    }

    fn ask(&mut self, session: Option<&str>, method: &str, parameters: &Value) -> Value {
        let id = self.send(session, method, parameters);
        loop {
            let message = self.receive(method);
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method} {parameters}: {}", message["error"]);
                return message["result"].clone();
            }
            // A dialog stops the page until somebody answers it.
            if message["method"] == "Page.javascriptDialogOpening" {
                let session = message["sessionId"].as_str().map(str::to_owned);
                self.send(session.as_deref(), "Page.handleJavaScriptDialog", &json!({"accept": false}));
            }
            if message["id"].is_null() {
                self.events.push_back(message);
            }
        }
    }

    fn send(&mut self, session: Option<&str>, method: &str, parameters: &Value) -> u64 {
        self.next += 1;
        let mut order = json!({"id": self.next, "method": method, "params": parameters});
        if let Some(session) = session {
            order["sessionId"] = session.into();
        }
        let mut bytes = order.to_string().into_bytes();
        bytes.push(0);
        if let Err(error) = self.orders.write_all(&bytes).and_then(|()| self.orders.flush()) {
            panic!("the browser takes no orders ({error}); its log:\n{}", self.log());
        }
        self.next
    }

    fn receive(&mut self, method: &str) -> Value {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(message) => message,
            Err(error) => {
                panic!("the browser gives no answer to {method} ({error}); its log:\n{}", self.log())
            }
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One page.
pub struct Tab<'b> {
    browser: &'b mut Browser,
    session: String,
}

impl Tab<'_> {
    /// An order of the DevTools protocol, and its answer.
    pub fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        let session = self.session.clone();
        self.browser.ask(Some(&session), method, parameters)
    }

    /// Goes to another address and waits until it is loaded.
    pub fn go(&mut self, address: &str) {
        let answer = self.ask("Page.navigate", &json!({"url": address}));
        assert!(answer["errorText"].is_null(), "{address}: {answer}");
        self.eval("document.readyState === 'complete' || new Promise((done) => addEventListener('load', () => done(true)))");
    }

    /// Another size of the window, in CSS pixels; light or dark.
    pub fn resize(&mut self, (width, height): (u32, u32), dark: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", &features);
    }

    /// The value of an expression, or of the promise that it gives.
    ///
    /// # Panics
    /// It throws.
    pub fn eval(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.ask("Runtime.evaluate", &parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}\n{}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true, looking whenever the document changes.
    pub fn until(&mut self, expression: &str) {
        self.eval(&format!(
            "new Promise((done) => {{
                const look = () => {{ if ({expression}) {{ watcher.disconnect(); done(true); }} }};
                const watcher = new MutationObserver(look);
                watcher.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
                look();
            }})"
        ));
    }

    /// A key, as a person presses it.
    pub fn press(&mut self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            self.ask("Input.dispatchKeyEvent", &json!({"type": kind, "key": key, "code": key}));
        }
    }

    /// The window's picture, as PNG.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let answer = self.ask("Page.captureScreenshot", &json!({"format": "png", "optimizeForSpeed": false}));
        BASE64.decode(answer["data"].as_str().unwrap_or_default()).expect("base64")
    }

    /// Requests for something else than what begins with `allowed`.
    pub fn requests_elsewhere(&mut self, allowed: &[&str]) -> Vec<String> {
        self.eval("true");
        let addresses =
            self.browser.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        addresses
            .filter_map(|event| event["params"]["request"]["url"].as_str())
            .filter(|address| !allowed.iter().any(|begin| address.starts_with(begin)))
            .map(str::to_owned)
            .collect()
    }

    /// Dialogs, exceptions, errors and warnings on the console, violations of the policy: all that has come so far.
    pub fn complaints(&mut self) -> Vec<String> {
        // Events come in order, so those of what was done before are here after an answer.
        self.eval("true");
        let bad = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
            "Page.javascriptDialogOpening" | "Runtime.exceptionThrown" | "Audits.issueAdded" => true,
            "Runtime.consoleAPICalled" => true,
            "Log.entryAdded" => event["params"]["entry"]["level"] != "verbose",
            _ => false,
        };
        self.browser
            .events
            .iter()
            .filter(bad)
            .map(|event| format!("{} {}", event["method"], event["params"]))
            .collect()
    }
}
