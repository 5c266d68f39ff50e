//! Plans as they are printed, what is refused, and that every plan has its steps in order.

use policy::{ByteSize, Layers, Origin, RunConfig, WorkspaceMode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::engine::{EngineAt, EngineImage, EngineKind};
use super::*;
use crate::host::LimitsUnavailable;
use crate::host_path::SystemPath;
use crate::image::RootImage;
use crate::mounted::Mounts;
use crate::step::{Cache, PrivateFile};

fn planned(config: &str) -> Result<Plan, Error> {
    planned_with(config, &Additions::default())
}

fn planned_with(config: &str, additions: &Additions) -> Result<Plan, Error> {
    let mut layers = Layers::default();
    let config: RunConfig = toml::from_str(config).unwrap();
    layers.push(Origin::Flags, config);
    let caller = Caller::new(1000, 1000, "/home/me/project")
        .with_home("/home/me")
        .with_env([("PATH", "/home/me/bin:/usr/bin:/opt/x/bin"), ("TOKEN", "t")]);
    let missing = LimitsUnavailable { why: "there are none".into(), remedy: "make some".into() };
    let system = vec![SystemPath::Tree("/usr".into()), SystemPath::Link("/bin".into(), "usr/bin".into())];
    let host = Host {
        system,
        memory: ByteSize::from_mib(16384),
        limits: Err(missing),
        landlock: Some(7),
        memory_attributes: true,
        makes_links: true,
        root_lacks: Vec::new(),
        bundle: Some("/etc/ssl/certs/bundle.pem".into()),
    };
    let run = "abcdefghjkmn".parse().unwrap();
    plan(&layers.compile().unwrap(), &run, &caller, &host, additions)
}

fn at_engine(kind: EngineKind, volumes: &[&str]) -> Additions {
    let at = EngineAt { socket: "/nonesuch/engine".into(), minor_version: 41, rootless: false, kind };
    let volumes = volumes.iter().map(PathBuf::from).collect();
    let engine = EngineRun {
        at,
        image: "x".into(),
        config: EngineImage { volumes, ..EngineImage::default() },
        owner: (1000, 1000),
        pool: 0,
        ports: Vec::new(),
        published: Vec::new(),
        slots: PathBuf::new(),
    };
    Additions { engine: Some(engine), ..Additions::default() }
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
fn a_folder_in_which_the_socket_is_mounted_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().canonicalize().unwrap().join("engine.sock");
    std::fs::write(&socket, "").unwrap();
    let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = Mounts::parse(list.as_bytes()).place_of(&socket).unwrap();
    let plan = planned("copy = [{ source = '/data', target = '/home/agent/c' }]").unwrap();
    let refused = |shown: &Path, at: &str| {
        let mounted = format!("{list}9999 1 {} {} {at} rw - x x rw\n", place.device, shown.display());
        let refused = super::refused::refuse_mounted(&plan, &socket, &Mounts::parse(mounted.as_bytes()));
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

#[test]
fn the_plan_of_linux() {
    let text = planned("mount = [{ source = \"/data\", target = \"/data\" }]").unwrap().to_string();
    let expected = "\
backend linux
uid 1000 is 1000 outside, gid 1000 is 1000 outside
limits: 512 processes, nothing else
 1. open what the sandbox is shown
 2. mount the private root (4GiB, 1048576 files)
 3. show /usr read-only
 4. link /bin to usr/bin
 5. make /tmp (mode 1777)
 6. make /var/tmp (mode 1777)
 7. make /run (mode 755)
 8. make /home/agent (mode 700)
 9. show /etc read-only, with its own hosts, resolv.conf, passwd and group
10. mount /proc
11. make /dev
12. redirect the network to one port
13. hand the listeners to the sidecar
14. enter the private root
15. set the host name
16. show the workspace /home/me/project for reading and writing
17. show /data at /data read-only
18. protect what the host would execute or trust
19. drop privileges
20. restrict files by Landlock
21. install the system-call filter
note: memory and processors are not limited: there are none (lockgate doctor)
";
    assert_eq!(text, expected);
}

#[test]
fn whom_the_host_trusts_is_read_early_unless_something_may_lie_over_it() {
    let early = |shown: &str, environment: &str| {
        let config = format!(
            "env = {{ set = {{ {environment} }} }}\nmount = [{{ source = \"/data\", target = \"{shown}\" }}]"
        );
        let plan = planned_with(&config, &Additions { opens_tls: true, ..Additions::default() }).unwrap();
        let at = |found: fn(&Step) -> bool| plan.steps.iter().position(found);
        assert!(at(|step| matches!(step, Step::TrustAuthority(Some(_)))).is_some());
        let read = at(|step| matches!(step, Step::ReadAuthorities(_)));
        read.map(|read| read < at(|step| matches!(step, Step::ShowWorkspace(..))).unwrap())
    };
    assert_eq!(early("/data", ""), Some(true));
    for over in ["/etc/ssl", "/etc/pki/of/a/link", "/usr/lib/jvm/x", "/opt"] {
        assert_eq!(early(over, ""), None, "{over}");
    }
    assert_eq!(early("/srv/java", "JAVA_HOME = \"/srv/java/21\""), None);
    assert_eq!(early("/srv/other", "JAVA_HOME = \"/srv/java/21\""), Some(true));
}

#[test]
fn the_plan_of_container() {
    let image = RootImage {
        layers: vec!["/store/a".into(), "/store/b".into()],
        environment: vec![("PATH".into(), "/app/bin:".into()), ("HTTP_PROXY".into(), "http://x".into())],
        uid: 101,
        gid: 102,
        home: Some("/srv/app".into()),
        ..RootImage::default()
    };
    let additions = Additions { image: Some(image), ..Additions::default() };
    let plan = planned_with("image = \"x\"\nworkdir = \"/srv\"", &additions).unwrap();
    let expected = "\
backend container
uid 101 is 1000 outside, gid 102 is 1000 outside
limits: 512 processes, nothing else
 1. open what the sandbox is shown
 2. mount the image (2 layers) under room for 4GiB, 1048576 files
 3. make /tmp (mode 1777)
 4. make /var/tmp (mode 1777)
 5. give /srv/app to the command as its home
 6. make /run anew (mode 755)
 7. write hosts, resolv.conf, passwd and group
 8. mount /proc
 9. make /dev
10. redirect the network to one port
11. hand the listeners to the sidecar
12. show the workspace /home/me/project for reading and writing
13. protect what the host would execute or trust
14. enter the private root
15. set the host name
16. drop privileges
17. restrict files by Landlock
18. install the system-call filter
note: memory and processors are not limited: there are none (lockgate doctor)
note: every file of the image belongs to the command's own user, the one id there is
";
    assert_eq!(plan.to_string(), expected);
    assert_eq!((plan.directory.to_str(), plan.home.to_str()), (Some("/srv"), Some("/srv/app")));
    let value = |name: &str| plan.environment.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    // Neither the directory the command is in, nor a proxy of the image's choosing.
    assert!(value("PATH").unwrap().starts_with("/app/bin:/usr/local/sbin:"));
    assert_eq!(value("HTTP_PROXY"), Some("http://sidecar:8081"));
}

#[test]
fn further_groups_and_the_working_directory_are_the_images() {
    let image = RootImage {
        uid: 101,
        gid: 102,
        groups: vec![102, 3456],
        directory: Some("/not/there".into()),
        ..RootImage::default()
    };
    let additions = Additions { image: Some(image), ..Additions::default() };
    let made = Step::Directory("/not/there".into(), 0o755);
    let plan = |workdir: &str, additions: &Additions| {
        planned_with(&format!("image = \"x\"\nworkdir = \"{workdir}\""), additions).unwrap()
    };
    let one = plan("/not/there", &additions);
    assert!(one.groups.is_empty() && one.steps.contains(&made), "{one}");
    assert!(!plan("/other", &additions).steps.contains(&made));
    let subordinate = Some(crate::subordinate::SubordinateIds { users: 100_000, groups: 100_000 });
    let several = plan("/other", &Additions { subordinate, ..additions.clone() });
    assert_eq!(several.groups, [3456], "the command's own group is the caller's");
    assert!(several.to_string().contains("further groups inside: 3456"), "{several}");
    let root = RootImage { uid: 0, ..additions.image.clone().unwrap() };
    let roots = plan("/other", &Additions { subordinate, image: Some(root), ..additions });
    assert!(roots.groups.is_empty(), "an image that says root gets `agent`, who has none of root's groups");
}

#[test]
fn files_and_caches_enter_before_what_the_policy_shows() {
    let file = |path: &str| PrivateFile { path: path.into(), content: b"x".into(), mode: 0o600 };
    let cache = |at: &str| Cache { source: "/home/me".into(), target: at.into() };
    let additions = Additions {
        files: vec![file(".npmrc"), file(".config/git/config")],
        caches: vec![cache(".npm/_cacache"), cache("kept/cache")],
        ..Additions::default()
    };
    let config = "mount = [{ source = \"/a\", target = \"/home/agent/.config/git\", mode = \"rw\" }]
        copy = [{ source = \"/b\", target = \"/home/agent/kept\" }]";
    let text = planned_with(config, &additions).unwrap().to_string();
    let begins = "15. set the host name
16. show /home/me at /home/agent/.npm/_cacache, with what is written kept in memory (384MiB)
17. write /home/agent/.npmrc (mode 600)
18. show the workspace";
    assert!(text.contains(begins), "{text}");
    for left_out in ["/home/agent/.config/git/config", "/home/agent/kept/cache"] {
        assert!(text.contains(&format!("note: `{left_out}` is not brought in")), "{text}");
    }
    assert!(planned("backend = \"process\"\nbuiltin_tools = [\"git\"]").is_err());
}

#[test]
fn the_plan_of_process_says_what_it_is_not() {
    let text = planned("backend = \"process\"").unwrap().to_string();
    assert!(text.starts_with("backend process\n") && text.contains("no isolation"), "{text}");
    let asked = "backend = \"process\"\nlimits.disk = \"1GiB\"";
    let refused = planned(asked).unwrap_err().to_string();
    assert!(refused.contains("`limits.disk`"), "{refused}");
    let text = planned(&format!("{asked}\nlimits.enforce = \"best-effort\"")).unwrap().to_string();
    assert!(text.contains("`limits.disk` is not held"), "{text}");
}

#[test]
fn the_environment_is_only_what_is_named() {
    let plan = planned("").unwrap();
    let value = |name: &str| plan.environment.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    assert_eq!(value("TOKEN"), None);
    assert_eq!(value("HTTPS_PROXY"), Some("http://sidecar:8081")); // S0.16
    assert_eq!(value("SIDECAR_URL"), Some("http://sidecar:8080")); // S0.17
    let path = value("PATH").unwrap();
    assert!(path.starts_with("/usr/bin:/opt/x/bin:") && path.ends_with(":/home/agent/.local/bin"), "{path}");
    assert_eq!(value("npm_config_update_notifier"), Some("false"));
}

#[test]
fn a_link_takes_root_and_a_sandbox_of_this_kernels() {
    let compile = |config: &str| {
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(config).unwrap());
        layers.compile().unwrap()
    };
    let caller = Caller::new(0, 0, "/srv/project");
    let missing = LimitsUnavailable { why: "there are none".into(), remedy: "make some".into() };
    let host = Host {
        system: Vec::new(),
        memory: ByteSize::from_mib(16384),
        limits: Err(missing),
        landlock: None,
        memory_attributes: true,
        makes_links: true,
        root_lacks: Vec::new(),
        bundle: None,
    };
    let run = "abcdefghjkmn".parse().unwrap();
    let planned = |config: &str, caller: &Caller, host: &Host| {
        plan(&compile(config), &run, caller, host, &Additions::default())
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
        match planned(config, caller, host) {
            Err(Error::Refused { what, remedy }) => {
                assert!(what.contains("wiring `veth`") && what.contains(why), "{what}");
                assert!(remedy.is_some_and(|remedy| remedy.contains("--wiring redirect")));
            }
            other => panic!("{config}: {other:?}"),
        }
    }
}

#[test]
fn what_nobody_asked_a_size_for_takes_no_more_memory_than_the_machine_can_spare() {
    let rooms = |config: &str, mib: u64| {
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(config).unwrap());
        let host = Host { memory: ByteSize::from_mib(mib), ..machine_with_links() };
        let cache = Cache { source: "/home/me/.npm".into(), target: ".npm".into() };
        let additions = Additions { caches: vec![cache], ..Additions::default() };
        let (run, caller) = ("abcdefghjkmn".parse().unwrap(), Caller::new(1000, 1000, "/home/me/project"));
        let plan = plan(&layers.compile().unwrap(), &run, &caller, &host, &additions).unwrap();
        let sizes = plan.steps.iter().filter_map(|step| match step {
            Step::MountRoot { size, .. } | Step::ShowUnder { size, .. } => Some(size.to_string()),
            _ => None,
        });
        sizes.collect::<Vec<_>>()
    };
    assert_eq!(rooms("", 256), ["128MiB", "64MiB"]);
    assert_eq!(rooms("", 16384), ["4GiB", "384MiB"]);
    assert_eq!(rooms("limits = { disk = \"400MiB\" }", 256), ["400MiB", "384MiB"]);
}

#[test]
fn root_without_its_rights_is_refused_and_nobody_else_is() {
    let spec = |backend: &str| {
        let mut layers = Layers::default();
        let image = if backend == "linux" { "" } else { "image = \"x\"" };
        let config = format!("backend = \"{backend}\"\n{image}");
        layers.push(Origin::Flags, toml::from_str(&config).unwrap());
        layers.compile().unwrap()
    };
    let root = Caller::new(0, 0, "/srv/project");
    let other = Caller::new(1000, 1000, "/srv/project");
    let whole = machine_with_links();
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
fn a_workspace_has_a_name_that_can_be_written_down() {
    use std::os::unix::ffi::OsStringExt;

    let layers = Layers::default();
    let spec = layers.compile().unwrap();
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
        assert!(error.to_string().contains(why) && error.remedy().is_some(), "{error}");
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
    }
}

#[test]
fn what_cannot_be_held_or_shown_is_refused() {
    for config in [
        "limits.memory = \"1GiB\"",
        "limits.pids = 16\nlimits.cpus = 1",
        "limits.pids = 16\nbackend = \"process\"",
        "workspace = \"/home/me\"",
        "workspace = \"/\"",
        "image = \"x\"",
        "backend = \"process\"\nmount = [{ source = \"/data\", target = \"/data\" }]",
    ] {
        assert!(matches!(planned(config), Err(Error::Refused { .. })), "{config}");
    }
    assert!(matches!(planned("tools = [\"nonesuch\"]"), Err(Error::Unknown { .. })));
    assert!(planned("limits = { memory = \"1GiB\", enforce = \"best-effort\" }").is_ok());
    let shown = |targets: [&str; 2]| {
        let mount = |target: &&str| format!("{{ source = \"/data\", target = \"{target}\" }}");
        planned(&format!("mount = [{}]", targets.iter().map(mount).collect::<Vec<_>>().join(", ")))
    };
    for hidden in [["/srv/a/b", "/srv/a"], ["/x", "/home/me/project"], ["/x", "/home/me"]] {
        let refused = shown(hidden);
        assert!(matches!(refused, Err(Error::Refused { .. })), "{hidden:?}: {refused:?}");
    }
    let above = planned("mount = [{ source = \"/home/me\", target = \"/home/me\" }]");
    assert!(matches!(above, Err(Error::Refused { .. })), "{above:?}");
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

/// A small space of runs that can be had: what the person writes, what is added, and what the machine has.
fn valid() -> impl Strategy<Value = (String, Additions, Host)> {
    let shown = subsequence(vec!["/data/a", "/home/agent/b", "/etc/c", "/usr/lib/jvm"], 0..=2);
    let mounts = (shown, vec(select(vec!["ro", "rw"]), 2));
    let copies = subsequence(vec!["/home/agent/copied", "/opt/copied"], 0..=2);
    let modes = select(vec!["rw", "ro", "overlay"]);
    let written =
        (select(vec!["linux", "container"]), select(vec!["redirect", "veth"]), modes, mounts, copies);
    let landlock = select(vec![None, Some(1), Some(2), Some(7)]);
    let machine = (landlock, any::<bool>(), any::<bool>(), any::<bool>());
    (written, machine).prop_map(
        |((backend, wiring, mode, mounts, copies), (landlock, attributes, tls, built_in))| {
            let image = if backend == "container" { "image = \"x\"\n" } else { "" };
            let mounts: Vec<String> = mounts
                .0
                .iter()
                .zip(&mounts.1)
                .map(|(target, mode)| {
                    format!("{{ source = \"/data\", target = \"{target}\", mode = \"{mode}\" }}")
                })
                .collect();
            let copies: Vec<String> = copies
                .iter()
                .map(|target| format!("{{ source = \"/data\", target = \"{target}\" }}"))
                .collect();
            let config = format!(
                "backend = \"{backend}\"\n{image}wiring = \"{wiring}\"\nworkspace = {{ mode = \"{mode}\" }}\n\
             mount = [{}]\ncopy = [{}]\n",
                mounts.join(", "),
                copies.join(", "),
            );
            let file = PrivateFile { path: ".npmrc".into(), content: b"x".into(), mode: 0o600 };
            let cache = Cache { source: "/home/me/.npm".into(), target: ".npm".into() };
            let additions = Additions {
                opens_tls: tls,
                image: (backend == "container").then(RootImage::default),
                changes: (mode == "overlay").then(|| "/state/changes".into()),
                written: Some("/state/written".into()),
                files: if built_in { vec![file] } else { Vec::new() },
                caches: if built_in { vec![cache] } else { Vec::new() },
                ..Additions::default()
            };
            let host = Host { landlock, memory_attributes: attributes, ..machine_with_links() };
            (config, additions, host)
        },
    )
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

fn machine_with_links() -> Host {
    Host {
        system: vec![SystemPath::Tree("/usr".into()), SystemPath::Link("/bin".into(), "usr/bin".into())],
        memory: ByteSize::from_mib(16384),
        limits: Err(LimitsUnavailable { why: "there are none".into(), remedy: "make some".into() }),
        landlock: Some(7),
        memory_attributes: true,
        makes_links: true,
        root_lacks: Vec::new(),
        bundle: Some("/etc/ssl/certs/bundle.pem".into()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    // S4.66: whatever the spec asks for, nothing of the host is looked up after the host's root is left, nothing is shown after privileges
    // are dropped, and no right outlives its purpose.
    #[test]
    fn every_plan_has_its_steps_in_order((config, additions, host) in valid()) {
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(&config).unwrap());
        let spec = layers.compile().unwrap();
        let caller = Caller::new(0, 0, "/srv/project").with_home("/root");
        let run = "abcdefghjkmn".parse().unwrap();
        let plan = plan(&spec, &run, &caller, &host, &additions).unwrap();
        let all = |found: &dyn Fn(&Step) -> bool| {
            (0..plan.steps.len()).filter(|at| found(&plan.steps[*at])).collect::<Vec<_>>()
        };
        let once = |step: &Step| match all(&|other| other == step)[..] {
            [at] => at,
            ref found => panic!("{step} is at {found:?} in\n{plan}"),
        };
        let enter = once(&Step::EnterRoot);
        let drop = once(&Step::DropPrivileges);

        let system = all(&|step| {
            matches!(step, Step::ShowSystem(_) | Step::ShowEtc | Step::WriteEtc | Step::MakeDevices)
        });
        let shows = all(&|step| step.covers().is_some());
        let asked = 1 + spec.mounts.len() + spec.copies.len();
        prop_assert!(system.len() > 1 && shows.len() >= asked, "{plan}");
        prop_assert!(shows.iter().all(|show| *show < drop && system.iter().all(|it| it < show)), "{plan}");
        // Overlays are made in the private file system below an image, which is left with the host's root.
        let before_entering = if plan.backend == Backend::Container { shows.len() } else { 0 };
        prop_assert!(system.iter().all(|it| *it < enter), "{plan}");
        prop_assert_eq!(shows.iter().filter(|show| **show < enter).count(), before_entering, "{}", plan);
        prop_assert_eq!(once(&Step::OpenSources), 0);

        // A read-only workspace needs no protection. Nothing may be shown over the protection.
        let protect = all(&|step| *step == Step::Protect);
        prop_assert_eq!(protect.len(), usize::from(spec.workspace_mode == WorkspaceMode::ReadWrite), "{}", plan);
        prop_assert!(protect.iter().all(|at| *at < drop && shows.iter().all(|show| show < at)), "{plan}");

        match spec.wiring {
            Wiring::Redirect => {
                let (wire, hand_out) = (once(&Step::WireNetwork), once(&Step::HandOutListeners));
                let run = all(&|step| {
                    matches!(step, Step::Directory(path, _) | Step::OwnDirectory(path, _) if path == Path::new("/run"))
                });
                prop_assert!(matches!(run[..], [run] if run < wire), "{plan}");
                prop_assert!(wire < hand_out && hand_out < enter, "{plan}");
                prop_assert!(!plan.steps.contains(&Step::JoinLink), "{plan}");
            }
            Wiring::Veth => {
                let join = once(&Step::JoinLink);
                prop_assert!(enter < join && join < drop, "{plan}");
                let others = all(&|step| matches!(step, Step::WireNetwork | Step::HandOutListeners));
                prop_assert_eq!(others, Vec::<usize>::new(), "{}", plan);
            }
        }

        let trusts = all(&|step| matches!(step, Step::TrustAuthority(_)));
        prop_assert_eq!(trusts.len(), usize::from(additions.opens_tls), "{}", plan);
        prop_assert!(trusts.iter().all(|at| *at < drop), "{plan}");

        let mut last = vec![Step::DropPrivileges];
        let restricts = host.landlock.is_some_and(|version| version > 1);
        last.extend(restricts.then_some(Step::Landlock));
        let says_so = plan.notices.iter().any(|notice| notice.contains("mounts alone keep files apart"));
        prop_assert_eq!(says_so, !restricts, "{}", plan);
        last.push(Step::Seccomp);
        prop_assert!(plan.steps.ends_with(&last), "{plan}");
        once(&Step::Seccomp);
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
fn volumes_below_run_are_made_in_the_run_that_covers_the_images() {
    let volumes = ["/data", "/run", "/run/app", "/var/run/db", "/running", "/run/lockgate.sock/x"];
    let image = RootImage { volumes: volumes.map(Into::into).to_vec(), ..RootImage::default() };
    let root = super::container::ImageRoot { image: &image, home: Path::new("/home/agent"), written: None };
    let spec = Layers::default().compile().unwrap();
    let steps = root.steps(&spec, &machine_with_links(), &mut Vec::new()).unwrap();
    let (before, after) = steps.split_at(
        steps
            .iter()
            .position(|step| matches!(step, Step::OwnDirectory(path, _) if path == Path::new("/run")))
            .unwrap(),
    );
    let made = |steps: &[Step]| -> Vec<String> {
        let volumes = steps.iter().filter_map(|step| match step {
            Step::Volume(path) => Some(path.display().to_string()),
            _ => None,
        });
        volumes.collect()
    };
    assert_eq!(made(before), ["/data", "/var/run/db", "/running"]);
    assert_eq!(made(after), ["/run/app", "/run/db"]);
}

#[test]
fn a_home_below_run_is_made_in_the_run_that_covers_the_images() {
    let image = RootImage::default();
    let spec = Layers::default().compile().unwrap();
    let own = |step: &Step| matches!(step, Step::OwnDirectory(path, _) if path == Path::new("/run"));
    for (home, wanted) in [
        ("/home/agent", vec!["/home/agent", "own"]),
        ("/run/app", vec!["own", "/run/app"]),
        ("/var/run/app", vec!["/var/run/app", "own", "/run/app"]),
        ("/running", vec!["/running", "own"]),
    ] {
        let root = super::container::ImageRoot { image: &image, home: Path::new(home), written: None };
        let steps = root.steps(&spec, &machine_with_links(), &mut Vec::new()).unwrap();
        let told = steps.iter().filter_map(|step| match step {
            Step::Home(path) => path.to_str(),
            step => own(step).then_some("own"),
        });
        assert_eq!(told.collect::<Vec<_>>(), wanted, "{home}");
    }
}

#[test]
fn a_path_that_is_opened_is_told_of_where_it_can_be_written() {
    for (mode, told) in [("rw", 1), ("ro", 0)] {
        let plan = planned(&format!("workspace = {{ mode = \"{mode}\", open = [\".vscode\"] }}")).unwrap();
        let opened = plan.notices.iter().filter(|it| it.starts_with("`.vscode` is not protected"));
        assert_eq!(opened.count(), told, "{mode}: {:?}", plan.notices);
    }
}

#[test]
fn a_repository_that_is_not_shown_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    std::fs::create_dir_all(folder.join("main/.git/worktrees/w")).unwrap();
    std::fs::create_dir(folder.join("w")).unwrap();
    std::fs::write(folder.join("w/.git"), "gitdir: ../main/.git/worktrees/w\n").unwrap();
    let told = |config: &str| {
        let workspace = folder.join("w");
        let plan = planned(&format!("workspace = {{ path = {workspace:?} }}\n{config}")).unwrap();
        plan.notices.iter().any(|notice| notice.contains("git finds no repository inside"))
    };
    assert!(told(""));
    let main = folder.join("main");
    assert!(!told(&format!("mount = [{{ source = {main:?}, target = {main:?} }}]")));
    assert!(!told("backend = \"process\""));
}
