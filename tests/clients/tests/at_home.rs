//! What a command finds inside as its caller has it outside: the time zone, the locales, and the toolchains of a home that a run names; and
//! that the workspace stays its owner's when root runs. S3.11.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use lockgate_clients::{Need, Site, product, run_to_end};

#[test]
fn the_time_zone_and_the_locales_are_the_callers() {
    let needs = [Need::Root, Need::Program("unshare"), Need::Program("locale")];
    let Some(site) = Site::for_test(&needs) else { return };
    // A copy of `/etc` that only these processes see, with another zone than any machine of ours has.
    let script = r#"
        zones=/usr/share/zoneinfo; mkdir etc; mount -t tmpfs none etc; cp -a /etc/. etc
        ln -sf $zones/Asia/Kathmandu etc/localtime; echo Asia/Kathmandu > etc/timezone; mount --bind etc /etc
        tell='date -d @0 +%Z%z; TZ=Europe/Berlin date -d @0 +%Z%z; date -d "1970-01-01 12:00" +%s; locale -a | tr "\n" " "; LC_ALL=C.UTF-8 locale charmap'
        sh -c "$tell" > outside; "$PRODUCT" run --workspace "$WORK" -- sh -c "$tell" > inside
        TZ=America/Caracas "$PRODUCT" run --workspace "$WORK" --env TZ -- date -d @0 +%z; cat inside; cmp inside outside && echo same"#;
    let mut command = site.world().command("unshare");
    command.args(["--mount", "sh", "-uc", script]).current_dir(site.outside()).env("WORK", site.workspace());
    command.env("PRODUCT", product().expect("`Site` asked first")).env("XDG_STATE_HOME", site.state());
    let ended = run_to_end(&mut command, Duration::from_secs(60));
    assert!(ended.code == 0 && ended.stdout.ends_with("\nsame\n"), "{ended}");
    // Noon in Kathmandu was 6:30 UTC then.
    assert!(ended.stdout.starts_with("-0400\n+0530+0530\nCET+0100\n23400\n"), "{ended}");
    assert!(ended.stdout.contains("UTF-8"), "{ended}");
}

const PROGRAM: &str = r#"#!/bin/sh
echo "I am $0"; echo "root=${PYENV_ROOT:-}${NVM_DIR:-}${UV_PYTHON_INSTALL_DIR:-}"
"#;

/// Writes a program that says who it is, below a home.
fn program(home: &Path, path: &str) {
    let owner = fs::metadata(home).expect("it was made");
    let path = home.join(path);
    fs::create_dir_all(path.parent().expect("below the home")).expect("room");
    fs::write(&path, PROGRAM).expect("room");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its owner");
    for made in path.ancestors().take_while(|made| *made != home) {
        chown(made, Some(owner.uid()), Some(owner.gid())).expect("the folder's owner");
    }
}

#[test]
fn a_toolchain_of_a_home_is_found_inside_and_cannot_be_changed() {
    for (tool, path, root) in [
        ("pyenv", ".pyenv/shims/an-own-program", ".pyenv"),
        ("nvm", ".nvm/versions/node/v22.0.0/bin/an-own-program", ".nvm"),
        ("uv", ".local/share/uv/tools/some/bin/an-own-program", ".local/share/uv/python"),
    ] {
        for site in Site::for_everyone(&[]) {
            let home = site.folder("home");
            program(&home, path);
            program(&home, ".secrets/not-for-it");
            let program = home.join(path);
            let folder = program.parent().expect("its folder");
            let search = format!("{}:/usr/local/bin:/usr/bin:/bin", folder.display());
            let script = format!(
                r#"command -v an-own-program; an-own-program
                for it in {0}/new {1}; do (echo x > $it) 2>/dev/null && echo "written: $it"; done
                rm -f {1} 2>/dev/null; [ -x {1} ] && echo stays; ls -d {2}/.secrets 2>/dev/null; exit 0"#,
                folder.display(),
                program.display(),
                home.display()
            );
            let run = |flags: &[&str]| {
                let mut command = site.run().flags(flags).command(&["/bin/sh", "-uc", &script]);
                command.env("HOME", &home).env("PATH", &search);
                run_to_end(&mut command, Duration::from_secs(60))
            };
            let ended = run(&["--tool", tool]);
            let wanted =
                format!("{0}\nI am {0}\nroot={1}\nstays\n", program.display(), home.join(root).display());
            assert_eq!(ended.stdout, wanted, "{tool}: {ended}");
            // The control: a run that does not name it has none of it.
            let ended = run(&[]);
            assert!(!ended.stdout.contains("I am") && !ended.stdout.contains("stays"), "{tool}: {ended}");
        }
    }
}

#[test]
fn what_roots_command_writes_belongs_to_the_workspaces_owner() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    for path in [site.workspace(), site.workspace().join("was-there")] {
        fs::create_dir_all(&path).expect("room");
        chown(&path, Some(1234), Some(2345)).expect("root");
    }
    let script = "id -u; umask 077; echo new > made; mkdir -p deep/er; echo new > deep/er/made; ln -s made link; echo more >> was-there/made; cat made";
    let ended = site.run().flags(["--backend", "linux"]).script(script);
    ended.says("new");
    assert!(!ended.stdout.starts_with("0\n"), "{ended}");
    for made in ["made", "deep", "deep/er", "deep/er/made", "link", "was-there/made"] {
        let about = fs::symlink_metadata(site.workspace().join(made)).expect("it was made");
        assert_eq!((about.uid(), about.gid()), (1234, 2345), "{made}");
    }
}
