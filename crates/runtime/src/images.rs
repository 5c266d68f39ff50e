//! The images of this person: the store they are in, and what a run needs of one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use egress::{Files, Outside};
use image::{
    Bounds, Command, Connect, Connecting, Held, Listed, Login, Overrides, Ownership, PullProgress,
    PullRequest, Reference, Removed, Store,
};
use policy::{ProviderId, RunSpec};
use sandbox::{Caller, EngineImage, RootImage};
use zeroize::Zeroizing;

use crate::error::{Error, plumbing};
use crate::ids::ClaimedIds;
use crate::state::StateDirectory;
use crate::vault::Credentials;

/// What is to be pulled.
#[derive(Clone, Copy, Debug)]
pub struct PullAsked<'a> {
    /// The image.
    pub reference: &'a Reference,
    /// The credential that its registry wants to see.
    pub credential: Option<&'a ProviderId>,
    /// Whether the registry may be spoken to without TLS.
    pub plain_http: bool,
    /// How much a layer may hold.
    pub bounds: Bounds,
}

/// The images that are kept for a caller: `$XDG_DATA_HOME/lockgate`.
#[derive(Clone, Debug)]
pub struct Images {
    directory: PathBuf,
    ownership: Ownership,
}

impl Images {
    /// The images of a caller, by the XDG rules.
    ///
    /// # Errors
    /// When neither `XDG_DATA_HOME` nor `HOME` names a place.
    pub fn of(caller: &Caller) -> Result<Self, Error> {
        let named =
            caller.variable("XDG_DATA_HOME").filter(|p| Path::new(p).is_absolute()).map(PathBuf::from);
        let base = named.or_else(|| caller.home.as_ref().map(|home| home.join(".local/share")));
        let base = base.ok_or_else(|| Error::State {
            path: "$XDG_DATA_HOME/lockgate".into(),
            source: std::io::Error::other("neither XDG_DATA_HOME nor HOME is set"),
        })?;
        let ownership = if caller.superuser { Ownership::Keep } else { Ownership::Squash };
        Ok(Self { directory: base.join("lockgate"), ownership })
    }

    /// Imports what a file or directory holds.
    ///
    /// # Errors
    /// When it is no image, is malformed or too large, or cannot be kept.
    pub fn import(
        &self,
        source: &Path,
        name: Option<Reference>,
        command: Command,
        bounds: Bounds,
    ) -> Result<Vec<Listed>, Error> {
        let overrides = Overrides { name, command, bounds, ownership: self.ownership };
        Ok(image::import(&self.store()?, source, &overrides)?)
    }

    /// Pulls an image from its registry. A credential has the fields `username` and `password`.
    ///
    /// # Errors
    /// When the registry does not give it, or it cannot be kept.
    pub fn pull(
        &self,
        asked: &PullAsked<'_>,
        caller: &Caller,
        report: &mut dyn FnMut(PullProgress),
    ) -> Result<Listed, Error> {
        let login = asked.credential.map(|id| login(id, caller)).transpose()?;
        let outside = Outside::new(Files::open(caller.variable("SSL_CERT_FILE")));
        let request = PullRequest {
            reference: asked.reference,
            login,
            plain_http: asked.plain_http,
            bounds: asked.bounds,
            ownership: self.ownership,
        };
        Ok(image::pull(&self.store()?, &Way(outside), &request, report)?)
    }

    /// Every image under each of its names.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        Ok(self.store()?.list()?)
    }

    /// Takes one away.
    ///
    /// # Errors
    /// When there is none of that name, or a run uses it.
    pub fn remove(&self, name: &str) -> Result<Removed, Error> {
        Ok(self.store()?.remove(name)?)
    }

    /// Takes away what has no name, and what killed processes left.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn prune(&self) -> Result<Removed, Error> {
        Ok(self.store()?.prune()?)
    }

    /// An image for a run, which keeps it as long as it holds the answer.
    pub(crate) fn hold(&self, name: &str) -> Result<Held, Error> {
        Ok(self.store()?.hold(name)?)
    }

    /// Where they are: no run may be shown that.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn store(&self) -> Result<Store, Error> {
        Ok(Store::open(&self.directory.join("images"))?)
    }
}

