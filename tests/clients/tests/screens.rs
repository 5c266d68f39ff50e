//! What is told while the command has the whole screen waits until it has given it back.

use std::time::Duration;

use lockgate_clients::{Need, Site, product, run_to_end};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("script")];

/// What a terminal shows of a run in which something is refused between two words.
fn shown(site: &Site, before: &str, after: &str) -> String {
    let mut command = site.world().command("script");
    let product = product().expect("`Site` asked first");
    let inside = format!(
        "printf '{before}BEGINS '; curl -s -o /dev/null http://www.example.org/; sleep 1; printf 'ENDS{after} AFTER'"
    );
    let run = format!("'{}' run -t -- sh -c \"{inside}\"", product.display());
    command.args(["--quiet", "--return", "--command", &run, "/dev/null"]).current_dir(site.workspace());
    command.env("XDG_STATE_HOME", site.state()).stdin(std::process::Stdio::null());
    let ended = run_to_end(&mut command, Duration::from_secs(60));
    assert!(ended.code == 0 && ended.stdout.contains("denied http://www.example.org/"), "{ended}");
    ended.stdout
}

#[test]
fn a_denial_is_not_written_over_what_the_command_shows() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let position = |text: &str, part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text:?}"));
    let full = shown(&site, r"\033[?1049h", r"\033[?1049l");
    assert!(position(&full, "denied http") > position(&full, "\x1b[?1049l"), "{full:?}");
    // Left as it is by a command that ends without giving it back: told all the same.
    let left = shown(&site, r"\033[?1049h", "");
    let given_back = position(&left, "\x1b[?1049l");
    assert!(given_back > position(&left, "AFTER") && position(&left, "denied http") > given_back, "{left:?}");
    // The control: told as it happens.
    let plain = shown(&site, "", "");
    assert!(
        position(&plain, "denied http") < position(&plain, "ENDS") && !plain.contains("\x1b[?"),
        "{plain:?}"
    );
}
