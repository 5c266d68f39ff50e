//! Credentials in a sidecar: fetched from the platform at first use, kept until they change, never written down.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use credential::{Credential, Needles, Placeholder, Position, RenderError, Secret, Template};
use policy::{Denial, Guard, Hint, OrganisationName, ProviderId};

use crate::credential_config::{CredentialConfig, Generation, PlatformPlace};
use crate::platform::{FetchError, Platform};

/// How many values are looked for at once, where that leaves room for those in use.
const MOST_LOOKED_FOR: usize = 64;

/// A provider's credential.
pub(crate) struct FetchedCredential {
    provider: ProviderId,
    credential: Credential,
    /// What the policy's templates come to with it.
    rendered: RefCell<Vec<(String, Position, Rc<Secret>)>>,
}

impl FetchedCredential {
    pub(crate) fn provider(&self) -> &ProviderId {
        &self.provider
    }

    pub(crate) fn credential(&self) -> &Credential {
        &self.credential
    }

    /// A template of the policy's with the credential put in, made once.
    pub(crate) fn render(&self, template: &str, place: Position) -> Result<Rc<Secret>, Denial> {
        let made = |(of, at, _): &&(String, Position, Rc<Secret>)| of == template && *at == place;
        if let Some((_, _, secret)) = self.rendered.borrow().iter().find(made) {
            return Ok(Rc::clone(secret));
        }
        let parsed = Template::parse(template).map_err(|e| Denial::new(Guard::Unresolved, e.to_string()))?;
        let secret = Rc::new(parsed.render(&self.credential, place).map_err(|e| unfit("request", &e))?);
        self.rendered.borrow_mut().push((template.to_owned(), place, Rc::clone(&secret)));
        Ok(secret)
    }

    /// Whether it is the same credential, field by field.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        let mine = self.credential.names();
        mine.eq(other.credential.names())
            && self.credential.secrets().zip(other.credential.secrets()).all(|(a, b)| a.matches(b.expose()))
    }
}

impl std::fmt::Debug for FetchedCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FetchedCredential").field("provider", &self.provider).finish_non_exhaustive()
    }
}

/// Where credentials come from, and those that were fetched.
#[derive(Debug)]
pub(crate) struct Credentials {
    platform: RefCell<Option<Rc<Platform>>>,
    /// Who is asked for what is this program's own, if that is not the platform.
    own: Option<Rc<Platform>>,
    generation: Generation,
    held: RefCell<(u64, HashMap<ProviderId, Rc<FetchedCredential>>)>,
    /// Every value that was ever held here, to be looked for in every answer that can be read.
    needles: RefCell<(Vec<Secret>, Needles)>,
    placeholders: HashMap<Placeholder, ProviderId>,
    /// What the command was given by value, and what to look for where it may be written down.
    exposed: (Vec<(ProviderId, Secret)>, Needles),
    organisation: Option<OrganisationName>,
    once: RefCell<Once>,
}

/// The right to configure this sidecar.
#[derive(Debug)]
enum Once {
    /// Whoever has the secret may.
    Open(Secret),
    /// Somebody who has it is about to.
    Taken(Secret),
    /// It was used, or there never was one.
    Used,
}

impl Credentials {
    pub(crate) fn new(credential_config: CredentialConfig) -> Self {
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
        // In the name of a host its letters are small.
        let small = values.iter().map(|value| Secret::new(value.expose().to_ascii_lowercase()));
        let veil = Needles::of(&values.iter().cloned().chain(small).collect::<Vec<_>>());
        Self {
            platform: RefCell::new(platform.map(Rc::new)),
            own: own.map(|(socket, token)| Rc::new(Platform::inherited(socket, token))),
            generation,
            held: RefCell::default(),
            needles: RefCell::new((values, veil.clone())),
            placeholders: placeholders.into_iter().collect(),
            exposed: (exposed, veil),
            organisation,
            once: RefCell::new(configure_once.map_or(Once::Used, Once::Open)),
        }
    }

