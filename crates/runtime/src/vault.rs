//! The vaults of the person and of organisations: where they are, and the keys that open them. A question for one vault is never
//! answered out of another. S1.27
//!
//! All vaults have the same keys: those of `CONNECTION_ENCRYPTION_KEY`, the first of which encrypts; if it is not set, one that is made
//! at first use and kept beside the audit's key, readable by its owner only.

use credential::{Credential, FieldName, Keyring, Listing, Rotation, Secret, Stored, Value, Vault};
use policy::{OrganisationName, Policy, ProviderId, RunSpec, shell_word};
use sandbox::Caller;

use crate::error::Error;
use crate::key_file::{links_to_nothing, read_key};
use crate::missing_credential::{MissingCredential, Needed};
use crate::own_secrets::CONNECTION_ENCRYPTION_KEY;
use crate::stash::Stash;
use crate::state::{StateDirectory, make_directory, make_once};
use crate::subscription::mistaken;
use crate::system_keys::SystemKey;
use crate::value_source::ValueSource;

/// The variable that holds keys, named as on the existing platform. S1.18
const VARIABLE: &str = "CONNECTION_ENCRYPTION_KEY";

const KEY: &str = "vault.key";

/// What became of a value that was given.
#[derive(Debug)]
pub struct Set {
    /// What was stored, and what that replaced.
    pub stored: Stored,
    /// What to say of a value that looks like another service's, and nothing of the value.
    pub mistaken: Option<&'static str>,
}

/// The vault of a person, or of an organisation.
#[derive(Debug)]
pub struct Credentials {
    vault: Vault,
    organisation: Option<OrganisationName>,
}

impl Credentials {
    /// Opens an organisation's vault, or the person's own. The key is made if there is none.
    ///
    /// # Errors
    /// When a key cannot be read or made.
    pub fn open(
        caller: &Caller,
        directory: &StateDirectory,
        organisation: Option<OrganisationName>,
    ) -> Result<Self, Error> {
        // No other process may look into one that holds keys.
        let _ = sandbox::undumpable();
        let keyring = keyring(caller.variable(VARIABLE), directory)?;
        Ok(Self { vault: open(directory, organisation.as_ref(), keyring)?, organisation })
    }

    /// Opens every vault, the person's own first.
    ///
    /// # Errors
    /// When a key cannot be read or made, or the organisations cannot be listed.
    pub fn open_all(caller: &Caller, directory: &StateDirectory) -> Result<Vec<Self>, Error> {
        let all = std::iter::once(None).chain(directory.organisations()?.into_iter().map(Some));
        all.map(|organisation| Self::open(caller, directory, organisation)).collect()
    }

    /// Returns the organisation whose vault it is; `None` for the person's own.
    #[must_use]
    pub fn organisation(&self) -> Option<&OrganisationName> {
        self.organisation.as_ref()
    }

    /// Stores one field of a provider's credential.
    ///
    /// # Errors
    /// When the value cannot be read, is not fit for a credential, or cannot be stored.
    pub fn set(&self, provider: &ProviderId, field: FieldName, source: &ValueSource) -> Result<Set, Error> {
        let value = source.value()?;
        let mistaken = mistaken(provider, &value);
        Ok(Set { stored: self.vault.set_field(provider.as_str(), field, value)?, mistaken })
    }

