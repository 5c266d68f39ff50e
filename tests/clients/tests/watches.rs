//! Resources counted per user: a command that runs as the caller outside leaves the caller's own programs their share.

use lockgate_clients::{Need, Site};

#[test]
fn a_command_leaves_the_caller_watches_of_files() {
    let Some(site) = Site::for_unprivileged_test(&[Need::Program("python3")]) else { return };
    let script = "python3 - <<'END'\nimport ctypes\nlibc = ctypes.CDLL(None)\nheld = 0\n\
                  while held < 1000 and libc.inotify_init1(0) >= 0: held += 1\nprint('held', held)\nEND\n";
    site.run().script(script).says("held 48\n");
}