    /// Whether a bearer may configure this sidecar: the one-time secret, compared in constant time, and not used yet.
    pub(crate) fn begin_to_configure(&self, bearer: &[u8]) -> Result<(), &'static str> {
        let mut once = self.once.borrow_mut();
        let secret = match &*once {
            Once::Used => return Err("Already configured"),
            Once::Open(secret) | Once::Taken(secret) if !secret.matches(bearer) => {
                return Err("Unauthorized");
            }
            Once::Taken(_) => return Err("It is being configured"),
            Once::Open(secret) => secret.clone(),
        };
        *once = Once::Taken(secret);
        Ok(())
    }

    /// Gives the right back: what was sent cannot be used.
    pub(crate) fn configure_later(&self) {
        let mut once = self.once.borrow_mut();
        if let Once::Taken(secret) = &*once {
            let secret = secret.clone();
            *once = Once::Open(secret);
        }
    }

    /// Takes up a platform, once and for ever. S0.41
    pub(crate) fn configure(&self, address: &str, token: Secret) -> Result<(), String> {
        let address = address.parse().map_err(|why| format!("platformApiUrl {why}"))?;
        let token = token.try_into().map_err(|why| format!("runToken {why}"))?;
        let platform = Platform::at(address, token);
        *self.platform.borrow_mut() = Some(Rc::new(platform));
        *self.once.borrow_mut() = Once::Used;
        Ok(())
    }

    /// What the platform tells of earlier runs.
    pub(crate) async fn run_history(&self, query: &str) -> Result<(u16, Vec<u8>), FetchError> {
        let platform = self.platform.borrow().clone();
        match platform {
            Some(platform) => platform.run_history(query).await,
            None => Err(FetchError::Malformed("there is none")),
        }
    }

    /// Whose placeholder it is.
    pub(crate) fn provider_of(&self, placeholder: &Placeholder) -> Option<&ProviderId> {
        self.placeholders.get(placeholder)
    }

    /// The placeholder of a provider.
    pub(crate) fn placeholder_of(&self, provider: &ProviderId) -> Option<&Placeholder> {
        self.placeholders.iter().find(|(_, of)| *of == provider).map(|(placeholder, _)| placeholder)
    }

    /// Whether a text is what the command was given of a provider by value, compared in constant time.
    pub(crate) fn is_exposed(&self, provider: &ProviderId, text: &[u8]) -> bool {
        self.exposed.0.iter().any(|(of, value)| of == provider && value.matches(text))
    }

    /// A text that is written down or told, without what the command was given by value: it may quote what was asked for.
    pub(crate) fn veiled(&self, text: String) -> String {
        match self.exposed.1.scrub_text(text.as_bytes()) {
            Some((masked, _)) => String::from_utf8_lossy(&masked).into_owned(),
            None => text,
        }
    }

    /// Who answers for a provider. What is this program's own is known to nobody elsewhere, nor for them to know.
    fn platform_of(&self, provider: &ProviderId) -> Option<Rc<Platform>> {
        let platform = self.platform.borrow().clone();
        match ProviderId::is_own(provider.as_str()) {
            true => self.own.clone().or(platform.filter(|platform| platform.is_inherited())),
            false => platform,
        }
    }

    /// The credential of a provider, as it is now (C16).
    pub(crate) async fn of(&self, provider: &ProviderId) -> Result<Rc<FetchedCredential>, Denial> {
        let generation = self.generation.now();
        {
            let mut held = self.held.borrow_mut();
            if held.0 != generation {
                *held = (generation, HashMap::new());
            }
            // A platform elsewhere does not tell of changes, so it is asked each time.
            let is_told = self.platform_of(provider).is_none_or(|platform| platform.is_inherited());
            if let Some(found) = held.1.get(provider).filter(|_| is_told) {
                return Ok(Rc::clone(found));
            }
        }
        self.fetch(provider).await
    }

    /// Fetches a credential anew: the one in use was refused upstream.
    pub(crate) async fn fetch(&self, provider: &ProviderId) -> Result<Rc<FetchedCredential>, Denial> {
        let unavailable = |why: String| {
            Denial::new(Guard::Credential, format!("Credential fetch failed: {why}"))
                .with_rule(format!("provider {provider}"))
        };
        let generation = self.held.borrow().0;
        let Some(platform) = self.platform_of(provider) else {
            return Err(unavailable("this sidecar has no platform to ask".into()));
        };
        let whose = || OrganisationName::flag(self.organisation.as_ref());
        // A vault of this machine's is not asked where another platform is.
        let remedy = || match platform.is_inherited() {
            true => Hint::Command(format!("lockgate creds set {provider}{}", whose())),
            false => Hint::Advice("the platform that this sidecar asks has to have one".into()),
        };
        let credential = platform.credential(provider).await.map_err(|error| match error {
            FetchError::Absent => unavailable(format!("there is none for `{provider}`")).with_hint(remedy()),
            other => unavailable(other.to_string()),
        })?;
        self.look_for(&credential);
        let held = Rc::new(FetchedCredential {
            provider: provider.clone(),
            credential,
            rendered: RefCell::default(),
        });
        let mut cache = self.held.borrow_mut();
        // One that was fetched before a change is used for this request and not kept.
        if cache.0 == generation {
            cache.1.insert(provider.clone(), Rc::clone(&held));
        }
        drop(cache);
        Ok(held)
    }

    /// Fetches a credential anew that was refused upstream, or tells that there is no other.
    pub(crate) async fn renew(&self, refused: &FetchedCredential) {
        match self.fetch(refused.provider()).await {
            Ok(new) if !new.is_same_as(refused) => {}
            _ => self.report_refused(refused.provider()).await,
        }
    }

    /// What to look for in answers: what was written at an upstream with one request can be read with another.
    pub(crate) fn needles(&self) -> Needles {
        self.needles.borrow().1.clone()
    }

    fn look_for(&self, credential: &Credential) {
        let mut needles = self.needles.borrow_mut();
        let known = |new: &Secret, all: &[Secret]| all.iter().any(|old| old.matches(new.expose()));
        let mut news = false;
        for secret in credential.secrets() {
            if !known(secret, &needles.0) {
                needles.0.push(secret.clone());
                news = true;
            }
        }
        // Values that were rotated away long ago make room, and none that are still in use.
        let mut surplus = needles.0.len().saturating_sub(MOST_LOOKED_FOR);
        if surplus > 0 {
            let held = self.held.borrow();
            let in_use = |value: &Secret| {
                let current = held.1.values().flat_map(|held| held.credential.secrets());
                let exposed = self.exposed.0.iter().map(|(_, value)| value);
                current.chain(exposed).chain(credential.secrets()).any(|one| one.matches(value.expose()))
            };
            needles.0.retain(|value| {
                let goes = surplus > 0 && !in_use(value);
                surplus -= usize::from(goes);
                !goes
            });
        }
        if news {
            needles.1 = Needles::of(&needles.0);
        }
    }

    /// Tells the platform that a credential was refused upstream even when fresh.
    pub(crate) async fn report_refused(&self, provider: &ProviderId) {
        if let Some(platform) = self.platform_of(provider) {
            platform.report_refused(provider).await;
        }
    }
}