    /// Stores an access token that has been read.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn put(&self, provider: &ProviderId, value: Value) -> Result<Stored, Error> {
        Ok(self.vault.set_field(provider.as_str(), FieldName::access_token(), value)?)
    }

    /// Stores a key that a platform declared.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn keep(&self, key: &SystemKey) -> Result<Stored, Error> {
        Ok(self.vault.set_field(key.provider().as_str(), FieldName::access_token(), key.value().clone())?)
    }

    /// Returns whose credentials an organisation's vault holds, or the person's own. Needs no key.
    ///
    /// # Errors
    /// When the vault cannot be listed.
    pub fn stored(
        directory: &StateDirectory,
        organisation: Option<&OrganisationName>,
    ) -> Result<Vec<String>, Error> {
        Ok(Vault::ids(&directory.vault(organisation))?)
    }

    /// Lists every credential of an organisation's vault, or of the person's own, by provider. Makes nothing, and no key either.
    ///
    /// # Errors
    /// When a key cannot be read or is gone, or the vault cannot be read.
    pub fn list(
        caller: &Caller,
        directory: &StateDirectory,
        organisation: Option<&OrganisationName>,
    ) -> Result<Listing, Error> {
        let _ = sandbox::undumpable();
        match made_keyring(caller.variable(VARIABLE), directory)? {
            Some(keyring) => Ok(open(directory, organisation, keyring)?.list()?),
            None => Ok(Listing::default()),
        }
    }

    /// Removes a provider's credential. Returns whether there was one. Needs no key: it may be lost.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(
        directory: &StateDirectory,
        organisation: Option<&OrganisationName>,
        provider: &ProviderId,
    ) -> Result<bool, Error> {
        Ok(Vault::remove(&directory.vault(organisation), provider.as_str())?)
    }

    /// Returns a credential, for a task of this process itself.
    pub(crate) fn take(&self, provider: &ProviderId) -> Result<Credential, Error> {
        let found = self.vault.get(provider.as_str())?;
        let organisation = self.organisation.clone();
        let needed = || Needed::Registry(provider.to_string());
        found.ok_or_else(|| Error::NoCredential(MissingCredential { needed: needed(), organisation }))
    }

    /// Encrypts every record's key with the first of the keys.
    ///
    /// # Errors
    /// When the vault cannot be read.
    pub fn rotate(&self) -> Result<Rotation, Error> {
        Ok(self.vault.rotate()?)
    }

    /// Checks that a credential can be decrypted. Returns the names and lengths of its fields, and no value.
    ///
    /// # Errors
    /// When the record is damaged or of another key.
    pub fn check(&self, provider: &ProviderId) -> Result<Option<Vec<(String, usize)>>, Error> {
        let lengths = |credential: Credential| {
            let length = |name: &FieldName| credential.field(name.as_str()).map_or(0, |s| s.expose().len());
            credential.names().map(|name| (name.to_string(), length(name))).collect()
        };
        Ok(self.vault.get(provider.as_str())?.map(lengths))
    }
}

/// A vault that is opened at the first question for a credential, after every fork.
#[derive(Debug)]
pub(crate) struct VaultLater {
    directory: StateDirectory,
    organisation: Option<OrganisationName>,
    text: Option<Stash>,
}

impl VaultLater {
    /// Takes the keys out of this process's memory, after checking that they exist and can be read.
    pub(crate) fn prepare(
        caller: &mut Caller,
        directory: &StateDirectory,
        organisation: Option<&OrganisationName>,
    ) -> Result<Self, Error> {
        drop(keyring(caller.variable(VARIABLE), directory)?);
        let text = Stash::take(caller, CONNECTION_ENCRYPTION_KEY)?;
        Ok(Self { directory: directory.clone(), organisation: organisation.cloned(), text })
    }

    /// Opens the vault.
    pub(crate) fn open(&self) -> Result<Vault, Error> {
        let text = self.text.as_ref().map(Stash::read).transpose();
        let text = text.map_err(|source| Error::Plumbing { what: "read the vault's keys", source })?;
        let text = text.as_ref().and_then(|secret| std::str::from_utf8(secret.expose()).ok());
        open(&self.directory, self.organisation.as_ref(), keyring(text, &self.directory)?)
    }
}

fn open(
    directory: &StateDirectory,
    organisation: Option<&OrganisationName>,
    keyring: Keyring,
) -> Result<Vault, Error> {
    let path = directory.vault(organisation);
    Ok(match organisation {
        Some(name) => Vault::open_of(name.as_str(), path, keyring)?,
        None => Vault::open(path, keyring)?,
    })
}

