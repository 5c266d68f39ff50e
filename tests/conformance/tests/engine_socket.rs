//! Promise: a path that leads to the socket of the engine that makes a run is refused as a mount, a copy and a workspace: whoever
//! has it is root on its machine.
//! S3.10; THREATS X "Docker backend".

use std::path::{Path, PathBuf};

use lockgate_conformance::{Backend, Bench, Needs, promised, ready};

/// Returns the socket's path. The socket exists.
fn socket(bench: &Bench) -> PathBuf {
    let environment = bench.environment();
    let host = environment.iter().find(|(name, _)| *name == "DOCKER_HOST").unwrap().1.to_str().unwrap();
    let path = PathBuf::from(host.trim_start_matches("unix://"));
    assert!(path.exists(), "{}", path.display());
    path
}

#[test]
fn no_declared_path_shows_it() {
    if !promised("engine_socket") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let socket = socket(&bench);
    let link = bench.outside().join("link");
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    let folder_link = bench.outside().join("folder");
    std::os::unix::fs::symlink(socket.parent().unwrap(), &folder_link).unwrap();
    let through = folder_link.join(socket.file_name().unwrap());
    let above: Vec<&Path> = socket.ancestors().filter(|path| path.parent().is_some()).collect();
    let others = [link.as_path(), &folder_link, &through];
    for path in above.iter().copied().chain(others) {
        for flag in ["--mount", "--copy"] {
            let pair = format!("{}:/home/agent/shown", path.display());
            let ended = bench.run(Backend::isolated()).flags([flag, &pair]).command(["touch", "ran"]);
            assert!(ended.code == 125, "{flag} {pair}: {ended}");
            assert!(!bench.workspace().join("ran").exists(), "{flag} {pair} ran something");
        }
        let told = bench.run(Backend::isolated()).in_folder(path).command(["true"]);
        // What is no folder is refused before anybody asks what it is, and what is behind a link even before that.
        let is_behind_link = path.canonicalize().is_ok_and(|real| real != path);
        // A directory of the system is a workspace on no machine.
        let codes: &[i32] = match path.is_dir() {
            _ if is_behind_link => &[125],
            true => &[125, 2],
            false => &[2],
        };
        assert!(codes.contains(&told.code), "{} as the workspace: {told}", path.display());
    }
    // This rule keeps them out, and no other.
    for path in &above[..2] {
        let pair = format!("{}:/home/agent/shown", path.display());
        for flag in ["--mount", "--copy"] {
            let told = bench.run(Backend::isolated()).flags([flag, &pair]).command(["true"]);
            assert!(told.stderr.contains("the engine's socket is there"), "{flag} {pair}: {told}");
        }
    }

    // The control: a file beside the socket may be shown.
    let beside = bench.file("outside/beside/file", "declared");
    let pair = format!("{}:/home/agent/shown", beside.parent().unwrap().display());
    for flag in ["--mount", "--copy"] {
        let seen =
            bench.run(Backend::isolated()).flags([flag, &pair]).probe(&["read", "/home/agent/shown/file"]);
        assert_eq!(seen.text("text"), "declared", "{seen}");
    }
}

#[test]
fn no_folder_in_which_it_is_mounted_is_shown() {
    // Only a user who may mount can test this.
    if !promised("engine_socket") || !ready(&[Needs::Linux, Needs::Root]) {
        return;
    }
    let bench = Bench::new();
    let socket = socket(&bench);
    let file = bench.file("workspace/in/file", "");
    let folder = bench.workspace().join("in/folder");
    std::fs::create_dir_all(&folder).unwrap();
    for (source, at) in [(socket.as_path(), &file), (socket.parent().unwrap(), &folder)] {
        const SCRIPT: &str = r#"mount --bind "$1" "$2"; shift 2; exec "$@""#;
        let words = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", SCRIPT, "sh"];
        let behind = words.map(std::ffi::OsString::from).into_iter();
        let behind = behind.chain([source.as_os_str().into(), at.as_os_str().into()]);
        let ended = bench.run(Backend::isolated()).behind(behind).command(["true"]);
        let is_said = ended.stderr.contains("the engine's socket is there");
        assert!(ended.code == 125 && is_said, "{}: {ended}", at.display());
    }
}
