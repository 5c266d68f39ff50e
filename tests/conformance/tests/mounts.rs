//! Promise: every mount inside is `nosuid`, the system's are read-only, and none leads to the host's old root.
//! THREATS X "mounts"; S2.6.

use lockgate_conformance::{Backend, Bench, Needs, promised, ready};
use lockgate_needs::missing;

#[test]
fn mounts_are_safe() {
    if !promised("mounts") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let control = bench.control(&["mounts"]);
    assert!(control.detail().as_array().is_some_and(|mounts| !mounts.is_empty()), "{control}");
    let seen = bench.run(Backend::isolated()).probe(&["mounts"]);
    let mounts = seen.detail().as_array().expect("a list of mounts");
    assert!(!mounts.is_empty(), "{seen}");
    for mount in mounts {
        let (target, options) = (mount["target"].as_str().unwrap(), mount["options"].as_str().unwrap());
        let has = |option: &str| options.split(',').any(|word| word == option);
        assert!(has("nosuid"), "{target} allows setuid: {mount}");
        let device = target.starts_with("/dev");
        assert!(has("nodev") || device, "{target} allows devices: {mount}");
        let system = ["/usr", "/bin", "/lib", "/etc", "/opt", "/sbin"];
        // The root is the run's own and contains only mount points; `writes` tries to write there.
        if system.iter().any(|prefix| target.starts_with(prefix)) {
            assert!(has("ro"), "{target} is writable: {mount}");
        }
        let kind = mount["type"].as_str().unwrap();
        assert!(
            !matches!(kind, "sysfs" | "cgroup" | "cgroup2" | "debugfs" | "tracefs" | "securityfs" | "bpf")
                || has("ro"),
            "{mount}"
        );
    }
}

#[test]
fn what_debian_installs_below_var_lib_is_shown() {
    if Backend::isolated() != Backend::Linux || !ready(&[Needs::Linux]) {
        return;
    }
    let names = ["aspell", "gems", "ghc", "ispell", "mecab", "texmf"].map(|name| format!("/var/lib/{name}"));
    let is_there = |folder: &&String| std::fs::symlink_metadata(folder).is_ok_and(|of| of.is_dir());
    let folders: Vec<&String> = names.iter().filter(is_there).collect();
    if folders.is_empty() {
        return missing("dictionaries, or parts of a language, in /var/lib");
    }
    let bench = Bench::new();
    for folder in folders {
        let ended = bench.run(Backend::Linux).shell(&format!("ls {folder} && ! touch {folder}/x"));
        assert!(ended.code == 0 && ended.stderr.contains("Read-only"), "{ended}");
    }
}
