//! What is refused, and why.

use std::path::Path;

use super::{at_engine, compile, machine, planned, planned_with, run};
use crate::caller::Caller;
use crate::error::Error;
use crate::host::Host;
use crate::mounted::{Mounts, MountsOnceRead};
use crate::plan::additions::Additions;
use crate::plan::engine::EngineKind;
use crate::plan::limits::LimitsPlan;
use crate::plan::{plan, refuse_half_root, workspace};

#[test]
fn what_cannot_be_held_or_shown_is_refused() {
    for config in [
        "limits.memory = \"1GiB\"",
        "limits.pids = 16\nlimits.cpus = 0.5",
        "limits.pids = 16\nbackend = \"process\"",
        "image = \"x\"",
    ] {
        assert!(matches!(planned(config), Err(Error::Refused { .. })), "{config}");
    }
    for config in [
        "workspace = \"/home/me\"",
        "backend = \"process\"\nmount = [{ source = \"/data\", target = \"/data\" }]",
        "backend = \"process\"\ncopy = [{ source = \"/data\", target = \"/data\" }]",
        "backend = \"process\"\nworkspace = { mode = \"ro\" }",
        "backend = \"process\"\nlimits.disk = \"1GiB\"",
        "backend = \"process\"\nbuiltin_tools = [\"git\"]",
    ] {
        assert!(matches!(planned(config), Err(Error::Impossible { .. })), "{config}");
    }
    assert!(matches!(planned("tools = [\"nonesuch\"]"), Err(Error::Unknown { .. })));
    for system in ["/", "/etc", "/proc/self"] {
        let refused = planned(&format!("workspace = \"{system}\""));
        assert!(matches!(refused, Err(Error::Impossible { .. })), "{system}: {refused:?}");
    }
    assert!(planned("limits = { memory = \"1GiB\", enforce = \"best-effort\" }").is_ok());
    // More processors than a machine has.
    assert!(planned("limits.cpus = 9999").is_ok());
    let shown = |targets: [&str; 2]| {
        let mount = |target: &&str| format!("{{ source = \"/data\", target = \"{target}\" }}");
        planned(&format!("mount = [{}]", targets.iter().map(mount).collect::<Vec<_>>().join(", ")))
    };
    for hidden in [["/srv/a/b", "/srv/a"], ["/x", "/home/me/project"], ["/x", "/home/me"]] {
        let refused = shown(hidden);
        assert!(matches!(refused, Err(Error::Impossible { .. })), "{hidden:?}: {refused:?}");
    }
    let above = planned("mount = [{ source = \"/home/me\", target = \"/home/me\" }]");
    assert!(matches!(above, Err(Error::Impossible { .. })), "{above:?}");
    for same in [
        "mount = [{ source = \"/data/b\", target = \"/data/b\" }, { source = \"/data\", target = \"/data\" }]",
        "mount = [{ source = \"/a\", target = \"/data\" }, { source = \"/a\", target = \"/data\", mode = \"rw\" }]",
        "mount = [{ source = \"/a\", target = \"/srv/a/b\" }]\ncopy = [{ source = \"/c\", target = \"/srv/a\" }]",
    ] {
        assert!(planned(same).is_ok(), "{same}");
    }
    for fits in [["/srv/a", "/srv/a/b"], ["/data", "/data"], ["/srv/a", "/srv/ab"]] {
        assert!(shown(fits).is_ok(), "{fits:?}");
    }
    let counted = planned("limits.pids = 16").map(|plan| plan.limits);
    assert!(matches!(counted, Ok(LimitsPlan::Processes(16))), "{counted:?}");
}

#[test]
fn root_without_its_rights_is_refused_and_nobody_else_is() {
    let spec = |backend: &str| {
        let image = if backend == "linux" { "" } else { "image = \"x\"" };
        compile(&format!("backend = \"{backend}\"\n{image}"))
    };
    let root = Caller::new(0, 0, "/srv/project");
    let other = Caller::new(1000, 1000, "/srv/project");
    let whole = machine();
    let lacks = Host { root_lacks: vec!["CAP_SYS_ADMIN", "CAP_SETUID"], ..whole.clone() };
    for backend in ["linux", "container"] {
        let refused = refuse_half_root(&spec(backend), &root, &lacks).unwrap_err();
        assert!(refused.to_string().contains("root without CAP_SYS_ADMIN and CAP_SETUID"), "{refused}");
        assert!(refused.remedy().unwrap().contains("not root"), "{refused}");
        refuse_half_root(&spec(backend), &root, &whole).unwrap();
        refuse_half_root(&spec(backend), &other, &lacks).unwrap();
    }
    refuse_half_root(&spec("docker"), &root, &lacks).unwrap();
}

