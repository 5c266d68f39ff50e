//! In which order a plan's steps are.

use std::path::Path;

use policy::{Backend, Wiring, WorkspaceMode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use rustix::io::Errno;

use super::{compile, machine, planned_with, run};
use crate::caller::Caller;
use crate::further_authorities::FurtherAuthorities;
use crate::host::Host;
use crate::image::RootImage;
use crate::mounted::MountsOnceRead;
use crate::plan::additions::Additions;
use crate::plan::plan;
use crate::step::{Cache, PrivateFile, Step};

/// What a person writes, what is added to it, and what the machine has, of a run that can be had.
#[derive(Clone, Debug)]
struct Valid {
    backend: &'static str,
    wiring: &'static str,
    workspace_mode: &'static str,
    /// The targets and modes of mounts.
    mounts: Vec<(&'static str, &'static str)>,
    /// The targets of copies.
    copies: Vec<&'static str>,
    landlock: Result<u32, Errno>,
    memory_attributes: bool,
    opens_tls: bool,
    /// Whether files and caches of built-in tools are brought in.
    has_tools: bool,
}

impl Valid {
    fn config(&self) -> String {
        let Self { backend, wiring, workspace_mode, .. } = self;
        let image = if self.is_image() { "image = \"x\"\n" } else { "" };
        let mounts: Vec<_> = self
            .mounts
            .iter()
            .map(|(target, mode)| {
                format!("{{ source = \"/data\", target = \"{target}\", mode = \"{mode}\" }}")
            })
            .collect();
        let copies: Vec<_> = self
            .copies
            .iter()
            .map(|target| format!("{{ source = \"/data\", target = \"{target}\" }}"))
            .collect();
        format!(
            "backend = \"{backend}\"\n{image}wiring = \"{wiring}\"\nworkspace = {{ mode = \"{workspace_mode}\" }}\n\
             mount = [{}]\ncopy = [{}]\n",
            mounts.join(", "),
            copies.join(", "),
        )
    }

    fn additions(&self) -> Additions {
        let file = PrivateFile { path: ".npmrc".into(), content: b"x".into(), mode: 0o600 };
        let cache = Cache { source: "/home/me/.npm".into(), target: ".npm".into() };
        Additions {
            authorities: FurtherAuthorities { own: self.opens_tls, callers: String::new() },
            image: self.is_image().then(RootImage::default),
            changes: (self.workspace_mode == "overlay").then(|| "/state/changes".into()),
            written: Some("/state/written".into()),
            files: if self.has_tools { vec![file] } else { Vec::new() },
            caches: if self.has_tools { vec![cache] } else { Vec::new() },
            ..Additions::default()
        }
    }

    fn host(&self) -> Host {
        Host { landlock: self.landlock, memory_attributes: self.memory_attributes, ..machine() }
    }

    fn is_image(&self) -> bool {
        self.backend == "container"
    }
}

prop_compose! {
    fn valid()(
        backend in select(vec!["linux", "container"]),
        wiring in select(vec!["redirect", "veth"]),
        workspace_mode in select(vec!["rw", "ro", "overlay"]),
        mounted in subsequence(vec!["/data/a", "/home/agent/b", "/etc/c", "/usr/lib/jvm"], 0..=2),
        mount_modes in vec(select(vec!["ro", "rw"]), 2),
        copies in subsequence(vec!["/home/agent/copied", "/opt/copied"], 0..=2),
        landlock in select(vec![Err(Errno::NOSYS), Ok(1), Ok(2), Ok(7)]),
        memory_attributes in any::<bool>(),
        opens_tls in any::<bool>(),
        has_tools in any::<bool>(),
    ) -> Valid {
        let mounts = mounted.into_iter().zip(mount_modes).collect();
        Valid { backend, wiring, workspace_mode, mounts, copies, landlock, memory_attributes, opens_tls, has_tools }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    // S4.66: whatever the spec asks for, nothing of the host is looked up after the host's root is left, nothing is shown after privileges
    // are dropped, and no right outlives its purpose.
    #[test]
    fn every_plan_has_its_steps_in_order(valid in valid()) {
        let spec = compile(&valid.config());
        let caller = Caller::new(0, 0, "/srv/project").with_home("/root");
        let plan = plan(&spec, &run(), &caller, &valid.host(), &valid.additions(), &MountsOnceRead::default()).unwrap();
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

        let trusts = all(&|step| matches!(step, Step::TrustAuthorities(..)));
        prop_assert_eq!(trusts.len(), usize::from(valid.opens_tls), "{}", plan);
        prop_assert!(trusts.iter().all(|at| *at < drop), "{plan}");

        let mut last = vec![Step::DropPrivileges];
        let restricts = valid.landlock.is_ok_and(|version| version > 1);
        last.extend(restricts.then_some(Step::Landlock));
        let says_so = plan.notices.iter().any(|notice| notice.contains("mounts alone keep files apart"));
        prop_assert_eq!(says_so, !restricts, "{}", plan);
        last.push(Step::Seccomp);
        prop_assert!(plan.steps.ends_with(&last), "{plan}");
        once(&Step::Seccomp);
    }
}

#[test]
fn whom_the_host_trusts_is_read_early_unless_something_may_lie_over_it() {
    let early = |shown: &str, environment: &str| {
        let config = format!(
            "env = {{ set = {{ {environment} }} }}\nmount = [{{ source = \"/data\", target = \"{shown}\" }}]"
        );
        let authorities = FurtherAuthorities { own: true, callers: String::new() };
        let plan = planned_with(&config, &Additions { authorities, ..Additions::default() }).unwrap();
        let at = |found: fn(&Step) -> bool| plan.steps.iter().position(found);
        assert!(at(|step| matches!(step, Step::TrustAuthorities(Some(_), _))).is_some());
        let read = at(|step| matches!(step, Step::ReadAuthorities(_)));
        read.map(|read| read < at(|step| matches!(step, Step::ShowWorkspace(..))).unwrap())
    };
    assert_eq!(early("/data", ""), Some(true));
    for over in ["/etc/ssl", "/etc/pki/of/a/link", "/usr/lib/jvm/x", "/opt"] {
        assert_eq!(early(over, ""), None, "{over}");
    }
    assert_eq!(early("/srv/java", "JAVA_HOME = \"/srv/java/21\""), None);
    assert_eq!(early("/srv/other", "JAVA_HOME = \"/srv/java/21\""), Some(true));
    assert_eq!(early("/srv/tool", "PATH = \"/srv/tool/bin\""), None);
    assert_eq!(early("/srv/tool/bin", "PATH = \"/srv/tool/bin\""), Some(true), "no store lies there");
}

#[test]
fn volumes_below_run_are_made_in_the_run_that_covers_the_images() {
    let volumes = ["/data", "/run", "/run/app", "/var/run/db", "/running", "/run/lockgate.sock/x"];
    let image = RootImage { volumes: volumes.map(Into::into).to_vec(), ..RootImage::default() };
    let root =
        crate::plan::container::ImageRoot { image: &image, home: Path::new("/home/agent"), written: None };
    let spec = compile("");
    let steps = root.steps(&spec, &machine(), &mut Vec::new()).unwrap();
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
fn the_directory_of_an_image_below_run_is_made_in_the_run_that_covers_the_images() {
    let own = |step: &Step| matches!(step, Step::OwnDirectory(path, _) if path == Path::new("/run"));
    for (directory, uid, wanted) in [
        ("/app", 7, vec!["/app", "own"]),
        ("/run/app", 7, vec!["own", "/run/app"]),
        ("/var/run/app", 7, vec!["/var/run/app", "own", "/run/app"]),
        ("/root", 0, vec!["/root", "into /root", "into /bin", "own"]),
    ] {
        let (program, named) = (Some("/bin/start".into()), Some(directory.into()));
        let image = RootImage { uid, program, directory: named, ..RootImage::default() };
        let root = crate::plan::container::ImageRoot {
            image: &image,
            home: Path::new("/home/agent"),
            written: None,
        };
        let spec = compile(&format!("workdir = \"{directory}\""));
        let steps = root.steps(&spec, &machine(), &mut Vec::new()).unwrap();
        let told = steps.iter().filter_map(|step| match step {
            Step::Directory(path, _) => Some(path.display().to_string()),
            Step::LetInto(path) => Some(format!("into {}", path.display())),
            step => own(step).then(|| "own".into()),
        });
        assert_eq!(told.collect::<Vec<_>>(), wanted, "{directory}");
    }
}

#[test]
fn a_home_below_run_is_made_in_the_run_that_covers_the_images() {
    let image = RootImage::default();
    let spec = compile("");
    let own = |step: &Step| matches!(step, Step::OwnDirectory(path, _) if path == Path::new("/run"));
    for (home, wanted) in [
        ("/home/agent", vec!["/home/agent", "own"]),
        ("/run/app", vec!["own", "/run/app"]),
        ("/var/run/app", vec!["/var/run/app", "own", "/run/app"]),
        ("/running", vec!["/running", "own"]),
    ] {
        let root = crate::plan::container::ImageRoot { image: &image, home: Path::new(home), written: None };
        let steps = root.steps(&spec, &machine(), &mut Vec::new()).unwrap();
        let told = steps.iter().filter_map(|step| match step {
            Step::Home(path) => path.to_str(),
            step => own(step).then_some("own"),
        });
        assert_eq!(told.collect::<Vec<_>>(), wanted, "{home}");
    }
}
