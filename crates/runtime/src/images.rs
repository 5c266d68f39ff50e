//! The image store of this person.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use egress::{Detour, Files, Outside};
use image::{
    Bounds, Command, Connect, Connecting, Held, LentIds, Listed, Login, Overrides, Owners, PullProgress,
    PullRequest, Reference, Removed, Store, Transport,
};
use policy::ProviderId;
use sandbox::{Caller, Exit, SubordinateIds};
use zeroize::Zeroizing;

use crate::authorities;
use crate::error::Error;
use crate::proxy_url;
use crate::state::{StateDirectory, refuse_to_take_over};
use crate::vault::Credentials;

/// A request to pull an image.
#[derive(Clone, Copy, Debug)]
pub struct PullAsked<'a> {
    /// The image.
    pub reference: &'a Reference,
    /// The credential that its registry wants to see.
    pub credential: Option<&'a ProviderId>,
    /// Whether the registry may be used without TLS.
    pub plain_http: bool,
    /// How much a layer may hold.
    pub bounds: Bounds,
}

/// What helps where images would be kept in another user's place.
const WHOSE: &str = "name another place with XDG_DATA_HOME, or use a HOME of your own (`sudo -H`)";

/// The images of a caller: `$XDG_DATA_HOME/lockgate`.
#[derive(Clone, Debug)]
pub struct Images {
    directory: PathBuf,
    /// Whether `XDG_DATA_HOME` names it, as it may a volume of another user's.
    is_named: bool,
    owners: Owners,
}

impl Images {
    /// Returns the images of a caller, by the XDG rules.
    ///
    /// # Errors
    /// When neither `XDG_DATA_HOME` nor `HOME` names a place.
    pub fn of(caller: &Caller) -> Result<Self, Error> {
        let named =
            caller.variable("XDG_DATA_HOME").filter(|p| Path::new(p).is_absolute()).map(PathBuf::from);
        let is_named = named.is_some();
        let base = named.or_else(|| caller.home.as_ref().map(|home| home.join(".local/share")));
        let base = base.ok_or(Error::NoDataDirectory)?;
        let owners = if caller.superuser { Owners::Anybody } else { Owners::Caller };
        Ok(Self { directory: base.join("lockgate"), is_named, owners })
    }

    /// Imports the images in a file or directory.
    ///
    /// # Errors
    /// When it is no image, is malformed or too large, or cannot be kept.
    pub fn import(
        &self,
        source: &Path,
        name: Option<Reference>,
        config: Option<Command>,
        bounds: Bounds,
    ) -> Result<Vec<Listed>, Error> {
        let overrides = Overrides { name, config, bounds, owners: self.owners };
        Ok(image::import(&self.store()?, source, &overrides)?)
    }

    /// Pulls an image from its registry. A credential has the fields `username` and `password`.
    ///
    /// # Errors
    /// When the registry does not give it, a proxy that the environment names is none, or it cannot be kept.
    pub fn pull(
        &self,
        asked: &PullAsked<'_>,
        caller: &Caller,
        report: &mut dyn FnMut(PullProgress),
    ) -> Result<Listed, Error> {
        let login = asked.credential.map(|id| login(id, caller)).transpose()?;
        let outside = Outside::new(Files::open(caller.variable(authorities::VARIABLE))?);
        let route = RegistryRoute {
            outside,
            secure: proxy_url::detour(caller, Transport::Tls)?,
            plain: proxy_url::detour(caller, Transport::Plain)?,
        };
        let request = PullRequest {
            reference: asked.reference,
            login,
            transport: if asked.plain_http { Transport::Plain } else { Transport::Tls },
            bounds: asked.bounds,
            owners: self.owners,
        };
        Ok(image::pull(&self.store()?, &route, &request, report)?)
    }

    /// Lists every image under each of its names.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        Ok(self.store_if_there()?.map_or(Ok(Vec::new()), |store| store.list())?)
    }

    /// Returns why the records of images cannot be read, one error for each: these images are not listed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn unreadable(&self) -> Result<Vec<image::Error>, Error> {
        Ok(self.store_if_there()?.map_or(Ok(Vec::new()), |store| store.unreadable())?)
    }

    /// Removes names of images, and the images that have no other.
    ///
    /// # Errors
    /// When there is none of one of these names, or a run uses it: then all stay.
    pub fn remove(&self, names: &[impl AsRef<str>]) -> Result<Removed, Error> {
        if let Some(store) = self.store_if_there()? {
            return Ok(store.remove(names)?);
        }
        let absent = names.first().map(|name| image::Error::NothingToRemove { name: name.as_ref().into() });
        Ok(absent.map_or(Ok(Removed::default()), Err)?)
    }

    /// Removes images without a name, layers that no image has, and what killed processes left.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn prune(&self) -> Result<Removed, Error> {
        Ok(self.store_if_there()?.map_or(Ok(Removed::default()), |store| store.prune())?)
    }

    /// Holds an image for a run, which keeps it from being removed until the value is dropped.
    pub(crate) fn hold(&self, name: &str) -> Result<Held, Error> {
        Ok(self.store()?.hold(name)?)
    }

    /// Returns the directory, which no run may be shown.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Opens the store. It is made if it does not exist, but not by root in another user's home.
    fn store(&self) -> Result<Store, Error> {
        if !self.is_named {
            refuse_to_take_over(&self.directory, WHOSE)?;
        }
        Ok(Store::open(&self.place())?)
    }

    /// Opens the store for what makes nothing in it.
    fn store_if_there(&self) -> Result<Option<Store>, Error> {
        match std::fs::metadata(self.place()) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            _ => self.store().map(Some),
        }
    }

    fn place(&self) -> PathBuf {
        self.directory.join("images")
    }
}

