//! Images that a test makes at the shared engine, with files and settings of its own.

use std::time::Duration;

use serde_json::json;

use crate::engine::ask_engine;
use crate::inventory::within;

/// Makes an image at the shared engine from the image of the tests: a line of shell changes its files, and `changes` its configuration.
///
/// # Panics
/// When the engine does not make it.
pub fn make_image(name: &str, line: &str, changes: &[&str]) {
    let ask = |path: &str, body| {
        let (status, answer) = ask_engine("POST", path, &body);
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    };
    let body = json!({"Image": "debian", "Cmd": ["sh", "-ec", line], "HostConfig": {"NetworkMode": "none"}});
    let made = ask("/containers/create", body);
    let id = made["Id"].as_str().unwrap();
    ask(&format!("/containers/{id}/start"), json!(null));
    // Podman answers a wait for an ended container only after twenty seconds; `stopped` is Podman's word.
    let state = || ask_engine("GET", &format!("/containers/{id}/json"), &json!(null)).1["State"].clone();
    let ended = within(Duration::from_secs(30), || {
        ["exited", "stopped"].contains(&state()["Status"].as_str().unwrap())
    });
    assert!(ended && state()["ExitCode"] == 0, "{line}: {}", state());
    let changes: String =
        changes.iter().map(|change| format!("&changes={}", change.replace(' ', "%20"))).collect();
    ask(&format!("/commit?container={id}&repo={name}{changes}"), json!({}));
    let (status, answer) = ask_engine("DELETE", &format!("/containers/{id}"), &json!(null));
    assert_eq!(status, 204, "{answer}");
}
