//! A bare repository with one commit, served by git's own CGI program at `https://git.example.org/repo.git` and by the SSH server. The
//! caller's git configuration is never read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::error::Error;
use crate::response::Response;
use crate::tools;
use crate::wire::{Body, Head};

/// The time limit of a CGI run.
const PATIENCE: Duration = Duration::from_secs(60);

/// The repository and the program that serves it.
#[derive(Clone)]
pub(crate) struct Repository {
    pub(crate) git: PathBuf,
    pub(crate) path: PathBuf,
    root: PathBuf,
}

impl Repository {
    /// Makes the repository under `directory`; nothing if git or its CGI program is missing.
    pub(crate) fn create(directory: &Path) -> Result<Option<Self>, Error> {
        let Some(git) = tools::find("git") else { return Ok(None) };
        let folder = tools::output("git", &git, ["--exec-path"])?;
        if !Path::new(&folder).join("git-http-backend").is_file() {
            return Ok(None);
        }
        let root = directory.join("git");
        fs::create_dir(&root).map_err(Error::file(&root))?;
        let repository = Self { git, path: root.join("repo.git"), root };
        repository.fill()?;
        Ok(Some(repository))
    }

    fn fill(&self) -> Result<(), Error> {
        let path = self.path.display().to_string();
        self.run(&["init", "--quiet", "--bare", "--initial-branch=main", &path], "")?;
        self.run(&["-C", &path, "config", "http.receivepack", "true"], "")?;
        let file = self.run(&["-C", &path, "hash-object", "-w", "--stdin"], "hello from the world\n")?;
        let tree = self.run(&["-C", &path, "mktree"], &format!("100644 blob {file}\tREADME\n"))?;
        let commit = self.run(&["-C", &path, "commit-tree", "-m", "The first commit", &tree], "")?;
        self.run(&["-C", &path, "update-ref", "refs/heads/main", &commit], "")?;
        Ok(())
    }

    fn run(&self, arguments: &[&str], input: &str) -> Result<String, Error> {
        let failed = |message: String| Error::Tool { program: "git", message };
        let mut child = self
            .isolated(Command::new(&self.git))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        if let Some(mut stdin) = child.stdin.take() {
            io::Write::write_all(&mut stdin, input.as_bytes()).map_err(|error| failed(error.to_string()))?;
        }
        let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn isolated(&self, mut command: Command) -> Command {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.root)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .envs(["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"].map(|name| (name, "World")))
            .envs(["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"].map(|name| (name, "world@example.org")))
            .envs(["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"].map(|name| (name, "2026-01-01T00:00:00Z")));
        command
    }

    /// Answers one request of the smart protocol, or of the old one, by running the CGI program (RFC 3875).
    pub(crate) async fn answer(&self, path: &str, query: &str, head: &Head, body: &Body) -> Response {
        match timeout(PATIENCE, self.run_cgi(path, query, head, body)).await {
            Ok(Ok(output)) => response_of(&output),
            Ok(Err(error)) => Response::of(500, "text/plain", error.to_string()),
            Err(_) => Response::of(500, "text/plain", "git took too long\n"),
        }
    }

    async fn run_cgi(&self, path: &str, query: &str, head: &Head, body: &Body) -> io::Result<Vec<u8>> {
        let mut command = self.isolated(Command::new(&self.git));
        command
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REQUEST_METHOD", &head.method)
            .env("PATH_INFO", path)
            .env("QUERY_STRING", query)
            .env("CONTENT_TYPE", head.header("content-type").unwrap_or_default())
            .env("CONTENT_LENGTH", body.kept.len().to_string())
            .env("REMOTE_USER", "world")
            .env("REMOTE_ADDR", "192.168.77.2")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        for (variable, header) in
            [("HTTP_CONTENT_ENCODING", "content-encoding"), ("GIT_PROTOCOL", "git-protocol")]
        {
            if let Some(value) = head.header(header) {
                command.env(variable, value);
            }
        }
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let stdin = child.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A program that has read enough closes its input, and its output is still the answer.
                let _ = stdin.write_all(&body.kept).await;
            }
        };
        let ((), output) = tokio::join!(feed, child.wait_with_output());
        Ok(output?.stdout)
    }
}

/// Converts the CGI header: `Status` becomes the status, the rest is passed on.
fn response_of(output: &[u8]) -> Response {
    let Some(end) = output.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Response::of(500, "text/plain", "git gave no header\n");
    };
    let text = String::from_utf8_lossy(&output[..end]);
    let mut response = Response::bare(200, &output[end + 4..]);
    for (name, value) in text.lines().filter_map(|line| line.split_once(": ")) {
        if name.eq_ignore_ascii_case("status") {
            response.status = value.split(' ').next().and_then(|code| code.parse().ok()).unwrap_or(500);
        } else {
            response = response.with(&name.to_ascii_lowercase(), value);
        }
    }
    response
}
