//! The credentials of a sidecar: fetched from the platform at first use and never written to disk. Where the platform tells of
//! changes they are kept until they change, elsewhere for one request.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use credential::{Credential, FieldName, Forms, Needles, Placeholder, Secret};
use policy::{Denial, Guard, Hint, OrganisationName, ProviderId};

use crate::credential_config::{CredentialConfig, Generation, PlatformPlace};
use crate::fetched_credential::FetchedCredential;
use crate::live_needles::LiveNeedles;
use crate::platform::{FetchError, Platform};

/// How many values responses are searched for. Values in use are kept beyond this number.
const MOST_LOOKED_FOR: usize = 64;
/// The field with the name of a proxy's user.
pub(crate) const USERNAME: &str = "username";
pub(crate) const PASSWORD: &str = "password";

/// Where credentials come from, and those that were fetched.
#[derive(Debug)]
pub(crate) struct Credentials {
    platform: RefCell<Option<Rc<Platform>>>,
    /// Who is asked for this program's own providers, if that is not the platform.
    own: Option<Rc<Platform>>,
    generation: Generation,
    cache: RefCell<Cache>,
    /// Every value that was ever held here, to be searched for in every response that can be read.
    searched: RefCell<Vec<SearchedValue>>,
    needles: LiveNeedles,
    /// Those whose credential goes into requests. Any other is for a proxy.
    providers: HashSet<ProviderId>,
    placeholders: HashMap<Placeholder, ProviderId>,
    exposed: ExposedValues,
    organisation: Option<OrganisationName>,
    configure_right: RefCell<ConfigureRight>,
}

/// The credentials of one generation.
#[derive(Debug, Default)]
struct Cache {
    /// `None` where it is not known. Then they are not current for the next request.
    generation: Option<u64>,
    credentials: HashMap<ProviderId, Rc<FetchedCredential>>,
    /// The providers for which there was none.
    absent: HashSet<ProviderId>,
}

/// The values that the command was given, and what to mask where text is written down.
#[derive(Debug)]
struct ExposedValues {
    values: Vec<(ProviderId, Secret)>,
    needles: Needles,
}

/// A value that responses are searched for, and its forms: others come and go while it stays.
#[derive(Debug)]
struct SearchedValue {
    value: Secret,
    forms: Forms,
}

impl SearchedValue {
    fn of(value: Secret) -> Self {
        let forms = Forms::of(&value);
        Self { value, forms }
    }
}

/// The right to configure this sidecar.
#[derive(Debug)]
enum ConfigureRight {
    /// The bearer of the secret may configure it.
    Open(Secret),
    /// A bearer of the secret is configuring it.
    Taken(Secret),
    /// It was used, or there never was one.
    Used,
}

impl Credentials {
    pub(crate) fn new(credential_config: CredentialConfig, providers: HashSet<ProviderId>) -> Self {
        let CredentialConfig {
            platform,
            own,
            generation,
            placeholders,
            exposed,
            organisation,
            configure_once,
        } = credential_config;
        let platform = match platform {
            None => None,
            Some(PlatformPlace::Inherited(socket, token)) => Some(Platform::inherited(socket, token)),
            Some(PlatformPlace::Address(address, token)) => Some(Platform::at(address, token)),
        };
        let values: Vec<Secret> = exposed.iter().map(|(_, value)| value.clone()).collect();
        // A host's name is written in lower case.
        let lower_case = values.iter().map(|value| Secret::new(value.expose().to_ascii_lowercase()));
        let needles = Needles::of(&values.iter().cloned().chain(lower_case).collect::<Vec<_>>());
        Self {
            platform: RefCell::new(platform.map(Rc::new)),
            own: own.map(|(socket, token)| Rc::new(Platform::inherited(socket, token))),
            generation,
            cache: RefCell::default(),
            searched: RefCell::new(values.into_iter().map(SearchedValue::of).collect()),
            needles: needles.clone().into(),
            providers,
            placeholders: placeholders.into_iter().collect(),
            exposed: ExposedValues { values: exposed, needles },
            organisation,
            configure_right: RefCell::new(configure_once.map_or(ConfigureRight::Used, ConfigureRight::Open)),
        }
    }

