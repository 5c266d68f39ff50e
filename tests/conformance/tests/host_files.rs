//! Promise: files of the host that were not declared cannot be read, by whatever name they are called.
//! S3.7, S2.6; THREATS X "path-based denial" (`/proc/self/root`, links, `..`).

use lockgate_conformance::{Backend, Bench, Needs, ready};

// S3.1, S3.3
#[test]
fn host_files_cannot_be_read() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let file = bench.file("outside/notes", "private");
    let file = file.to_str().unwrap();
    let link = bench.workspace().join("link");
    let (link, state) = (link.to_str().unwrap(), bench.state());
    let climb = format!("{}/../outside/notes", bench.workspace().display());
    let (outside, state) = (bench.outside(), state.to_str().unwrap().to_owned());
    let outside = outside.to_str().unwrap();
    bench.controls(&[&["read", file], &["read", &climb], &["symlink-read", file, link], &["list", outside]]);

    bench.run(Backend::isolated()).nothing_works(&[
        &["read", file],
        &["read", &climb],
        &["symlink-read", file, link],
        &["list", outside],
        &["list", &state],
        &["read", &format!("/proc/self/root{file}")],
        &["read", &format!("/proc/1/root{file}")],
        &["read", "/proc/self/cwd/../outside/notes"],
        &["list", &format!("/proc/1/root{outside}")],
        &["read", &format!("/..{file}")],
        &["list", &format!("/..{outside}")],
    ]);
    if Backend::isolated() == Backend::Linux {
        // An image has directories of its own with these names.
        bench.run(Backend::Linux).nothing_works(&[
            &["open", "/etc/shadow"],
            &["list", "/root"],
            &["list", "/var/log"],
        ]);
    }
}

#[test]
fn nothing_is_mounted_over_the_root() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    // Landlock may refuse what is there, so it is asked which file each is.
    let ended = bench.run(Backend::isolated()).shell(
        "stat -L -c '%d %i' / /.. /../.. | sort -u | wc -l; cut -d ' ' -f 5 /proc/self/mountinfo | grep -cx /",
    );
    assert_eq!(ended.stdout, "1\n1\n", "{ended}");
}
