//! Answers the credential questions of a run's sidecar where there is no platform server: this process does, over a socket that the
//! sidecar inherited. The protocol is the server's: HTTP, `/internal/credentials/{providerId}`, with a run token as bearer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use credential::{Secret, Vault};
use policy::{OrganisationName, Policy, ProviderId, RunId};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use sandbox::Caller;
use zeroize::Zeroizing;

use crate::error::Error;
use crate::own_secrets::{OWN_SECRETS, PROXY_URL, SYSTEM_PROXIES};
use crate::record::RunRecord;
use crate::stash::Stash;
use crate::state::StateDirectory;
use crate::vault::VaultLater;
use crate::{proxy_url, system_proxies};

/// The largest question.
const LARGEST: usize = 8 * 1024;

/// The sidecar's end of a platform that this process answers for.
#[derive(Debug)]
pub(crate) struct PlatformLink {
    pub(crate) socket: OwnedFd,
    /// Proves that a question is the sidecar's.
    pub(crate) token: Secret,
}

/// The side that answers.
pub(crate) struct Platform {
    socket: OwnedFd,
    token: Secret,
    providers: Vec<ProviderId>,
    /// The sources of credentials; `None` where no credential is declared. The vault is opened at the first question.
    sources: Option<Sources>,
    vault: Option<Vault>,
    /// `None` where no runs are recorded.
    history: Option<History>,
    /// The runs that were read last, and when: reading them delays credentials.
    runs: Option<(Instant, Vec<RunRecord>)>,
    read: Vec<u8>,
    /// Why credentials could not be given, and whether the person has been told.
    faults: Vec<(String, bool)>,
}

/// How long a list of runs is answered from memory.
const FRESH: Duration = Duration::from_secs(1);

/// The runs that a sidecar may ask for: the others of the same workspace.
pub(crate) struct History {
    pub(crate) directory: StateDirectory,
    pub(crate) workspace: PathBuf,
    /// The run that asks.
    pub(crate) run: RunId,
}

impl History {
    /// Reads the latest runs, at most `MOST_TOLD`.
    fn read(&self) -> Vec<RunRecord> {
        let records = RunRecord::list(&self.directory).unwrap_or_default();
        let is_told = |it: &RunRecord| it.workspace == self.workspace && it.id != self.run.as_str();
        records.into_iter().filter(is_told).take(MOST_TOLD).collect()
    }
}

/// How many runs are answered at most, and how many where the question names no such number.
const MOST_TOLD: usize = 50;
const TOLD: usize = 10;

/// Encodes the first runs, as many as `limit` in the query says, without their commands.
fn told(runs: &[RunRecord], query: &str) -> Vec<u8> {
    let limit = query.split('&').find_map(|pair| pair.strip_prefix("limit=")?.parse::<usize>().ok());
    let limit = limit.filter(|limit| (1..=MOST_TOLD).contains(limit)).unwrap_or(TOLD);
    let told = runs.iter().take(limit).map(|record| {
        serde_json::json!({
            "id": record.id, "status": record.state, "startedAt": record.started, "endedAt": record.ended,
            "exitCode": record.outcome.as_ref().map(|outcome| outcome.exit_code),
        })
    });
    let data: Vec<serde_json::Value> = told.collect();
    serde_json::to_vec(&serde_json::json!({"object": "list", "data": data})).unwrap_or_default()
}

/// The sources of credentials.
#[derive(Debug)]
pub(crate) struct Sources {
    /// `None` where another platform answers for the credentials of a vault.
    pub(crate) vault: Option<VaultLater>,
    /// `PROXY_URL`, with its user and password.
    pub(crate) proxy: Option<Stash>,
    /// `SYSTEM_PROXIES`, with their users and passwords.
    pub(crate) proxies: Option<Stash>,
}

impl Sources {
    /// Removes the secrets from this process's memory, where nobody will ask for them.
    pub(crate) fn forget(caller: &mut Caller) -> Result<(), Error> {
        OWN_SECRETS.iter().try_for_each(|name| Stash::forget(caller, name))
    }

