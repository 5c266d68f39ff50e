//! Decides where the credentials of a sidecar that serves alone come from: a platform that the environment names, one that `/configure`
//! will name, or else a vault of this machine, an organisation's or the person's own, for which this process answers.

use std::path::PathBuf;
use std::sync::Arc;

use credential::{Placeholder, Secret, Vault};
use policy::{Policy, ProviderId};
use sandbox::Caller;

use super::Standalone;
use super::inside::{Outlets, PlatformRoute};
use super::outlet::Outlet;
use crate::error::Error;
use crate::given_file::Readers;
use crate::missing_credential::MissingCredential;
use crate::platform::{History, Platform, Sources};
use crate::random_ids::placeholders;
use crate::sidecar::SidecarCredentials;
use crate::state::StateDirectory;
use crate::vault;

/// The variables by which a platform tells a sidecar of itself. S0.23, S0.41
const TOKEN: &str = "RUN_TOKEN";
const PLATFORM: &str = "PLATFORM_API_URL";
const CONFIGURE: &str = "CONFIG_SECRET";

/// What a sidecar has for credentials.
pub(super) struct Provided {
    pub(super) credentials: SidecarCredentials,
    pub(super) route: PlatformRoute,
    pub(super) outlets: Outlets,
    /// Answers in this process, where it is asked for anything.
    pub(super) platform: Option<Platform>,
    /// What the vault out of which it answers has not. It may be stored while the sidecar serves.
    pub(super) missing: Vec<MissingCredential>,
}

/// Makes the placeholders, and decides where credentials come from.
///
/// # Errors
/// When a platform is named by half or beside an organisation, or a file or the vault cannot be used.
pub(super) fn provide(sidecar: &Standalone, caller: &mut Caller) -> Result<Provided, Error> {
    let (policy, organisation) = (&sidecar.policy, sidecar.organisation.as_ref());
    let placeholders = placeholders(policy)?;
    let find =
        |path: &Option<PathBuf>, readers| path.as_ref().map(|path| Outlet::find(path, readers)).transpose();
    let outlets = Outlets {
        environment: find(&sidecar.environment, Readers::NotEverybody)?
            .map(|it| (it, lines(policy, &placeholders))),
        authority: find(&sidecar.authority, Readers::Everybody)?,
    };
    let placeholders = placeholders.into_iter().map(|(p, provider)| (p, provider.id().clone())).collect();
    let mut credentials = SidecarCredentials { placeholders, ..SidecarCredentials::default() };
    let route = route_of(caller)?;
    let elsewhere = match route {
        PlatformRoute::Here => None,
        PlatformRoute::Named(..) => Some(PLATFORM),
        PlatformRoute::Awaited(_) => Some(CONFIGURE),
    };
    let (platform, missing) = match (elsewhere, organisation.cloned()) {
        (Some(platform), Some(organisation)) => {
            return Err(Error::OrganisationBesidePlatform { organisation, platform });
        }
        (Some(_), None) => (answer_for_proxies(policy, caller, &mut credentials)?, Vec::new()),
        (None, _) => {
            let (platform, missing) = answer_from_vault(sidecar, caller, &mut credentials)?;
            (Some(platform), missing)
        }
    };
    Ok(Provided { credentials, route, outlets, platform, missing })
}

/// Returns the platform elsewhere that the environment names, or else will have named: a sidecar that is started with its run serves no
/// other.
fn route_of(caller: &Caller) -> Result<PlatformRoute, Error> {
    // A value that came out of a file often ends with a newline.
    let variable = |name: &str| {
        let text = caller.variable(name).map(|text| text.trim_end_matches(['\r', '\n']));
        text.filter(|text| !text.is_empty())
    };
    let secret = |name: &str| variable(name).map(|text| Secret::from_text(text.to_owned()));
    match (secret(TOKEN), variable(PLATFORM)) {
        (Some(token), Some(address)) => parse_platform(address, token),
        (None, None) => Ok(secret(CONFIGURE).map_or(PlatformRoute::Here, PlatformRoute::Awaited)),
        // Credentials would come out of another vault than the one that whoever set the variable believes.
        (Some(_), None) => Err(Error::HalfPlatform { set: TOKEN, lacks: PLATFORM }),
        (None, Some(_)) => Err(Error::HalfPlatform { set: PLATFORM, lacks: TOKEN }),
    }
}

