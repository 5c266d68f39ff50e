//! One `lockgate run`, put together piece by piece as a person would type it. It adds only the backend, the workspace and the state
//! directory.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockgate_needs::{REQUIRE, program};

use crate::attempt::{Attempt, at_once, only_inside};
use crate::bench::{Backend, Bench, hand_over};
use crate::canary::Canary;
use crate::engine;
use crate::image;
use crate::inventory::within;
use crate::network::Network;
use crate::program::{Ended, Live};
use crate::seen::Seen;
use crate::world::World;

/// A run that has not started.
#[derive(Clone, Debug)]
pub struct Run {
    backend: Backend,
    workspace: PathBuf,
    state: PathBuf,
    flags: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    before: Vec<OsString>,
    /// Whether the wrapping command starts an engine for the run.
    brings_engine: bool,
    /// Whether the run makes a link, and so needs a network that is not the machine's.
    linked: bool,
}

impl Run {
    pub(crate) fn new(bench: &Bench, backend: Backend) -> Self {
        let workspace = bench.workspace();
        let flags = ["--backend", backend.name(), "--workspace"].map(OsString::from);
        let mut flags: Vec<OsString> = flags.into_iter().chain([workspace.clone().into()]).collect();
        let mut environment = Vec::new();
        if backend.has_own_image() || backend.is_engine() {
            flags.extend(["--image", image::NAME].map(OsString::from));
        }
        if backend.has_own_image() {
            let store = image::store().expect("`ready` was asked first");
            environment.push(("XDG_DATA_HOME".into(), store.into()));
        }
        let run = Self {
            backend,
            workspace,
            state: bench.state(),
            flags,
            environment,
            before: Vec::new(),
            brings_engine: false,
            linked: false,
        };
        if backend.has_link() { run.by_link() } else { run }
    }

    /// Wires the run by a link, in this program's network for links.
    #[must_use]
    pub fn by_link(self) -> Self {
        let mut run = self.flags(["--wiring", "veth"]);
        run.linked = true;
        run
    }

    /// Removes the image that the bench names, so that the name comes from elsewhere. Returns the image's name.
    #[must_use]
    pub fn without_image(mut self) -> (Self, &'static str) {
        if let Some(at) = self.flags.iter().position(|flag| flag == "--image") {
            self.flags.drain(at..at + 2);
        }
        (self, image::NAME)
    }

    /// Removes the backend that the bench names, so that the name comes from elsewhere. Returns the backend's name.
    #[must_use]
    pub fn without_backend(mut self) -> (Self, &'static str) {
        if let Some(at) = self.flags.iter().position(|flag| flag == "--backend") {
            self.flags.drain(at..at + 2);
        }
        let name = self.backend.name();
        (self, name)
    }

    /// Adds flags of `lockgate run`.
    #[must_use]
    pub fn flags<T: AsRef<std::ffi::OsStr>>(mut self, flags: impl IntoIterator<Item = T>) -> Self {
        self.flags.extend(flags.into_iter().map(|flag| flag.as_ref().to_owned()));
        self
    }