    /// Moves the secrets out of this process's memory. The platform's own keys are no source: they are answered for out of the vaults
    /// that they were brought into.
    pub(crate) fn prepare(
        caller: &mut Caller,
        directory: &StateDirectory,
        organisation: Option<&OrganisationName>,
    ) -> Result<Self, Error> {
        let vault = VaultLater::prepare(caller, directory, organisation)?;
        Ok(Self { vault: Some(vault), ..Self::without_vault(caller)? })
    }

    /// Moves the secrets of the proxies out of this process's memory, where another platform answers for the credentials of a vault.
    pub(crate) fn without_vault(caller: &mut Caller) -> Result<Self, Error> {
        let proxy = Stash::take(caller, PROXY_URL)?;
        let proxies = Stash::take(caller, SYSTEM_PROXIES)?;
        Self::forget(caller)?;
        Ok(Self { vault: None, proxy, proxies })
    }
}

/// Says why a credential cannot be used, and what helps.
fn unusable(error: &Error) -> String {
    let remedy = error.remedy().map(|remedy| format!("; {remedy}"));
    format!("{}{}", error.sentence(), remedy.unwrap_or_default())
}

/// The answer to a question.
enum Answer {
    Status(u16),
    Fields(Zeroizing<Vec<u8>>),
}

impl Platform {
    /// Makes both ends: the answering side, and the sidecar's link.
    pub(crate) fn pair(
        sources: Option<Sources>,
        policy: &Policy,
        history: Option<History>,
    ) -> Result<(Self, PlatformLink), Error> {
        let plumbing =
            |errno: rustix::io::Errno| Error::Plumbing { what: "make a socket", source: errno.into() };
        let flags = SocketFlags::CLOEXEC;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(plumbing)?;
        let mut random = [0; 32];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(plumbing)?;
        let token = Secret::new(random.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect());
        let mut providers: Vec<ProviderId> =
            policy.providers().map(|provider| provider.id().clone()).collect();
        providers.extend(policy.proxies().declared().filter_map(|proxy| proxy.credential.clone()));
        let platform = Self {
            socket,
            token: token.clone(),
            providers,
            sources,
            vault: None,
            history,
            runs: None,
            read: Vec::new(),
            faults: Vec::new(),
        };
        Ok((platform, PlatformLink { socket: theirs, token }))
    }

