//! `lockgate demo`: a scripted agent in a real sandbox, with an upstream on this machine. It needs no configuration and sends
//! nothing to the network.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use policy::{AllowConfig, MountConfig, RunConfig, WorkspaceConfig, WorkspaceTable};
use runtime::{Report, RunRequest, Settings, SettingsRequest, StateDirectory};
use sandbox::Caller;

use crate::exit::{Done, Usage};
use crate::output;

/// The upstream's name, in a domain reserved for examples (RFC 2606).
pub(super) const HOST: &str = "api.demo.example";
/// Where the agent's program is shown inside.
const INSIDE: &str = "/run/lockgate-demo";
/// The variables that tell the agent what to try.
pub(super) const PORT: &str = "LOCKGATE_DEMO_PORT";
pub(super) const CANARY: &str = "LOCKGATE_DEMO_CANARY";
pub(super) const NEIGHBOUR: &str = "LOCKGATE_DEMO_NEIGHBOUR";
/// How long the agent's left-over process would sleep: a number that identifies it.
pub(super) const LEFTOVER: &str = "1047.1101";

pub(crate) fn demo() -> Done {
    let caller = super::caller()?;
    let state = StateDirectory::of(&caller)?;
    let folder = Folder::make(&caller)?;
    let canary = folder.0.join("outside.txt");
    std::fs::write(&canary, "a file of yours, outside the workspace\n")?;
    let workspace = folder.0.join("workspace");
    std::fs::create_dir(&workspace)?;
    std::fs::write(workspace.join("lockgate.toml"), "# this run's own policy\n")?;
    let upstream = Upstream::start()?;
    let spec = Settings::load(&request(&workspace, &canary, &upstream)?, &caller, Some(&state))?.spec;
    let command = vec![INSIDE.into(), "demo-agent".into()];
    output::answer(
        "A scripted agent runs in a sandbox and tries things. Its policy allows one prefix of one host.\n",
    )?;
    let finished = runtime::run(
        RunRequest { spec, command, caller, state, policy: None, ahead: None },
        &mut |report| {
            if let Report::Note(text) = report {
                output::tell(&format!("note: {text}"));
            }
        },
    )?;
    drop(upstream);
    let left = report_leftovers()?;
    let run = &finished.run;
    output::answer(&format!("\nThe sidecar recorded each request: lockgate audit show {run}"))?;
    output::answer(&format!("and the record proves itself:      lockgate audit verify {run}"))?;
    output::answer("Now run something of your own:     lockgate run -- CMD")?;
    match u8::try_from(finished.outcome.exit_code).unwrap_or(1) {
        0 => Ok(u8::from(left)),
        code => Ok(code),
    }
}

/// Returns the settings of the demonstration, in the form of flags.
fn request(workspace: &Path, canary: &Path, upstream: &Upstream) -> Result<SettingsRequest, anyhow::Error> {
    let mut flags = RunConfig {
        backend: Some("linux".into()),
        workspace: Some(WorkspaceConfig::Table(WorkspaceTable {
            path: Some(workspace.display().to_string()),
            mode: Some("rw".into()),
            open: Vec::new(),
        })),
        ..RunConfig::default()
    };
    flags.egress.allow.push(AllowConfig {
        url: Some(format!("http://{HOST}:{}/v1/*", upstream.port)),
        addresses: Some(vec!["127.0.0.1".into()]),
        ..AllowConfig::default()
    });
    flags.mount.push(MountConfig {
        source: own_program()?.display().to_string(),
        target: Some(INSIDE.into()),
        mode: None,
    });
    let tell = [
        (PORT, upstream.port.to_string()),
        (CANARY, canary.display().to_string()),
        (NEIGHBOUR, upstream.child.id().to_string()),
    ];
    flags.env.set = tell.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(SettingsRequest { no_project: true, flags, ..SettingsRequest::default() })
}

/// Returns the file of this program, which the demonstration starts again.
fn own_program() -> Result<PathBuf, anyhow::Error> {
    std::env::current_exe().ok().filter(|path| path.exists()).ok_or_else(|| {
        Usage::lacking(
            "the file of this program was replaced or removed since it was started",
            "start it again",
        )
    })
}

/// A directory that is removed at the end of the demonstration.
struct Folder(PathBuf);

impl Folder {
    fn make(caller: &Caller) -> Result<Self, anyhow::Error> {
        // One that is empty names no folder.
        let named = std::env::var_os("TMPDIR").filter(|named| !named.is_empty());
        let base = named.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        let failed = |error: std::io::Error| {
            Usage::error(
                format!("failed to make a folder in {}: {error}", base.display()),
                "name another with TMPDIR",
            )
        };
        let made = Self::make_in(&base).map_err(failed)?;
        // The temporary directory may be in memory, or in a container's own layers, where root's runs cannot write.
        let Some(unmappable) = made.unmappable(caller) else { return Ok(made) };
        let at_home = caller.home.as_deref().and_then(|home| Self::make_in(home).ok());
        at_home.filter(|made| made.unmappable(caller).is_none()).ok_or_else(|| {
            Usage::lacking(
                format!("failed to {unmappable}"),
                "name a folder on ext4, xfs or btrfs with TMPDIR, in a container a volume; or start as another user than root",
            )
        })
    }

    fn make_in(base: &Path) -> std::io::Result<Self> {
        let path = base.canonicalize()?.join(format!("lockgate-demo-{}", std::process::id()));
        std::fs::create_dir(&path).map(|()| Self(path))
    }

    /// Returns why a run could not write in it, where its file system is why.
    fn unmappable(&self, caller: &Caller) -> Option<sandbox::Error> {
        let tried = sandbox::refuse_unmappable(&self.0, caller);
        tried.err().filter(|error| matches!(error, sandbox::Error::Unmappable { .. }))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The upstream's process, which is also the neighbour process that the agent must not see.
struct Upstream {
    child: Child,
    port: u16,
}

impl Upstream {
    fn start() -> Result<Self, anyhow::Error> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the upstream is this program, started outside any sandbox"
        )]
        let mut child = std::process::Command::new(own_program()?)
            .arg("demo-upstream")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut port = [0; 2];
        child
            .stdout
            .as_mut()
            .ok_or_else(|| anyhow::anyhow!("the upstream has no output"))?
            .read_exact(&mut port)?;
        Ok(Self { child, port: u16::from_be_bytes(port) })
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers requests on loopback until the parent is gone.
pub(crate) fn upstream() -> Done {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    std::io::stdout().write_all(&listener.local_addr()?.port().to_be_bytes())?;
    std::io::stdout().flush()?;
    std::thread::spawn(|| {
        // Standard input ends when the parent does.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    for stream in listener.incoming() {
        let mut stream = stream?;
        let mut head = [0; 4096];
        let _ = stream.read(&mut head)?;
        let body = "hello from the upstream\n";
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )?;
    }
    Ok(0)
}

/// Tells whether the agent's left-over process is still running, and returns it.
fn report_leftovers() -> Result<bool, anyhow::Error> {
    let command = format!("sleep\0{LEFTOVER}\0");
    let is_it =
        |path: PathBuf| std::fs::read(path.join("cmdline")).is_ok_and(|line| line == command.as_bytes());
    let found = std::fs::read_dir("/proc")?.flatten().any(|entry| is_it(entry.path()));
    let (mark, text) = if found { ('✗', "it is still running") } else { ('✓', "it ended with the run") };
    output::answer(&format!("  {mark} {:<38} {text}", "leave a process behind"))?;
    Ok(found)
}