    /// Takes the right to configure this sidecar.
    ///
    /// # Errors
    /// The bearer is not the one-time secret, compared in constant time, or the right is taken or used.
    pub(crate) fn begin_to_configure(&self, bearer: &[u8]) -> Result<(), &'static str> {
        let mut right = self.configure_right.borrow_mut();
        let secret = match &*right {
            ConfigureRight::Used => return Err("Already configured"),
            ConfigureRight::Open(secret) | ConfigureRight::Taken(secret) if !secret.matches(bearer) => {
                return Err("Unauthorized");
            }
            ConfigureRight::Taken(_) => return Err("It is being configured"),
            ConfigureRight::Open(secret) => secret.clone(),
        };
        *right = ConfigureRight::Taken(secret);
        Ok(())
    }

    /// Gives the right back after a configuration that cannot be used.
    pub(crate) fn configure_later(&self) {
        let mut right = self.configure_right.borrow_mut();
        if let ConfigureRight::Taken(secret) = &*right {
            let secret = secret.clone();
            *right = ConfigureRight::Open(secret);
        }
    }

    /// Sets the platform, once and for ever. S0.41
    ///
    /// # Errors
    /// The address or the token cannot be one.
    pub(crate) fn configure(&self, address: &str, token: Secret) -> Result<(), String> {
        let address = address.parse().map_err(|why| format!("platformApiUrl {why}"))?;
        let token = token.try_into().map_err(|why| format!("runToken {why}"))?;
        let platform = Platform::at(address, token);
        *self.platform.borrow_mut() = Some(Rc::new(platform));
        *self.configure_right.borrow_mut() = ConfigureRight::Used;
        Ok(())
    }

    /// Asks the platform for earlier runs. Returns its status and body.
    pub(crate) async fn run_history(&self, query: &str) -> Result<(u16, Vec<u8>), FetchError> {
        let platform = self.platform.borrow().clone();
        match platform {
            Some(platform) => platform.run_history(query).await,
            None => Err(FetchError::NoPlatform),
        }
    }

    /// Returns the provider of a placeholder of this run.
    pub(crate) fn provider_of(&self, placeholder: &Placeholder) -> Option<&ProviderId> {
        self.placeholders.get(placeholder)
    }

    /// Returns the placeholder of a provider.
    pub(crate) fn placeholder_of(&self, provider: &ProviderId) -> Option<&Placeholder> {
        self.placeholders.iter().find(|(_, of)| *of == provider).map(|(placeholder, _)| placeholder)
    }

    /// Returns whether a text is a provider's value that the command was given, compared in constant time.
    pub(crate) fn is_exposed(&self, provider: &ProviderId, text: &[u8]) -> bool {
        self.exposed.values.iter().any(|(of, value)| of == provider && value.matches(text))
    }

    /// Returns a text with `other` in place of a provider's value that the command was given, if that stands in it by itself: with a letter
    /// or a digit beside it, it is a part of another key.
    pub(crate) fn without_exposed(
        &self,
        provider: &ProviderId,
        text: &[u8],
        other: &[u8],
    ) -> Option<Vec<u8>> {
        let mut values = self.exposed.values.iter().filter(|(of, _)| of == provider);
        values.find_map(|(_, value)| replaced_alone(text, value.expose(), other))
    }

    /// Masks the values that the command was given in a text that is recorded or shown: it may quote a request.
    pub(crate) fn veiled(&self, text: String) -> String {
        match self.exposed.needles.scrub_text(text.as_bytes()) {
            Some((masked, _)) => String::from_utf8_lossy(&masked).into_owned(),
            None => text,
        }
    }

    /// Returns the platform that answers for a provider. A platform elsewhere neither knows this program's own providers nor may learn
    /// of them.
    fn platform_of(&self, provider: &ProviderId) -> Option<Rc<Platform>> {
        let platform = self.platform.borrow().clone();
        match ProviderId::is_own(provider.as_str()) {
            true => self.own.clone().or(platform.filter(|platform| platform.is_inherited())),
            false => platform,
        }
    }

    /// Returns the current credential of a provider (C16).
    pub(crate) async fn of(&self, provider: &ProviderId) -> Result<Rc<FetchedCredential>, Denial> {
        self.current(provider).await.map_err(|error| self.unavailable(provider, &error))
    }

    /// Returns the current credential of a proxy on the way out, which is a user and a password.
    pub(crate) async fn login_of(&self, proxy: &ProviderId) -> Result<Rc<FetchedCredential>, Denial> {
        let held = self.current(proxy).await.map_err(|error| match (error, self.stored_by(proxy)) {
            (error @ FetchError::Absent, Some(command)) => self.unavailable(proxy, &error).with_hint(
                Hint::Command(format!("{command} --field {USERNAME}; {command} --field {PASSWORD}")),
            ),
            (error, _) => self.unavailable(proxy, &error),
        })?;
        match [USERNAME, PASSWORD].into_iter().find(|name| held.credential().field(name).is_none()) {
            Some(missing) => Err(held.without(missing)),
            None => Ok(held),
        }
    }

    /// Fetches the current credential of a provider for responses to be searched for it, if there is one.
    ///
    /// # Errors
    /// Nobody can tell which it is.
    pub(crate) async fn search_for_current(&self, provider: &ProviderId) -> Result<(), Denial> {
        match self.current(provider).await {
            Ok(_) | Err(FetchError::Absent) => Ok(()),
            Err(error) => Err(self.unavailable(provider, &error)),
        }
    }

    async fn current(&self, provider: &ProviderId) -> Result<Rc<FetchedCredential>, FetchError> {
        let generation = self.generation.now();
        {
            let mut cache = self.cache.borrow_mut();
            if generation.is_none() || cache.generation != generation {
                *cache = Cache { generation, ..Cache::default() };
            }
            // A platform elsewhere does not report changes, so it is asked each time.
            let is_current = self.platform_of(provider).is_none_or(|platform| platform.is_inherited());
            if let Some(found) = cache.credentials.get(provider).filter(|_| is_current) {
                return Ok(Rc::clone(found));
            }
            if is_current && cache.absent.contains(provider) {
                return Err(FetchError::Absent);
            }
        }
        self.ask_for(provider).await
    }

    /// Fetches a credential, whether one is cached or not.
    pub(crate) async fn fetch(&self, provider: &ProviderId) -> Result<Rc<FetchedCredential>, Denial> {
        self.ask_for(provider).await.map_err(|error| self.unavailable(provider, &error))
    }

    async fn ask_for(&self, provider: &ProviderId) -> Result<Rc<FetchedCredential>, FetchError> {
        let generation = self.cache.borrow().generation;
        let platform = self.platform_of(provider).ok_or(FetchError::NoPlatform)?;
        let credential = match platform.credential(provider).await {
            Err(FetchError::Absent) => {
                let mut cache = self.cache.borrow_mut();
                if cache.generation == generation {
                    cache.absent.insert(provider.clone());
                }
                return Err(FetchError::Absent);
            }
            answered => answered?,
        };
        self.search_for(provider, &credential);
        let held = Rc::new(FetchedCredential::new(provider.clone(), credential, self.stored_by(provider)));
        let mut cache = self.cache.borrow_mut();
        // A credential from before a change is used for this request, and not kept.
        if cache.generation == generation {
            cache.absent.remove(provider);
            cache.credentials.insert(provider.clone(), Rc::clone(&held));
        }
        drop(cache);
        Ok(held)
    }

    /// Returns the denial of a request whose credential cannot be had.
    fn unavailable(&self, provider: &ProviderId, error: &FetchError) -> Denial {
        let denied = |why: String| {
            Denial::new(Guard::Credential, format!("Credential fetch failed: {why}"))
                .with_rule(format!("provider {provider}"))
        };
        if !matches!(error, FetchError::Absent) {
            return denied(error.to_string());
        }
        denied(format!("there is none for `{provider}`")).with_hint(match self.stored_by(provider) {
            Some(command) => Hint::Command(command),
            None => Hint::Advice("the platform that this sidecar asks has to have one".into()),
        })
    }

    /// Returns the command that stores the credential of a provider; `None` where a platform elsewhere is asked in place of this machine's
    /// vault, so that storing one there would not help.
    fn stored_by(&self, provider: &ProviderId) -> Option<String> {
        let is_elsewhere = self.platform_of(provider).is_some_and(|platform| !platform.is_inherited());
        let whose = || OrganisationName::flag(self.organisation.as_ref());
        (!is_elsewhere).then(|| format!("lockgate creds set {provider}{}", whose()))
    }

    /// Fetches again a credential that an upstream refused, and reports the refusal if there is no other credential.
    pub(crate) async fn renew(&self, refused: &FetchedCredential) {
        match self.fetch(refused.provider()).await {
            Ok(new) if !new.is_same_as(refused) => {}
            _ => self.report_refused(refused.provider()).await,
        }
    }

    /// Returns what to search responses for: a value that one request wrote at an upstream can be read with another.
    pub(crate) fn needles(&self) -> &LiveNeedles {
        &self.needles
    }

    /// Adds a credential's values to those that responses are searched for. The name of a user at a proxy is none of them: it is a word as
    /// any other, which answers of all hosts may have.
    fn search_for(&self, provider: &ProviderId, credential: &Credential) {
        let is_word = |name: &FieldName| name.as_str() == USERNAME && !self.providers.contains(provider);
        let secrets = || credential.iter().filter(|(name, _)| !is_word(name)).map(|(_, value)| value);
        let mut searched = self.searched.borrow_mut();
        let known =
            |new: &Secret, all: &[SearchedValue]| all.iter().any(|old| old.value.matches(new.expose()));
        let mut news = false;
        for secret in secrets() {
            if !known(secret, &searched) {
                searched.push(SearchedValue::of(secret.clone()));
                news = true;
            }
        }
        // The values that were rotated away first make room; those in use never do.
        let mut surplus = searched.len().saturating_sub(MOST_LOOKED_FOR);
        if surplus > 0 {
            let cache = self.cache.borrow();
            let in_use = |value: &Secret| {
                let current = cache.credentials.values().flat_map(|held| held.credential().secrets());
                let exposed = self.exposed.values.iter().map(|(_, value)| value);
                current.chain(exposed).chain(secrets()).any(|one| one.matches(value.expose()))
            };
            searched.retain(|one| {
                let goes = surplus > 0 && !in_use(&one.value);
                surplus -= usize::from(goes);
                !goes
            });
        }
        if news {
            self.needles.replace(Needles::of_forms(searched.iter().map(|one| &one.forms)));
        }
    }

    /// Reports to the platform that an upstream refused even a fresh credential.
    pub(crate) async fn report_refused(&self, provider: &ProviderId) {
        if let Some(platform) = self.platform_of(provider) {
            platform.report_refused(provider).await;
        }
    }
}

