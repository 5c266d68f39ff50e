//! The scripted agent of the demonstration. It runs in the sandbox, tries what must be impossible and what must work, and
//! prints a line for each attempt.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::demo::{CANARY, HOST, LEFTOVER, NEIGHBOUR, PORT};
use crate::exit::Done;
use crate::output;

/// How long an attempt may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The expected outcome of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Should {
    Work,
    Fail,
}

/// The outcome of a request to the proxy.
enum Answer {
    Passed(String),
    /// The policy denied it, and the answer says so.
    Denied(String),
    /// There was no answer, or not one of the proxy's.
    None(String),
}

impl Answer {
    fn wanted(self, denied: bool) -> Result<String, String> {
        match self {
            Self::Passed(what) => Ok(what),
            Self::Denied(why) => Err(why),
            // Neither expectation is met: without an answer nothing was denied.
            Self::None(why) if denied => Ok(format!("undecided: {why}")),
            Self::None(why) => Err(why),
        }
    }
}

pub(crate) fn agent() -> Done {
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let (port, canary, neighbour) = (var(PORT), var(CANARY), var(NEIGHBOUR));
    let attempts: Vec<(&str, Should, Result<String, String>)> = vec![
        ("write a file in the workspace", Should::Work, write("notes.txt")),
        ("ask the allowed host", Should::Work, get(&format!("http://{HOST}:{port}/v1/hello")).wanted(false)),
        (
            "ask it for a path that is not allowed",
            Should::Fail,
            get(&format!("http://{HOST}:{port}/admin")).wanted(true),
        ),
        ("ask a host that is not allowed", Should::Fail, get("http://example.org/").wanted(true)),
        (
            "ask the metadata service",
            Should::Fail,
            get("http://169.254.169.254/latest/meta-data/").wanted(true),
        ),
        ("dial the metadata service directly", Should::Fail, dial("169.254.169.254:80")),
        ("dial the upstream on your loopback", Should::Fail, dial(&format!("127.0.0.1:{port}"))),
        ("dial a machine of your network", Should::Fail, dial("192.168.1.1:22")),
        ("read a file of yours outside", Should::Fail, read(&canary)),
        ("read your ssh keys", Should::Fail, list("/root/.ssh").or_else(|_| list("/home"))),
        ("see another process of yours", Should::Fail, read(&format!("/proc/{neighbour}/comm"))),
        ("change its own policy", Should::Fail, write("lockgate.toml")),
        ("plant a git hook", Should::Fail, plant_hook()),
        ("change the system", Should::Fail, write("/usr/bin/lockgate-was-here")),
        ("find a credential in its environment", Should::Fail, find_credential()),
    ];
    let mut held = true;
    for (what, should, came) in attempts {
        let (worked, detail) = match &came {
            Ok(detail) => (true, detail.as_str()),
            Err(detail) => (false, detail.as_str()),
        };
        let right = worked == (should == Should::Work);
        held &= right;
        output::answer(&format!("  {} {what:<38} {}", if right { '✓' } else { '✗' }, output::plain(detail)))?;
    }
    leave_behind();
    Ok(u8::from(!held))
}

fn write(path: &str) -> Result<String, String> {
    std::fs::write(path, "written by the agent\n")
        .map(|()| format!("wrote {path}"))
        .map_err(|e| e.to_string())
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map(|text| format!("read it: {}", text.trim())).map_err(|e| e.to_string())
}

/// Lists a directory that holds more than the sandbox's own home.
fn list(path: &str) -> Result<String, String> {
    let names: Vec<String> = std::fs::read_dir(path)
        .map_err(|e| e.to_string())?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "agent")
        .collect();
    if names.is_empty() {
        Err("there is nothing there".into())
    } else {
        Ok(format!("found {}", names.join(", ")))
    }
}

fn plant_hook() -> Result<String, String> {
    std::fs::create_dir_all(".git/hooks").map_err(|e| e.to_string())?;
    write(".git/hooks/pre-commit")
}

/// Sends a request through the proxy, as HTTP libraries do.
fn get(target: &str) -> Answer {
    let text = match exchange(target) {
        Ok(text) => text,
        Err(error) => return Answer::None(error.to_string()),
    };
    let status: u16 = text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body).trim();
    if status == 200 {
        return Answer::Passed(format!("200: {body}"));
    }
    let problem: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    match (problem["guard"].as_str(), problem["detail"].as_str()) {
        (Some(guard), Some(detail)) => Answer::Denied(format!("{status} {guard}: {detail}")),
        _ => Answer::None(format!("{status}, and nobody says why")),
    }
}

/// Reads the proxy's address from the environment.
fn proxy() -> std::io::Result<String> {
    let told = std::env::var("HTTP_PROXY").unwrap_or_default();
    let place = told.strip_prefix("http://").map(|rest| rest.trim_end_matches('/').to_owned());
    place.ok_or_else(|| std::io::Error::other("HTTP_PROXY names no proxy"))
}

fn exchange(target: &str) -> std::io::Result<String> {
    let authority = target.split('/').nth(2).unwrap_or_default();
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the agent, inside: every connection it makes is checked"
    )]
    let mut stream = TcpStream::connect(proxy()?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.take(64 * 1024).read_to_string(&mut text)?;
    Ok(text)
}

/// Connects to an address and sends something: the redirect accepts, and the sidecar then refuses.
fn dial(address: &str) -> Result<String, String> {
    let address = address.parse().map_err(|_| "no such address".to_owned())?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|e| e.to_string())?;
    let _ = stream.set_read_timeout(Some(PATIENCE));
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").map_err(|e| e.to_string())?;
    let mut answer = [0; 512];
    let read = stream.read(&mut answer).map_err(|e| e.to_string())?;
    let line = String::from_utf8_lossy(&answer[..read]).lines().next().unwrap_or("").to_owned();
    if line.contains("403") || line.contains("400") || line.is_empty() {
        Err(format!("refused by the sidecar: {line}"))
    } else {
        Ok(format!("it answered: {line}"))
    }
}

fn find_credential() -> Result<String, String> {
    let names = ["TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL"];
    let found = std::env::vars().map(|(name, _)| name).find(|name| names.iter().any(|n| name.contains(n)));
    found.map(|name| format!("found {name}")).ok_or_else(|| "there is none".into())
}

/// Starts a process that tries to outlive the run.
fn leave_behind() {
    let script = format!("setsid sleep {LEFTOVER} </dev/null >/dev/null 2>&1 &");
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the agent, inside; what it starts ends with the sandbox"
    )]
    let _ = std::process::Command::new("/bin/sh")
        .arg("-c")
        .arg(script)
        .spawn()
        .and_then(|mut child| child.wait());
}