/// Refuses a run that declares a provider without a stored credential, or that goes through a proxy without one: its requests would fail
/// in the middle of its work.
///
/// # Errors
/// [`Error::NoCredential`] for the first that is missing, or when the vault cannot be read.
pub fn refuse_missing(spec: &RunSpec, directory: &StateDirectory) -> Result<(), Error> {
    let missing = missing(&spec.policy, spec.organisation.as_ref(), directory)?;
    missing.into_iter().next().map_or(Ok(()), |missing| Err(Error::NoCredential(missing)))
}

/// Returns the credentials of a policy's providers, and of the proxy that it goes through, that are not stored.
pub(crate) fn missing(
    policy: &Policy,
    organisation: Option<&OrganisationName>,
    directory: &StateDirectory,
) -> Result<Vec<MissingCredential>, Error> {
    let providers = policy.providers().map(|it| (it.id(), Needed::Provider(it.id().to_string())));
    let proxy = policy.proxy_with_credential().and_then(|proxy| {
        // Those of variables are in the environment.
        let credential = proxy.credential.as_ref().filter(|id| !ProviderId::is_own(id.as_str()))?;
        Some((credential, Needed::Proxy { id: proxy.id.clone(), credential: credential.to_string() }))
    });
    let mut needed = providers.chain(proxy).peekable();
    if needed.peek().is_none() {
        return Ok(Vec::new());
    }
    let stored = Vault::ids(&directory.vault(organisation))?;
    let missing = needed.filter(|(id, _)| !stored.iter().any(|it| it == id.as_str()));
    let told = |(_, needed)| MissingCredential { needed, organisation: organisation.cloned() };
    Ok(missing.map(told).collect())
}

/// Returns the keys. One is made if there is none yet.
fn keyring(text: Option<&str>, directory: &StateDirectory) -> Result<Keyring, Error> {
    made_keyring(text, directory)?.map_or_else(|| make(directory), Ok)
}

/// Returns the keys, if there is one yet. There must be one if a vault has a record: a new key in the place of a lost one would decrypt
/// nothing that is stored.
fn made_keyring(text: Option<&str>, directory: &StateDirectory) -> Result<Option<Keyring>, Error> {
    let bad = |place: &str| {
        let place = place.to_owned();
        move |e: credential::EnvelopeError| Error::VaultKey { place, why: e.to_string() }
    };
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        return Keyring::parse(text).map(Some).map_err(bad(VARIABLE));
    }
    let path = directory.keys().join(KEY);
    if let Some(text) = read_key(&path)?.map(Secret::new) {
        let text = std::str::from_utf8(text.expose()).unwrap_or_default();
        return Keyring::parse(text.trim()).map(Some).map_err(bad(&path.display().to_string()));
    }
    let vaults = sealed(directory)?;
    let sealed = vaults.iter().map(|vault| vault.ids.len()).sum();
    if sealed > 0 && path.exists() {
        // Another process has just made it, and used it.
        return made_keyring(None, directory);
    }
    if sealed > 0 {
        let removals = vaults.iter().map(Sealed::removal).collect();
        return Err(Error::VaultKeyGone { path, sealed, removals });
    }
    if path.is_symlink() { Err(links_to_nothing(&path)) } else { Ok(None) }
}

/// Makes the key.
fn make(directory: &StateDirectory) -> Result<Keyring, Error> {
    let path = directory.keys().join(KEY);
    make_directory(&directory.keys())?;
    let (ring, text) = Keyring::generate()
        .map_err(|e| Error::VaultKey { place: path.display().to_string(), why: e.to_string() })?;
    if make_once(&path, text.expose())? {
        return Ok(ring);
    }
    // Another process was first.
    made_keyring(None, directory)?.ok_or_else(|| links_to_nothing(&path))
}

/// What a vault holds, by whose credentials they are.
struct Sealed {
    organisation: Option<OrganisationName>,
    ids: Vec<String>,
}

impl Sealed {
    /// Returns the command that removes it all.
    fn removal(&self) -> String {
        let ids: Vec<_> = self.ids.iter().map(|id| shell_word(id)).collect();
        format!("lockgate creds rm {}{}", ids.join(" "), OrganisationName::flag(self.organisation.as_ref()))
    }
}