/// Returns a text with `other` in place of a value that has no letter or digit beside it, if there is one.
pub(crate) fn replaced_alone(text: &[u8], value: &[u8], other: &[u8]) -> Option<Vec<u8>> {
    let is_alone = |at: &usize| {
        let beside = [at.checked_sub(1), at.checked_add(value.len())];
        !beside.into_iter().flatten().filter_map(|at| text.get(at)).any(u8::is_ascii_alphanumeric)
    };
    let (mut out, mut done) = (Vec::new(), 0);
    for at in memchr::memmem::find_iter(text, value).filter(is_alone) {
        out.extend_from_slice(&text[done..at]);
        out.extend_from_slice(other);
        done = at + value.len();
    }
    (done > 0).then(|| [&out, &text[done..]].concat())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::{Arc, Mutex};

    use credential::Value;

    use super::*;

    fn credential(values: impl IntoIterator<Item = String>) -> Credential {
        let mut all = Credential::default();
        for (number, value) in values.into_iter().enumerate() {
            all.set(format!("f_{number}").parse().unwrap(), Value::new(Secret::from_text(value)).unwrap());
        }
        all
    }

    #[test]
    fn what_is_exposed_is_masked_in_small_letters_too() {
        let exposed = ("one".parse().unwrap(), Secret::from_text("AbCdEf0123456789".into()));
        let credentials = Credentials::new(
            CredentialConfig { exposed: vec![exposed], ..CredentialConfig::default() },
            HashSet::new(),
        );
        for text in ["http://abcdef0123456789.example.com/", "http://example.com/AbCdEf0123456789"] {
            let veiled = credentials.veiled(text.into());
            assert!(
                !veiled.to_ascii_lowercase().contains("abcdef") && veiled.contains("example.com"),
                "{veiled}"
            );
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_credential_is_kept_while_the_generation_is_known_and_the_same() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        // Answers with a value that is another one each time.
        let platform = std::thread::spawn(move || {
            let mut question = [0; 1024];
            for number in 0_u32.. {
                if theirs.read(&mut question).unwrap() == 0 {
                    return;
                }
                let body = format!(r#"{{"provider":"one","fields":{{"f":"value-{number}"}}}}"#);
                write!(theirs, "HTTP/1.1 200 -\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
            }
        });
        let told = Arc::new(Mutex::new(Some(1)));
        let ask = Arc::clone(&told);
        let credential_config = CredentialConfig {
            platform: Some(PlatformPlace::Inherited(ours, Secret::from_text("token".into()))),
            generation: Generation::told_by(move || *ask.lock().unwrap()),
            ..CredentialConfig::default()
        };
        let credentials = Credentials::new(credential_config, HashSet::new());
        let (id, local) = ("one".parse().unwrap(), tokio::task::LocalSet::new());
        for (generation, value) in [
            (Some(1), "value-0"),
            (Some(1), "value-0"),
            (Some(2), "value-1"),
            (None, "value-2"),
            (None, "value-3"),
            (Some(2), "value-4"),
            (Some(2), "value-4"),
        ] {
            *told.lock().unwrap() = generation;
            let found = local.run_until(credentials.of(&id)).await.unwrap();
            let field = found.credential().field("f").unwrap();
            assert!(field.matches(value.as_bytes()), "{generation:?} {value}");
        }
        drop(credentials);
        platform.join().unwrap();
    }

    #[test]
    fn none_that_is_in_use_is_let_go_for_others() {
        let exposed = ("one".parse().unwrap(), Secret::from_text("exposed-value".into()));
        let credential_config = CredentialConfig { exposed: vec![exposed], ..CredentialConfig::default() };
        let credentials = Credentials::new(credential_config, HashSet::new());
        let is_found = |text: &str| credentials.needles().now().scrub_text(text.as_bytes()).is_some();
        let value = |kind: &str, number: usize| format!("{kind}-value-{number:04}");
        let id: ProviderId = "one".parse().unwrap();
        // A credential with more fields than rotated values are kept.
        credentials.search_for(&id, &credential((0..MOST_LOOKED_FOR + 6).map(|n| value("wide", n))));
        assert!((0..MOST_LOOKED_FOR + 6).all(|n| is_found(&value("wide", n))));
        // Rotated: only the latest values are in use now.
        for number in 0..MOST_LOOKED_FOR {
            credentials.search_for(&id, &credential([value("narrow", number)]));
        }
        assert!(is_found("exposed-value") && is_found(&value("narrow", MOST_LOOKED_FOR - 1)));
        assert!(!is_found(&value("wide", 0)) && credentials.searched.borrow().len() <= MOST_LOOKED_FOR);
    }

    #[test]
    fn the_name_of_a_user_at_a_proxy_is_not_masked() {
        let id: ProviderId = "one".parse().unwrap();
        for (providers, is_masked) in [(HashSet::new(), false), (HashSet::from([id.clone()]), true)] {
            let credentials = Credentials::new(CredentialConfig::default(), providers);
            let mut of_proxy = Credential::default();
            for (name, text) in [(USERNAME, "proxy"), ("password", "open-sesame")] {
                let value = Value::new(Secret::from_text(text.into())).unwrap();
                of_proxy.set(name.parse().unwrap(), value);
            }
            credentials.search_for(&id, &of_proxy);
            let is_found = |text: &[u8]| credentials.needles().now().scrub_text(text).is_some();
            assert_eq!(is_found(b"x-served-by: proxy-7"), is_masked);
            assert!(is_found(b"open-sesame") && is_found(b"Basic cHJveHk6b3Blbi1zZXNhbWU="));
        }
    }
}