    /// Uses another workspace than the bench's.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Self {
        let own = self.workspace.as_os_str().to_owned();
        for flag in self.flags.iter_mut().filter(|flag| **flag == own) {
            *flag = folder.into();
        }
        self
    }

    /// Allows a host, `HOST[:PORT]`.
    #[must_use]
    pub fn allow(self, host: &str) -> Self {
        self.flags(["--allow", host])
    }

    /// Sets a variable of the *caller's* environment.
    #[must_use]
    pub fn caller(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Gives the run the images of the tests, for its companions.
    ///
    /// # Panics
    /// When the images are missing; `ready` tells beforehand.
    #[must_use]
    pub fn with_images(self) -> Self {
        let store = image::store().expect("`ready` was asked for `Needs::Image` first");
        self.caller("XDG_DATA_HOME", store.to_str().expect("a path that is text"))
    }

    /// Wraps the whole command in another one: the world, a terminal, another user.
    #[must_use]
    pub fn behind<T: Into<OsString>>(mut self, wrapper: impl IntoIterator<Item = T>) -> Self {
        self.before = wrapper.into_iter().map(Into::into).chain(self.before).collect();
        self
    }

    /// Runs it in the small internet, with an engine there if it needs one.
    #[must_use]
    pub fn within(self, world: &World) -> Self {
        let mut wrapper = world.wrapper();
        let mut run = self;
        run.linked = false; // it is made in the small internet
        if run.backend.is_engine() {
            wrapper.extend(engine::wrapper().expect("`ready` was asked first"));
            run.brings_engine = true;
        }
        run.behind(wrapper)
    }

    /// Starts an engine of the other kind beside the one that makes the run, at `OTHER_HOST`.
    ///
    /// # Panics
    /// When the engine is not built, or its image is missing; `ready` tells beforehand.
    #[must_use]
    pub fn beside_other_engine(self) -> Self {
        self.behind(engine::wrapper_of_other().expect("`ready` was asked first"))
    }

    /// Runs it in this program's network for links, with an engine there if it needs one.
    ///
    /// # Panics
    /// When no engine can be started; `ready` tells beforehand.
    #[must_use]
    pub fn in_network(self) -> Self {
        let mut wrapper = Network::shared().enter();
        let mut run = self;
        if run.backend.is_engine() {
            wrapper.extend(engine::wrapper().expect("`ready` was asked first"));
            run.brings_engine = true;
        }
        run.behind(wrapper)
    }

    /// Returns the finished command line.
    ///
    /// # Panics
    /// When `lockgate` is not built; `ready` tells beforehand.
    #[must_use]
    pub fn words<T: AsRef<std::ffi::OsStr>>(&self, command: impl IntoIterator<Item = T>) -> Vec<OsString> {
        let mut words = if self.linked { Network::shared().enter() } else { Vec::new() };
        words.extend(self.before.iter().cloned());
        words.push(program("lockgate").expect("`ready` was asked first").into());
        words.push("run".into());
        words.extend(self.flags.iter().cloned());
        words.push("--".into());
        words.extend(command.into_iter().map(|word| word.as_ref().to_owned()));
        words
    }

    /// Starts a command inside.
    #[must_use]
    pub fn start<T: AsRef<std::ffi::OsStr>>(&self, command: impl IntoIterator<Item = T>) -> Live {
        self.start_as(self.words(command))
    }

    fn start_as(&self, words: Vec<OsString>) -> Live {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&self.workspace).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", &self.state).env_remove(REQUIRE);
        if self.backend.is_engine() {
            hand_over(&self.workspace);
            if !self.brings_engine {
                command.env("DOCKER_HOST", engine::shared());
            }
        }
        command.envs(self.environment.iter().cloned());
        Live::start(&mut command)
    }

    /// Runs a command inside to its end.
    #[must_use]
    pub fn command<T: AsRef<std::ffi::OsStr>>(&self, command: impl IntoIterator<Item = T>) -> Ended {
        self.start(command).wait()
    }

    /// Runs a line of shell inside to its end.
    #[must_use]
    pub fn shell(&self, line: &str) -> Ended {
        self.command(["/bin/sh", "-c", line])
    }

    /// Starts a line of shell inside, waits until it calls `begun`, and returns it with the run's id.
    ///
    /// # Panics
    /// When it does not begin, or does not know its id.
    #[must_use]
    pub fn begin(&self, line: &str) -> (Live, String) {
        // Several runs may begin at once in one workspace.
        let name = Canary::draw();
        let file = self.workspace.join(name.text());
        let begun = format!("begun() {{ echo $LOCKGATE_RUN_ID > {0}.new; mv {0}.new {0}; }}\n", name.text());
        let live = self.start(["/bin/sh", "-c", &(begun + line)]);
        assert!(within(Backend::patience(15), || file.exists()), "the run did not begin: {}", live.wait());
        let id = fs::read_to_string(&file).expect("the run's id").trim().to_owned();
        assert!(!id.is_empty(), "LOCKGATE_RUN_ID is not set inside");
        fs::remove_file(file).expect("a file of the workspace");
        (live, id)
    }

    /// Starts a program inside that stays for a minute, with `mark` in its command line, and returns it with the run's id.
    ///
    /// # Panics
    /// As [`Run::begin`].
    #[must_use]
    pub fn hold(&self, mark: &Canary) -> (Live, String) {
        self.begin(&format!("begun; exec '{}' hold 60 {}", self.probe_path().display(), mark.text()))
    }

    /// Runs a line of shell on the caller's side to its end, with the run as `"$@"`. The run's command is a line of shell as well.
    #[must_use]
    pub fn around(&self, line: &str, command: &str) -> Ended {
        let shell = ["sh", "-c", line, "sh"].map(OsString::from);
        self.start_as(shell.into_iter().chain(self.words(["/bin/sh", "-c", command])).collect()).wait()
    }

    /// Makes one attempt inside.
    #[must_use]
    pub fn probe(&self, arguments: &[&str]) -> Seen {
        let probe = self.probe_path().into_os_string();
        Seen::only(&self.command(std::iter::once(probe).chain(arguments.iter().map(OsString::from))))
    }

    /// Requests a plain HTTP URL from the run's explicit proxy.
    #[must_use]
    pub fn by_proxy(&self, url: &str) -> Seen {
        self.attempts(&[Attempt::Proxy(url)]).remove(0)
    }

    /// Requests a tunnel to `HOST:PORT` from the run's explicit proxy.
    #[must_use]
    pub fn by_tunnel(&self, target: &str) -> Seen {
        self.attempts(&[Attempt::Tunnel(target)]).remove(0)
    }

    /// Makes several attempts by the probe in one sandbox, one after another.
    ///
    /// # Panics
    /// When they do not print one report each.
    #[must_use]
    pub fn probes(&self, attempts: &[&[&str]]) -> Vec<Seen> {
        self.attempts(&Attempt::all(attempts, &[], &[]))
    }

    /// Makes several attempts in one sandbox, one after another.
    ///
    /// # Panics
    /// When they do not print one report each.
    #[must_use]
    pub fn attempts(&self, attempts: &[Attempt]) -> Vec<Seen> {
        self.reports(attempts.len(), &self.lines(attempts).join("\n"))
    }

    /// Makes several attempts in one sandbox at the same time: attempts without an answer then take as long as one.
    ///
    /// # Panics
    /// When they do not print one report each.
    #[must_use]
    pub fn at_once(&self, attempts: &[Attempt]) -> Vec<Seen> {
        self.reports(attempts.len(), &at_once(&self.lines(attempts)))
    }

    /// Checks that each of several attempts by the probe, one after another in one sandbox, fails.
    ///
    /// # Panics
    /// When an attempt succeeds; the message names it.
    pub fn nothing_works(&self, attempts: &[&[&str]]) {
        let attempts = Attempt::all(attempts, &[], &[]);
        self.refuses(&attempts, &self.lines(&attempts).join("\n"));
    }

    /// Checks that each of several attempts of any kind, at the same time in one sandbox, fails. No attempt may spoil another.
    ///
    /// # Panics
    /// When an attempt succeeds; the message names it.
    pub fn nothing_works_at_once(&self, attempts: &[Attempt]) {
        self.refuses(attempts, &at_once(&self.lines(attempts)));
    }

    /// Runs a harmful line of shell in a sandbox, and refuses to run it outside one.
    #[must_use]
    pub fn harm(&self, line: &str) -> Ended {
        self.shell(&format!("{}{line}", only_inside()))
    }

    /// Checks that each of several attempts in one sandbox succeeds.
    ///
    /// # Panics
    /// When an attempt fails; the message names it.
    pub fn everything_works(&self, attempts: &[&[&str]]) {
        for (attempt, seen) in attempts.iter().zip(self.probes(attempts)) {
            assert!(seen.done(), "{attempt:?} did not work inside: {seen}");
        }
    }

    fn refuses(&self, attempts: &[Attempt], line: &str) {
        let reports = self.reports(attempts.len(), &format!("{}{line}", only_inside()));
        for (attempt, seen) in attempts.iter().zip(reports) {
            assert!(!seen.done(), "{attempt:?} worked inside: {seen}");
        }
    }

    /// Runs a line of shell that prints `many` reports.
    fn reports(&self, many: usize, line: &str) -> Vec<Seen> {
        let ended = self.shell(line);
        let all = Seen::all(&ended);
        assert!(all.len() == many, "expected {many} reports, got {}: {ended}", all.len());
        all
    }

    fn lines(&self, attempts: &[Attempt]) -> Vec<String> {
        let probe = self.probe_path();
        attempts.iter().map(|attempt| attempt.line(&probe)).collect()
    }

    fn probe_path(&self) -> PathBuf {
        self.workspace.join("probe")
    }
}