/// Returns what is in the vaults that are not empty.
fn sealed(directory: &StateDirectory) -> Result<Vec<Sealed>, Error> {
    let mut found = Vec::new();
    for organisation in std::iter::once(None).chain(directory.organisations()?.into_iter().map(Some)) {
        let ids = Vault::ids(&directory.vault(organisation.as_ref()))?;
        if !ids.is_empty() {
            found.push(Sealed { organisation, ids });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_key_is_gone_the_commands_are_named_that_remove_what_it_sealed() {
        let folder = tempfile::tempdir().unwrap();
        let (caller, state) = (Caller::new(0, 0, "/"), StateDirectory::for_test(folder.path()));
        let acme: OrganisationName = "acme".parse().unwrap();
        let store = |organisation: Option<&OrganisationName>, provider: &str| {
            let vault = Credentials::open(&caller, &state, organisation.cloned()).unwrap();
            vault
                .put(&provider.parse().unwrap(), Value::new(Secret::new(b"secret".to_vec())).unwrap())
                .unwrap();
        };
        store(None, "one");
        store(None, "two");
        store(Some(&acme), "three");
        std::fs::remove_file(state.keys().join(KEY)).unwrap();
        let gone = Credentials::open(&caller, &state, None).unwrap_err();
        assert!(gone.to_string().contains("a key that is not here (records: 3)"), "{gone}");
        let remedy = gone.remedy().unwrap();
        let named = "`lockgate creds rm one two`, `lockgate creds rm three --org acme`";
        assert!(remedy.contains(named), "{remedy}");
        assert!(matches!(
            Credentials::list(&caller, &state, None),
            Err(Error::VaultKeyGone { sealed: 3, .. })
        ));
    }

    #[test]
    fn a_run_through_a_proxy_whose_login_is_not_stored_is_refused_with_what_stores_it() {
        let folder = tempfile::tempdir().unwrap();
        let (caller, state) = (Caller::new(0, 0, "/"), StateDirectory::for_test(folder.path()));
        let refused = |allow: &str, credential: &str| {
            let text = format!(
                "proxy = [{{ id = \"corp\", url = \"http://proxy.example:3128\", credential = \"{credential}\" }}]\n\
                 egress.proxy = \"corp\"\negress.allow = [{allow}]\norg = \"acme\"\n"
            );
            let mut layers = policy::Layers::default();
            layers.push(policy::Origin::Variable("V".into()), toml::from_str(&text).unwrap());
            refuse_missing(&layers.compile().unwrap(), &state).err()
        };
        let far = "{ host = \"far.example\" }";
        let error = refused(far, "mine").unwrap();
        assert!(error.to_string().contains("`mine` for the proxy `corp`"), "{error}");
        let set = "lockgate creds set mine --org acme --field";
        assert_eq!(error.remedy(), Some(format!("{set} username; {set} password")));
        assert!(refused("", "mine").is_none(), "nothing goes through it");
        assert!(refused(far, "@lockgate/system-proxy-1").is_none(), "it is in the environment");
        let acme = Some("acme".parse().unwrap());
        let vault = Credentials::open(&caller, &state, acme).unwrap();
        vault.put(&"mine".parse().unwrap(), Value::new(Secret::new(b"secret".to_vec())).unwrap()).unwrap();
        assert!(refused(far, "mine").is_none());
    }

    #[test]
    fn who_lists_what_is_stored_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (caller, state) = (Caller::new(0, 0, "/"), StateDirectory::for_test(folder.path()));
        let list = || Credentials::list(&caller, &state, None);
        assert_eq!(list().unwrap(), Listing::default());
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
        make_directory(&state.keys()).unwrap();
        std::os::unix::fs::symlink("nowhere", state.keys().join(KEY)).unwrap();
        assert!(list().unwrap_err().to_string().contains("a link to nothing"));
    }
}
