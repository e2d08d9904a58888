//! A browser without a window: Debian's headless Chromium, and a connection to it by the Chrome DevTools Protocol.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use stile::child::end_with_parent;
use stile::config::Arch;
use stile::{debian, exit};
use tempfile::TempDir;

/// Packages to unpack: the browser, its data, and a font.
const PACKAGES: [&str; 3] = ["chromium-headless-shell", "chromium-common", "fonts-dejavu-core"];

/// Seconds after which the browser is ended.
const LIMIT: &str = "180";

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// Its profile, and its messages.
    dir: TempDir,
    /// The page's session.
    session: String,
    last_id: u64,
    events: VecDeque<Value>,
}

impl Browser {
    /// Fetches the browser unless it is in the cache (500 MiB), and starts it with an empty page.
    ///
    /// # Errors
    /// It can't be fetched, or does not start.
    pub fn start() -> Result<Self> {
        let (arch, loader, libraries) = match std::env::consts::ARCH {
            "x86_64" => (Arch::X86_64, "ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu"),
            "aarch64" => (Arch::Aarch64, "ld-linux-aarch64.so.1", "usr/lib/aarch64-linux-gnu"),
            other => bail!(exit::lacking(format!("there is no browser for {other}"))),
        };
        let tree = debian::tree(arch, &PACKAGES)?;
        let dir = tempfile::tempdir()?;
        let program = wrapper(&tree, &tree.join(libraries), loader, dir.path())?;
        let fonts = dir.path().join("fonts.conf");
        let (cache, shared) = (dir.path().display(), tree.join("usr/share/fonts"));
        fs::write(&fonts, format!("<fontconfig><dir>{}</dir><cachedir>{cache}</cachedir></fontconfig>", shared.display()))?;
        let mut command = Command::new("timeout");
        // The protocol uses descriptors 3 and 4.
        command.args([LIMIT, "sh", "-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"]).arg(&program);
        // Its sandbox and its zygote need rights that a container lacks; the page is the tests' own.
        command.args(["--no-sandbox", "--no-zygote", "--disable-gpu", "--remote-debugging-pipe"]);
        command.arg(format!("--browser-subprocess-path={}", program.display()));
        command.arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
        command.env("HOME", dir.path()).env("FONTCONFIG_FILE", fonts);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(dir.path().join("messages"))?);
        let mut child = end_with_parent(&mut command, Signal::TERM).spawn().context("starting the browser")?;
        let (to, from) = child.stdin.take().zip(child.stdout.take()).context("the browser has no pipes")?;
        let from = BufReader::new(from);
        let mut browser = Self { child, to, from, dir, session: String::new(), last_id: 0, events: VecDeque::new() };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let session = browser.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}))?;
        browser.session = session["sessionId"].as_str().context("the page has no session")?.to_owned();
        Ok(browser)
    }

    /// Calls a method, and returns its result.
    ///
    /// # Errors
    /// The browser refuses, or ends.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).map_err(|_| self.ended())?;
        loop {
            let mut message = self.receive()?;
            if message["id"] != self.last_id {
                self.events.push_back(message);
            } else if message["error"].is_null() {
                return Ok(message["result"].take());
            } else {
                bail!("{method}: {}", message["error"]);
            }
        }
    }

    /// The events so far that were not returned yet.
    pub fn events(&mut self) -> impl Iterator<Item = Value> {
        self.events.drain(..)
    }

    /// The value of an expression in the page.
    ///
    /// # Errors
    /// It throws.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let mut done = self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}))?;
        ensure!(done["exceptionDetails"].is_null(), "{}", done["exceptionDetails"]);
        Ok(done["result"]["value"].take())
    }

    fn receive(&mut self) -> Result<Value> {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes)?;
        ensure!(bytes.pop() == Some(0), self.ended());
        Ok(serde_json::from_slice(&bytes)?)
    }

    fn ended(&self) -> anyhow::Error {
        let messages = fs::read(self.dir.path().join("messages")).unwrap_or_default();
        anyhow!("the browser ended: {}", String::from_utf8_lossy(&messages))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its processes end with it, and `timeout` with them.
        let _ = self.call("Browser.close", json!({}));
        let _ = self.child.wait();
    }
}

/// Writes a program that starts the browser with its own release's libraries, whatever those of this system are. The browser finds its data beside
/// the file that the kernel runs, which is the loader: a copy of it stands there.
fn wrapper(tree: &Path, libraries: &Path, loader: &str, dir: &Path) -> Result<PathBuf> {
    let data = tree.join("usr/lib/chromium");
    let copy = data.join("loader");
    if !copy.exists() {
        // In one step: another test may do the same.
        let new = data.join(format!("loader.{}", std::process::id()));
        fs::copy(libraries.join(loader), &new)
            .and_then(|_| fs::rename(&new, &copy))
            .with_context(|| format!("making {}", copy.display()))?;
    }
    let (libraries, data) = (libraries.display(), data.display());
    let text = format!(
        "#!/bin/sh\nexec '{data}/loader' --library-path '{libraries}:{libraries}/pulseaudio:{data}' '{data}/chromium-headless-shell' \"$@\"\n"
    );
    let program = dir.join("browser");
    fs::write(&program, text)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700))?;
    Ok(program)
}