pub(crate) fn lent_ids(ids: SubordinateIds) -> LentIds {
    LentIds { users: ids.users, groups: ids.groups }
}

/// Runs `work` on a caller's images with the caller's subordinate ids, to whom files of images may belong, and returns its exit status.
/// Without such ids, or if they cannot be mapped, it runs as the caller alone, and `tell` says why.
///
/// # Errors
/// When `work` was ended by a signal, or there is no place for images.
pub fn look_after_images(
    caller: &Caller,
    tell: impl FnOnce(&str),
    work: impl Fn(&Images) -> i32,
) -> Result<i32, Error> {
    let images = Images::of(caller)?;
    let ids = if caller.superuser { None } else { SubordinateIds::of(caller).ok() };
    let Some(ids) = ids else { return Ok(work(&images)) };
    let lent = Images { owners: Owners::Lent(lent_ids(ids)), ..images.clone() };
    let within = || {
        let keeps = lent.store().is_ok_and(|store| store.keeps_owners());
        work(if keeps { &lent } else { &images })
    };
    match sandbox::within_subordinate_ids(ids, within) {
        Ok(Exit::Code(status)) => Ok(status),
        Ok(Exit::Signal(signal)) => Err(Error::Interrupted { signal }),
        Err(error) => {
            tell(&format!("subordinate ids cannot be used: {error}"));
            Ok(work(&images))
        }
    }
}

/// The way to a registry, with the proxies on it.
struct RegistryRoute {
    outside: Outside,
    secure: Option<Detour>,
    plain: Option<Detour>,
}

impl Connect for RegistryRoute {
    fn connect<'a>(&'a self, host: &'a str, port: u16, transport: Transport) -> Connecting<'a> {
        Box::pin(async move {
            Ok(match transport {
                Transport::Tls => {
                    Box::new(self.outside.connect_securely(host, port, self.secure.as_ref()).await?)
                        as Box<dyn image::Stream>
                }
                Transport::Plain => Box::new(self.outside.connect(host, port, self.plain.as_ref()).await?),
            })
        })
    }
}

fn login(id: &ProviderId, caller: &Caller) -> Result<Login, Error> {
    // Images are the person's own, whichever organisation's keys a run uses.
    let credential = Credentials::open(caller, &StateDirectory::of(caller)?, None)?.take(id)?;
    let field = |name: &str| {
        let secret = credential.field(name);
        let text = secret.and_then(|secret| String::from_utf8(secret.expose().to_vec()).ok());
        text.map(Zeroizing::new).ok_or_else(|| Error::Value {
            why: format!("the credential `{id}` has no field `{name}` that is text"),
        })
    };
    Ok(Login { username: field("username")?.to_string(), password: field("password")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_looks_or_removes_makes_nothing_and_root_makes_nothing_in_another_users_home() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let caller = Caller::new(0, 0, "/").with_home(&home);
        let images = Images::of(&caller).unwrap();
        assert_eq!((images.list().unwrap().len(), images.unreadable().unwrap().len()), (0, 0));
        assert_eq!(images.prune().unwrap(), Removed::default());
        let refused = images.remove(&["example.com/app"]).unwrap_err();
        assert!(matches!(refused, Error::Image(image::Error::NothingToRemove { .. })), "{refused}");
        assert!(!home.join(".local").exists());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&home, Some(65_534), None).unwrap();
            let refused = images.store().unwrap_err();
            assert!(refused.to_string().contains("home, which belongs to user 65534"), "{refused}");
            assert!(refused.remedy().unwrap().contains("XDG_DATA_HOME") && !home.join(".local").exists());
            let named = Images::of(&caller.with_env([("XDG_DATA_HOME", home.to_str().unwrap())])).unwrap();
            assert!(named.store().is_ok(), "it is named");
        } else {
            assert!(images.store().is_ok());
        }
    }
}