#[test]
fn a_link_takes_root_and_a_sandbox_of_this_kernels() {
    let caller = Caller::new(0, 0, "/srv/project");
    let host =
        Host { system: Vec::new(), landlock: Err(rustix::io::Errno::NOSYS), bundle: None, ..machine() };
    let planned = |config: &str, caller: &Caller, host: &Host| {
        plan(&compile(config), &run(), caller, host, &Additions::default(), &MountsOnceRead::default())
    };
    let text = planned("wiring = \"veth\"", &caller, &host).unwrap().to_string();
    assert!(text.contains("lead the network over a link") && !text.contains("redirect"), "{text}");
    let nobody = Caller { superuser: false, ..caller.clone() };
    let without = Host { makes_links: false, ..host.clone() };
    for (config, caller, host, why) in [
        ("wiring = \"veth\"", &nobody, &host, "only root"),
        ("wiring = \"veth\"", &caller, &without, "CAP_NET_ADMIN"),
        ("wiring = \"veth\"\nbackend = \"process\"", &caller, &host, "not of `process`"),
        ("wiring = \"veth\"\nimage = \"x\"\nbackend = \"docker\"", &caller, &host, "not of `docker`"),
    ] {
        let error = planned(config, caller, host).unwrap_err();
        let what = error.to_string();
        assert!(what.contains("wiring `veth`") && what.contains(why), "{what}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("--wiring redirect")));
        assert_eq!(matches!(error, Error::Impossible { .. }), config.contains("backend"), "{config}");
    }
}

#[test]
fn a_workspace_has_a_name_that_can_be_written_down() {
    use std::os::unix::ffi::OsStringExt;

    let spec = compile("");
    let caller = |name: &[u8]| {
        let directory = std::ffi::OsString::from_vec([b"/srv/", name].concat());
        Caller::new(1000, 1000, directory).with_home("/home/me")
    };
    let mounts = MountsOnceRead::default();
    assert_eq!(
        workspace(&spec, &caller("caf\u{e9}".as_bytes()), &mounts).unwrap(),
        Path::new("/srv/caf\u{e9}")
    );
    for (name, why) in [(&b"caf\xe9"[..], "not UTF-8"), (b"a\nb", "control"), (b"a\x1b[2Jb", "control")] {
        let error = workspace(&spec, &caller(name), &mounts).unwrap_err();
        assert!(matches!(error, Error::Impossible { .. }) && error.to_string().contains(why), "{error}");
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
    }
}

#[test]
fn what_the_machine_is_run_from_is_no_writable_workspace() {
    let at =
        |path: &str, mode: &str| planned(&format!("workspace = {{ path = \"{path}\", mode = \"{mode}\" }}"));
    for path in [
        "/etc/cron.d",
        "/usr/bin",
        "/usr/lib/systemd/system",
        "/usr/libexec",
        "/usr/share/x",
        "/var/spool/cron/crontabs",
        "/usr/local",
        "/usr/local/bin",
        "/usr/local/etc/x",
        "/bin/x",
        "/lib64/x",
        "/boot",
        "/boot/efi",
    ] {
        let Err(Error::Refused { what, remedy }) = at(path, "rw") else { panic!("{path} is taken") };
        assert!(what.contains(path) && remedy.unwrap().contains("overlay"), "{what}");
        at(path, "ro").unwrap();
    }
    for path in [
        "/opt",
        "/opt/x",
        "/usr/src/linux",
        "/usr/local/src/x",
        "/srv/bin",
        "/data/etc",
        "/library",
        "/var/spool/x",
        "/home/me/lib",
    ] {
        at(path, "rw").unwrap();
    }
}

#[test]
fn nothing_is_shown_in_place_of_the_gateways_socket() {
    let show = |place: &str| planned(&format!("mount = [{{ source = \"/srv/x\", target = \"{place}\" }}]"));
    for place in ["/run/lockgate.sock", "/run/lockgate.sock/x"] {
        let error = show(place).unwrap_err().to_string();
        assert!(error.contains("is the gateway's socket"), "{error}");
    }
    show("/run/lockgate.socket").unwrap();
}

#[test]
fn a_folder_in_which_the_socket_is_mounted_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().canonicalize().unwrap().join("engine.sock");
    std::fs::write(&socket, "").unwrap();
    let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = Mounts::parse(list.as_bytes()).place_of(&socket).unwrap();
    let plan = planned("copy = [{ source = '/data', target = '/home/agent/c' }]").unwrap();
    let refused = |shown: &Path, at: &str| {
        let mounted = format!("{list}9999 1 {} {} {at} rw - x x rw\n", place.device, shown.display());
        let refused =
            crate::plan::refused::refuse_mounted(&plan, &socket, &Mounts::parse(mounted.as_bytes()));
        refused.err().map(|error| error.to_string())
    };
    for at in ["/home/me/project/in/sock", "/data/sock"] {
        for shown in [&*place.path, place.path.parent().unwrap()] {
            let told = refused(shown, at).unwrap_or_default();
            assert!(told.contains("the engine's socket is there") && told.contains(at), "{at}: {told}");
        }
        assert_eq!(refused(Path::new("/nonesuch"), at), None);
    }
    assert_eq!(refused(&place.path, "/home/me/other/sock"), None);
}

#[test]
fn podman_is_asked_for_no_path_that_it_reads_as_options() {
    let comma = "/x/w,U=true,source=/x/victim";
    for (shown, path) in [
        (format!("workspace = {{ path = '{comma}' }}"), comma),
        (format!("mount = [{{ source = '{comma}', target = '/d' }}]"), comma),
        ("mount = [{ source = '/d', target = '/q\"q' }]".into(), "q\\\"q"),
        (format!("copy = [{{ source = '{comma}', target = '/home/agent/c' }}]"), comma),
    ] {
        let config = format!("backend = 'docker'\nimage = 'x'\n{shown}\n");
        let refused = planned_with(&config, &at_engine(EngineKind::Podman, &[])).unwrap_err().to_string();
        assert!(refused.contains("Podman cannot show") && refused.contains(path), "{refused}");
        planned_with(&config, &at_engine(EngineKind::Docker, &[])).unwrap();
    }
}

#[test]
fn no_volume_of_an_image_is_read_as_options() {
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        let additions = at_engine(kind, &["/data", "/x:y,source=v,U=true,target=/steal"]);
        let refused = planned_with("backend = 'docker'\nimage = 'x'\n", &additions).unwrap_err().to_string();
        assert!(refused.contains("U=true"), "{refused}");
        let engine = additions.engine.unwrap();
        let refused = crate::docker::read_accounts(&engine).unwrap_err().to_string();
        assert!(refused.contains("U=true"), "before the engine is asked: {refused}");
    }
}
