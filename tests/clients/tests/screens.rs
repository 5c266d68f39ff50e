//! Messages during a command's full-screen mode wait until the mode ends.

use std::time::Duration;

use lockgate_clients::{Need, Site, product, run_to_end};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("script")];

/// Returns what a terminal shows of a run in which a request is refused between two words.
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
    // A command that ends without leaving the mode: the message comes all the same.
    let left = shown(&site, r"\033[?1049h", "");
    let given_back = position(&left, "\x1b[?1049l");
    assert!(given_back > position(&left, "AFTER") && position(&left, "denied http") > given_back, "{left:?}");
    // The control: the message comes at once.
    let plain = shown(&site, "", "");
    assert!(
        position(&plain, "denied http") < position(&plain, "ENDS") && !plain.contains("\x1b[?"),
        "{plain:?}"
    );
}
