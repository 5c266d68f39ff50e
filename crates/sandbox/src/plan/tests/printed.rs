//! What a plan says: its steps as they are printed, its notices, and the environment.

use policy::ByteSize;

use super::{compile, machine, planned, planned_with, run};
use crate::caller::Caller;
use crate::environment::{AUTHORITY, BUNDLE};
use crate::further_authorities::FurtherAuthorities;
use crate::host::Host;
use crate::image::RootImage;
use crate::mounted::MountsOnceRead;
use crate::plan::additions::Additions;
use crate::plan::plan;
use crate::step::{Cache, PrivateFile, Step};

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
fn what_nobody_asked_a_size_for_takes_no_more_memory_than_the_machine_can_spare() {
    let rooms = |config: &str, mib: u64| {
        let host = Host { memory: ByteSize::from_mib(mib), ..machine() };
        let cache = Cache { source: "/home/me/.npm".into(), target: ".npm".into() };
        let additions = Additions { caches: vec![cache], ..Additions::default() };
        let caller = Caller::new(1000, 1000, "/home/me/project");
        let plan =
            plan(&compile(config), &run(), &caller, &host, &additions, &MountsOnceRead::default()).unwrap();
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
fn the_environment_is_only_what_is_named() {
    let plan = planned("").unwrap();
    let value = |name: &str| plan.environment.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    assert_eq!(value("TOKEN"), None);
    assert_eq!(value("HTTPS_PROXY"), Some("http://sidecar:8081")); // S0.16
    assert_eq!(value("SIDECAR_URL"), Some("http://sidecar:8080")); // S0.17
    let path = value("PATH").unwrap();
    assert!(path.starts_with("/usr/bin:/opt/x/bin:") && path.ends_with(":/home/agent/.local/bin"), "{path}");
    assert_eq!(value("npm_config_update_notifier"), Some("false"));
    assert_eq!(value("pnpm_config_fetch_retries"), Some("1"));
}

#[test]
fn where_a_placeholder_holds_the_name_of_a_repository_go_asks_for_none() {
    let workspace = tempfile::tempdir().unwrap();
    let flags = |config: &str| {
        let plan = planned(&format!("workspace.path = {:?}\n{config}", workspace.path())).unwrap();
        plan.environment.into_iter().find(|(name, _)| name == "GOFLAGS").map(|(_, value)| value)
    };
    assert_eq!(flags("").as_deref(), Some("-buildvcs=false"));
    assert_eq!(flags("env.set.GOFLAGS = \"-mod=vendor\"").as_deref(), Some("-mod=vendor"));
    for not_held in ["workspace.mode = \"ro\"", "workspace.open = [\".git\"]", "backend = \"process\""] {
        assert_eq!(flags(not_held), None, "{not_held}");
    }
    std::fs::create_dir(workspace.path().join(".git")).unwrap();
    assert_eq!(flags(""), None);
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
fn of_a_repository_that_is_opened_the_protected_parts_are_told_to_stay_so() {
    let workspace = tempfile::tempdir().unwrap();
    let config = format!("workspace = {{ path = {:?}, open = [\".git\"] }}", workspace.path());
    let told = |says: &str| planned(&config).unwrap().notices.iter().any(|notice| notice.contains(says));
    assert!(told("`.git` is not protected"), "where there is none, the command may make one");
    std::fs::create_dir(workspace.path().join(".git")).unwrap();
    assert!(told("`.git/hooks` and others) stay protected") && !told("`.git` is not protected"));
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

#[test]
fn objects_that_are_borrowed_and_not_shown_are_told_of_with_the_mount_that_shows_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let (workspace, lent) = (folder.join("w"), folder.join("ol'd/.git/objects"));
    std::fs::create_dir_all(workspace.join(".git/objects/info")).unwrap();
    std::fs::create_dir_all(lent.join("pack")).unwrap();
    std::fs::write(workspace.join(".git/objects/info/alternates"), "../../../ol'd/.git/objects\n").unwrap();
    let told = |config: &str| {
        let plan = planned(&format!("workspace = {{ path = {workspace:?} }}\n{config}")).unwrap();
        let flag = format!("{0}:{0}", lent.display());
        let way_out = format!("--mount {}", policy::shell_word(&flag));
        plan.notices.iter().any(|notice| notice.contains("borrows objects") && notice.ends_with(&way_out))
    };
    assert!(told(""));
    assert!(!told(&format!("mount = [{{ source = {lent:?}, target = {lent:?} }}]")));
    assert!(!told("backend = \"process\""));
}

#[test]
fn what_the_callers_own_file_adds_is_trusted_although_nothing_is_opened() {
    let authorities = FurtherAuthorities { own: false, callers: "of the office".into() };
    assert_eq!(authorities.with(b"own "), b"own of the office");
    let plan = planned_with("", &Additions { authorities, ..Additions::default() }).unwrap();
    assert!(plan.to_string().contains("trust the authorities that SSL_CERT_FILE adds\n"), "{plan}");
    assert!(!plan.opens_tls(), "the sidecar is not waited for");
    for (name, path) in [("SSL_CERT_FILE", BUNDLE), ("NODE_EXTRA_CA_CERTS", AUTHORITY)] {
        assert!(plan.environment.contains(&(name.into(), path.into())), "{:?}", plan.environment);
    }
    let plan = planned("").unwrap();
    assert!(!plan.environment.iter().any(|(name, _)| name == "SSL_CERT_FILE"), "{:?}", plan.environment);
}

#[test]
fn package_managers_ask_once_more_at_most() {
    let plan = planned("").unwrap();
    for name in ["PIP_RETRIES", "UV_HTTP_RETRIES", "CARGO_NET_RETRY", "YARN_HTTP_RETRY", "BUNDLE_RETRY"] {
        assert!(plan.environment.contains(&(name.into(), "1".into())), "{name}: {:?}", plan.environment);
    }
}