/// Answers for the users and passwords of the environment's proxies, which no platform elsewhere knows, where the policy uses them.
fn answer_for_proxies(
    policy: &Policy,
    caller: &mut Caller,
    credentials: &mut SidecarCredentials,
) -> Result<Option<Platform>, Error> {
    let sources = Sources::without_vault(caller)?;
    if !providers_used(policy).any(is_own) {
        return Ok(None);
    }
    let (platform, link) = Platform::pair(Some(sources), policy, None)?;
    credentials.own = Some(link);
    Ok(Some(platform))
}

/// Answers out of a vault of this machine, and returns what it has not. None is opened where nothing in it would be asked for.
fn answer_from_vault(
    Standalone { policy, organisation, run, .. }: &Standalone,
    caller: &mut Caller,
    credentials: &mut SidecarCredentials,
) -> Result<(Platform, Vec<MissingCredential>), Error> {
    let organisation = organisation.as_ref();
    let directory = StateDirectory::of(caller);
    let workspace = caller.directory.clone();
    let history = |directory| History { directory, workspace, run: run.clone() };
    let history = directory.as_ref().ok().cloned().map(history);
    let (sources, missing) = match providers_used(policy).all(is_own) {
        true => (Sources::without_vault(caller)?, Vec::new()),
        false => {
            let directory = directory?;
            credentials.generation = Some(Vault::generation_file(&directory.vault(organisation))?);
            let sources = Sources::prepare(caller, &directory, organisation)?;
            (sources, vault::missing(policy, organisation, &directory)?)
        }
    };
    credentials.organisation = organisation.cloned();
    let (platform, link) = Platform::pair(Some(sources), policy, history)?;
    credentials.platform = Some(link);
    Ok((platform, missing))
}

/// Returns the providers whose credentials a sidecar may ask for.
fn providers_used(policy: &Policy) -> impl Iterator<Item = &ProviderId> {
    let proxies = policy.proxies().declared().filter_map(|proxy| proxy.credential.as_ref());
    policy.providers().map(|provider| provider.id()).chain(proxies)
}

fn is_own(id: &ProviderId) -> bool {
    ProviderId::is_own(id.as_str())
}

/// Parses the platform that the environment names, and the token it is asked with.
fn parse_platform(address: &str, token: Secret) -> Result<PlatformRoute, Error> {
    let bad = |variable: &str, why: &str| Error::ParseSettings { path: variable.into(), why: why.into() };
    let form = "write it as http://ADDRESS:PORT, with an address and no name";
    let address = address.parse().map_err(|_| bad(PLATFORM, form))?;
    let token = token.try_into().map_err(|why| bad(TOKEN, &format!("it {why}")))?;
    Ok(PlatformRoute::Named(address, token))
}

/// Returns the variables with placeholders that the caller's own sandbox is to be given, as lines.
fn lines(policy: &Policy, placeholders: &[(Placeholder, Arc<policy::Provider>)]) -> String {
    let mut lines = String::new();
    for (placeholder, provider) in placeholders {
        for name in provider.environment() {
            lines.push_str(&format!("{name}={placeholder}\n"));
        }
    }
    debug_assert_eq!(policy.providers().count(), placeholders.len());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Permanently locked when the sidecar was started with RUN_TOKEN already in the environment"; one of a pool has its one `/configure`.
    #[test]
    fn a_sidecar_that_is_started_with_its_run_is_not_configured_for_another() {
        let route = |environment: &[(&str, &str)]| {
            let mut caller = Caller::new(1000, 1000, "/");
            caller.environment =
                environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
            route_of(&caller).unwrap()
        };
        let run = [(TOKEN, "token"), (PLATFORM, "http://127.0.0.1:9100")];
        let secret = (CONFIGURE, "secret");
        assert!(matches!(route(&[run[0], run[1], secret]), PlatformRoute::Named(..)));
        assert!(matches!(route(&run), PlatformRoute::Named(..)));
        assert!(matches!(route(&[secret]), PlatformRoute::Awaited(_)));
        assert!(matches!(route(&[]), PlatformRoute::Here));
    }
}