    /// Returns the socket that is readable when a question comes.
    pub(crate) fn questions(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads what has arrived and answers every complete question. Returns whether the sidecar may still ask.
    pub(crate) fn answer(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((length, _)) => self.read.extend(&buffer[..length]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
            Err(_) => return false,
        }
        while let Some(end) = self.read.windows(4).position(|w| w == b"\r\n\r\n") {
            let question: Vec<u8> = self.read.drain(..end + 4).collect();
            let answer = self.judge(&question);
            if self.send(&answer).is_err() {
                return false;
            }
        }
        self.read.len() < LARGEST
    }

    fn judge(&mut self, question: &[u8]) -> Answer {
        let mut fields = [httparse::EMPTY_HEADER; 16];
        let mut request = httparse::Request::new(&mut fields);
        if !matches!(request.parse(question), Ok(httparse::Status::Complete(_))) {
            return Answer::Status(400);
        }
        let bearer = request.headers.iter().find(|h| h.name.eq_ignore_ascii_case("authorization"));
        let token = bearer.and_then(|h| h.value.strip_prefix(b"Bearer ")).unwrap_or_default();
        if !self.token.matches(token) {
            return Answer::Status(401);
        }
        let rest = request.path.and_then(|path| path.strip_prefix("/internal/credentials/"));
        let history = request.path.and_then(|path| path.strip_prefix("/internal/run-history"));
        match (request.method, rest) {
            (Some("GET"), None) if history.is_some() => {
                self.tell_history(history.unwrap_or_default().trim_start_matches('?'))
            }
            (Some("GET"), Some(id)) => self.credential(id),
            (Some("POST"), Some(rest)) if rest.ends_with("/refused") => Answer::Status(204),
            _ => Answer::Status(404),
        }
    }

    fn tell_history(&mut self, query: &str) -> Answer {
        if self.runs.as_ref().is_none_or(|(at, _)| at.elapsed() >= FRESH) {
            let runs = self.history.as_ref().map(History::read).unwrap_or_default();
            self.runs = Some((Instant::now(), runs));
        }
        let runs = self.runs.as_ref().map(|(_, runs)| runs.as_slice()).unwrap_or_default();
        Answer::Fields(Zeroizing::new(told(runs, query)))
    }

    /// Answers with a credential, if the run declared its provider (C15).
    fn credential(&mut self, id: &str) -> Answer {
        let is_declared = self.providers.iter().any(|declared| declared.as_str() == id);
        let answers_for =
            |sources: &&Sources| is_declared && (sources.vault.is_some() || ProviderId::is_own(id));
        let Some(Sources { proxy, proxies, .. }) = self.sources.as_ref().filter(answers_for) else {
            return Answer::Status(403);
        };
        let found = if ProviderId::is_own(id) {
            let proxys =
                proxy.as_ref().filter(|_| id == proxy_url::CREDENTIAL).and_then(proxy_url::credential);
            Ok(proxys.or_else(|| system_proxies::credential(proxies.as_ref()?, id)))
        } else {
            self.vault().and_then(|vault| match vault {
                Some(vault) => Ok(vault.get(id)?),
                None => Ok(None),
            })
        };
        match found {
            Ok(Some(credential)) => {
                // An id contains nothing that JSON has to escape.
                let mut body = Zeroizing::new(format!("{{\"provider\":\"{id}\",\"fields\":{{").into_bytes());
                for (index, name) in credential.names().enumerate() {
                    let value = credential.field(name.as_str()).map_or(&[][..], Secret::expose);
                    let Ok(text) = std::str::from_utf8(value) else {
                        return self.fault(id, &format!("its field `{name}` is no text"));
                    };
                    let separator = if index == 0 { "" } else { "," };
                    body.extend(format!("{separator}\"{name}\":").bytes());
                    let quoted = Zeroizing::new(serde_json::to_string(text).unwrap_or_default());
                    body.extend(quoted.bytes());
                }
                body.extend(b"}}");
                Answer::Fields(body)
            }
            Ok(None) => Answer::Status(404),
            Err(error) => self.fault(id, &unusable(&error)),
        }
    }

    /// Notes a fault for the person; the sidecar learns only that there is no credential.
    fn fault(&mut self, id: &str, why: &str) -> Answer {
        let told = format!("the credential of `{id}` cannot be used: {why}");
        if !self.faults.iter().any(|(known, _)| *known == told) {
            self.faults.push((told, false));
        }
        Answer::Status(500)
    }

    /// Returns a fault that the person has not been told of.
    pub(crate) fn next_fault(&mut self) -> Option<&str> {
        let (fault, is_told) = self.faults.iter_mut().find(|(_, is_told)| !is_told)?;
        *is_told = true;
        Some(fault)
    }

    fn vault(&mut self) -> Result<Option<&Vault>, Error> {
        if self.vault.is_none() {
            let later = self.sources.as_ref().and_then(|sources| sources.vault.as_ref());
            self.vault = later.map(VaultLater::open).transpose()?;
        }
        Ok(self.vault.as_ref())
    }

    fn send(&self, answer: &Answer) -> io::Result<()> {
        let (status, body) = match answer {
            Answer::Status(status) => (*status, &[][..]),
            Answer::Fields(body) => (200, body.as_slice()),
        };
        let mut out = Zeroizing::new(
            format!(
                "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            )
            .into_bytes(),
        );
        out.extend(body);
        // The socket is never waited for: a sidecar that does not read its answers loses its platform, and the run its credentials.
        let mut rest = out.as_slice();
        while !rest.is_empty() {
            let sent = rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
            rest = &rest[sent..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Platform, PlatformLink) {
        let policy = policy::Layers::default().compile().unwrap().policy;
        let (mut platform, link) = Platform::pair(None, &policy, None).unwrap();
        platform.sources = Some(Sources { vault: None, proxy: None, proxies: None });
        platform.providers = vec![proxy_url::CREDENTIAL.parse().unwrap()];
        (platform, link)
    }

    /// S1.12: they are gone before a run takes the variables that are named for its command.
    #[test]
    fn this_programs_own_secrets_are_forgotten() {
        let own = [
            "CONNECTION_ENCRYPTION_KEY",
            "PROXY_URL",
            "SYSTEM_PROVIDER_KEYS",
            "SYSTEM_PROXIES",
            "RUN_TOKEN",
            "CONFIG_SECRET",
        ];
        let mut caller = Caller::new(1000, 1000, "/");
        caller.environment =
            own.iter().chain(&["THEIRS"]).map(|name| (name.into(), "a value".into())).collect();
        Sources::forget(&mut caller).unwrap();
        let left: Vec<_> = caller.environment.iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(left, ["THEIRS"]);
    }

    /// C15: the token of another run, a part of the right one, and none are refused, and so is what no policy declares.
    #[test]
    fn only_the_run_s_own_token_gets_an_answer_and_only_for_what_is_declared() {
        let (mut platform, link) = pair();
        let (_other, others_link) = pair();
        let token = link.token.expose();
        let bearer = |token: &[u8]| [b"Authorization: Bearer ", token, b"\r\n"].concat();
        let (declared, undeclared) = (proxy_url::CREDENTIAL, "@lockgate/system-proxy-1");
        for (head, id, status) in [
            (Vec::new(), declared, 401),
            (bearer(b""), declared, 401),
            (bearer(&token[1..]), declared, 401),
            (bearer(others_link.token.expose()), declared, 401),
            ([b"Authorization: ", token, b"\r\n"].concat(), declared, 401),
            (bearer(token), undeclared, 403),
            (bearer(token), "anthropic", 403),
            (bearer(token), declared, 404), // there is none
        ] {
            let question =
                [format!("GET /internal/credentials/{id} HTTP/1.1\r\n").as_bytes(), &head, b"\r\n"].concat();
            rustix::net::send(&link.socket, &question, SendFlags::NOSIGNAL).unwrap();
            assert!(platform.answer());
            let mut answer = [0; 512];
            let (length, _) = rustix::net::recv(&link.socket, &mut answer[..], RecvFlags::empty()).unwrap();
            let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{id}: {answer}");
        }
    }

    #[test]
    fn the_run_that_asks_is_not_among_those_that_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::for_test(folder.path());
        let id = |n: u8| RunId::from_random([n; 12]);
        let begun = |n: u8| {
            let started = format!("2026-01-01T00:00:{n:02}.000Z");
            RunRecord { started, ..RunRecord::for_test(id(n).as_str()) }
        };
        for n in 0..13 {
            begun(n).write(&directory, &id(n)).unwrap();
        }
        let elsewhere = RunRecord { workspace: "/srv/other".into(), ..begun(13) };
        elsewhere.write(&directory, &id(13)).unwrap();
        let asks =
            |n: u8| History { directory: directory.clone(), workspace: "/srv/project".into(), run: id(n) };
        let told = |n: u8, query: &str| {
            let list: serde_json::Value = serde_json::from_slice(&told(&asks(n).read(), query)).unwrap();
            let ids =
                list["data"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned());
            ids.collect::<Vec<_>>()
        };
        assert_eq!(told(12, "limit=1"), [id(11).as_str()]);
        assert_eq!(told(11, "limit=1"), [id(12).as_str()]);
        assert_eq!(told(12, "limit=50").len(), 12);
        // What is no number of runs that may be asked for does not count.
        for query in ["", "limit=0", "limit=51", "limit=-1", "limit=all", "other=3"] {
            assert_eq!(told(12, query).len(), TOLD, "{query}");
        }
    }

    #[test]
    fn a_fault_says_its_cause_once() {
        let error = Error::KeyFile { path: "/keys/vault.key".into(), source: io::Error::other("no key") };
        let told = unusable(&error);
        assert!(told.starts_with("failed to read the key in /keys/vault.key: no key; put that file back"));
        // What cannot be decrypted is not set anew before it is removed, where nothing else can be either.
        let source = credential::EnvelopeError::UnknownKey { id: "630dcd29".into() };
        let error = credential::VaultError::Decrypt {
            path: "/vault/a.json".into(),
            id: "a".into(),
            owner: Some("acme".into()),
            source,
        };
        assert!(unusable(&error.into()).contains("`lockgate creds rm a --org acme`, and set it again"));
    }
}