/// What a run keeps of its image for as long as it lives.
#[derive(Debug)]
pub(crate) struct KeptImage {
    pub(crate) image: Held,
    pub(crate) ids: Option<ClaimedIds>,
}

/// Keeps the image that was asked for from being removed, and settles what is executed: its entry point gets the command, or
/// the image's own where none was given, which starts where the image says.
pub(crate) fn take(
    spec: &mut RunSpec,
    caller: &Caller,
    command: Vec<OsString>,
) -> Result<(Option<KeptImage>, Vec<OsString>), Error> {
    let Some(name) = &spec.image else { return Ok((None, command)) };
    let image = Images::of(caller)?.hold(name)?;
    let own = image.record.command.clone();
    let whole = whole_command(spec, command, (&own.entrypoint, &own.command, &own.directory))?;
    let ids = if caller.superuser && image.record.owners_kept {
        let claimed = ClaimedIds::claim(std::process::id());
        Some(claimed.map_err(plumbing("claim ids for the run"))?)
    } else {
        None
    };
    Ok((Some(KeptImage { image, ids }), whole))
}

/// The command that is run in an image of an engine's.
pub(crate) fn command_of(
    spec: &mut RunSpec,
    config: &EngineImage,
    command: Vec<OsString>,
) -> Result<Vec<OsString>, Error> {
    let directory = config.directory.as_deref().unwrap_or_default();
    whole_command(spec, command, (&config.entrypoint, &config.command, directory))
}

/// An image's own command, or the given one as an argument of what it says commands are arguments of.
fn whole_command(
    spec: &mut RunSpec,
    command: Vec<OsString>,
    (entrypoint, own, directory): (&[String], &[String], &str),
) -> Result<Vec<OsString>, Error> {
    let words = |list: &[String]| list.iter().map(OsString::from).collect::<Vec<_>>();
    let mut whole = words(entrypoint);
    if command.is_empty() {
        whole.extend(words(own));
        if !directory.is_empty() && spec.directory.is_none() {
            spec.directory = Some(directory.into());
        }
    } else {
        whole.extend(command);
    }
    if whole.is_empty() {
        let name = spec.image.as_deref().unwrap_or_default();
        return Err(sandbox::Error::Refused {
            what: format!("the image `{name}` has no command of its own, and none was given"),
            remedy: Some("lockgate run --image NAME -- CMD".into()),
        }
        .into());
    }
    Ok(whole)
}

/// What a sandbox needs of an engine's image.
pub(crate) fn root_at(config: &EngineImage) -> RootImage {
    RootImage { environment: config.environment.clone(), ..RootImage::default() }
}

/// What the sandbox is told of an image.
pub(crate) fn root_of(held: &Held) -> RootImage {
    let record = &held.record;
    RootImage {
        layers: held.layers.clone(),
        environment: record.command.environment.clone(),
        uid: record.account.uid,
        gid: record.account.gid,
        user: record.account.name.clone(),
        home: record.account.home.as_ref().map(PathBuf::from),
    }
}

/// The one way to the outside, as a registry's client wants it.
struct Way(Outside);

impl Connect for Way {
    fn connect<'a>(&'a self, host: &'a str, port: u16, secure: bool) -> Connecting<'a> {
        Box::pin(async move {
            Ok(if secure {
                Box::new(self.0.connect_securely(host, port).await?) as Box<dyn image::Stream>
            } else {
                Box::new(self.0.connect(host, port).await?)
            })
        })
    }
}

fn login(id: &ProviderId, caller: &Caller) -> Result<Login, Error> {
    let credential = Credentials::open(caller, &StateDirectory::of(caller)?)?.take(id)?;
    let field = |name: &str| {
        let secret = credential.field(name);
        let text = secret.and_then(|secret| String::from_utf8(secret.expose().to_vec()).ok());
        text.map(Zeroizing::new).ok_or_else(|| Error::Value {
            why: format!("the credential `{id}` has no field `{name}` that is text"),
        })
    };
    Ok(Login { username: field("username")?.to_string(), password: field("password")? })
}
