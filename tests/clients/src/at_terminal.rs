//! The product on a pseudo-terminal, as a person has one, who types and waits for what is shown.

use std::ffi::OsStr;
use std::time::Duration;

use crate::ended::{Ended, run_to_end};
use crate::site::Site;

/// Runs the product on a pseudo-terminal and does a list of steps: `wait WORDS`, until the terminal shows them behind what was awaited
/// before; `type OCTETS`; `size ROWS COLUMNS`; `sleep SECONDS`; `signal NUMBER`, to the product. Prints what was shown, and how it ended.
/// Python's, whose `pty` makes the session.
const PERSON: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
steps, words = sys.argv[1].split("\n"), sys.argv[2:]
child, ours = pty.fork()
if child == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 37, 91, 0, 0))
    os.execv(words[0], words)
shown, at, end = b"", 0, time.monotonic() + 70
def hear():
    global shown
    if not select.select([ours], [], [], 0.05)[0]: return True
    try: piece = os.read(ours, 65536)
    except OSError: return False
    shown += piece
    return bool(piece)
def finish(why):
    if why: os.kill(child, signal.SIGKILL)
    while time.monotonic() < end and hear(): pass
    if time.monotonic() >= end: os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    sys.stdout.buffer.write(shown)
    print("\nended=%d %s" % (os.waitstatus_to_exitcode(status), why))
    sys.exit(0)
for step in steps:
    verb, _, rest = step.partition(" ")
    if verb == "wait":
        rest = rest.encode()
        while rest not in shown[at:]:
            if time.monotonic() > end or not hear(): finish("never: " + step)
        at = shown.index(rest, at) + len(rest)
    elif verb == "type": os.write(ours, rest.encode().decode("unicode_escape").encode())
    elif verb == "sleep": time.sleep(float(rest))
    elif verb == "signal": os.kill(child, int(rest))
    elif verb == "size":
        rows, columns = map(int, rest.split())
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
finish("")
"#;

/// Does these steps at a terminal with 37 rows of 91 columns, at which these words are executed.
pub fn at_terminal<'a>(site: &Site, words: impl IntoIterator<Item = &'a OsStr>, steps: &[&str]) -> Ended {
    at_terminal_of(site, words, steps, &[])
}

/// The same with further variables.
pub fn at_terminal_of<'a>(
    site: &Site,
    words: impl IntoIterator<Item = &'a OsStr>,
    steps: &[&str],
    variables: &[(&str, &OsStr)],
) -> Ended {
    let mut command = site.world().command("python3");
    command.args(["-c", PERSON, &steps.join("\n")]).args(words);
    command.current_dir(site.workspace()).env("XDG_STATE_HOME", site.state());
    command.envs(variables.iter().copied());
    run_to_end(&mut command, Duration::from_secs(90))
}