/// What an error of a template is to the agent; its text names fields, never values. S0.50
pub(crate) fn unfit(place: &str, error: &RenderError) -> Denial {
    let reason = match error {
        RenderError::Unresolved(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("{{{{{name}}}}}")).collect();
            format!("Unresolved placeholders in {place}: {}", names.join(", "))
        }
        other => format!("{place}: {other}"),
    };
    Denial::new(Guard::Unresolved, reason)
}

#[cfg(test)]
mod tests {
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
        let credentials =
            Credentials::new(CredentialConfig { exposed: vec![exposed], ..CredentialConfig::default() });
        for text in ["http://abcdef0123456789.example.com/", "http://example.com/AbCdEf0123456789"] {
            let veiled = credentials.veiled(text.into());
            assert!(
                !veiled.to_ascii_lowercase().contains("abcdef") && veiled.contains("example.com"),
                "{veiled}"
            );
        }
    }

    #[test]
    fn none_that_is_in_use_is_let_go_for_others() {
        let exposed = ("one".parse().unwrap(), Secret::from_text("exposed-value".into()));
        let credential_config = CredentialConfig { exposed: vec![exposed], ..CredentialConfig::default() };
        let credentials = Credentials::new(credential_config);
        let is_found = |text: &str| credentials.needles().scrub_text(text.as_bytes()).is_some();
        let value = |kind: &str, number: usize| format!("{kind}-value-{number:04}");
        // One of more fields than are kept of what was rotated away.
        credentials.look_for(&credential((0..MOST_LOOKED_FOR + 6).map(|n| value("wide", n))));
        assert!((0..MOST_LOOKED_FOR + 6).all(|n| is_found(&value("wide", n))));
        // Rotated: by now only the latest are in use.
        for number in 0..MOST_LOOKED_FOR {
            credentials.look_for(&credential([value("narrow", number)]));
        }
        assert!(is_found("exposed-value") && is_found(&value("narrow", MOST_LOOKED_FOR - 1)));
        assert!(!is_found(&value("wide", 0)) && credentials.needles.borrow().0.len() <= MOST_LOOKED_FOR);
    }
}
