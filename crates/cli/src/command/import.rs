//! `lockgate creds import-env`: stores keys of the environment in vaults. All destinations are settled before the first key is
//! stored.

use std::collections::BTreeMap;

use policy::{OrganisationName, ProviderId, provider_names};
use runtime::{Credentials, StateDirectory, SystemKey, SystemKeys, ValueSource};
use sandbox::Caller;

use super::replaced::tell_replaced;
use crate::exit::{Done, Usage};
use crate::output;

/// The source of a key.
enum Place<'a> {
    /// A variable of its own, and those of the same provider that hold another value.
    Variable { name: String, differ: Vec<String> },
    /// The platform's list, `SYSTEM_PROVIDER_KEYS`.
    System(&'a SystemKey),
}

/// Keys by vault and provider.
type Found<'a> = BTreeMap<(Option<OrganisationName>, ProviderId), Place<'a>>;

/// Collects keys under the usual variable names of built-in providers, and those of the platform's list. Each entry of the list
/// goes to the vaults it names; if an organisation was asked for, only to that one's.
pub(super) fn import_env(names: &[String], organisation: Option<&OrganisationName>) -> Done {
    let caller = super::caller()?;
    refuse_unknown(names)?;
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let system = if is_wanted(SystemKeys::VARIABLE) { SystemKeys::of(&caller)? } else { None };
    let mut found = Found::new();
    for (provider, variables) in policy::provider_variables()? {
        if let Some(place) = variable_of(variables.into_iter().filter(|name| is_wanted(name))) {
            found.insert((organisation.cloned(), provider), place);
        }
    }
    let of_others = match &system {
        Some(keys) => add_system(keys, organisation, &mut found)?,
        None => 0,
    };
    if found.is_empty() {
        return Err(nothing(names, of_others, organisation)?);
    }
    store(&caller, &found)?;
    if of_others > 0 {
        let name = organisation.map(OrganisationName::as_str).unwrap_or_default();
        output::tell(&format!("{}: {of_others} left where they are, not of `{name}`", SystemKeys::VARIABLE));
    }
    if let Some(left_out) = system.as_ref().map(SystemKeys::left_out).filter(|fields| !fields.is_empty()) {
        let fields = left_out.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        output::tell(&format!(
            "{}: left out {fields}; a policy says which addresses and models a key is for",
            SystemKeys::VARIABLE
        ));
    }
    output::tell("the variables themselves are still set in your shell");
    Ok(0)
}

/// Finds the first of a provider's variables that is set.
fn variable_of<'a>(variables: impl Iterator<Item = String>) -> Option<Place<'a>> {
    let value = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let mut set = variables.filter_map(|name| Some((value(&name)?, name)));
    let (taken, name) = set.next()?;
    let differ = set.filter(|(value, _)| *value != taken).map(|(_, name)| name).collect();
    Some(Place::Variable { name, differ })
}

/// Refuses a variable that belongs to no provider, which would otherwise read as one that is not set.
fn refuse_unknown(names: &[String]) -> Result<(), anyhow::Error> {
    let known: Vec<String> =
        policy::provider_variables()?.into_iter().flat_map(|(_, variables)| variables).collect();
    let is_known = |name: &&String| *name == SystemKeys::VARIABLE || known.contains(name);
    match names.iter().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(unknown) => Err(Usage::error(
            format!("`{}` is the variable of no built-in provider", output::plain(unknown)),
            format!(
                "{}lockgate creds set PROVIDER --from-env NAME takes any other",
                policy::did_you_mean(unknown, known.iter().map(String::as_str))
            ),
        )),
    }
}

/// Adds the requested keys of the platform's list, and reports how many were left out.
fn add_system<'a>(
    keys: &'a SystemKeys,
    organisation: Option<&OrganisationName>,
    found: &mut Found<'a>,
) -> Result<usize, anyhow::Error> {
    let mut of_others = 0;
    for (whose, key) in keys.assigned() {
        if organisation.is_some() && whose != organisation {
            of_others += 1;
            continue;
        }
        let owner = (whose.cloned(), key.provider().clone());
        if let Some(Place::Variable { name, .. }) = found.get(&owner) {
            let what = format!("{name} and {} both hold a key of {}", SystemKeys::VARIABLE, key.provider());
            return Err(Usage::error(
                what,
                format!("name the one you mean: lockgate creds import-env {name}"),
            ));
        }
        found.insert(owner, Place::System(key));
    }
    Ok(of_others)
}

fn store(caller: &Caller, found: &Found<'_>) -> Result<(), anyhow::Error> {
    let state = StateDirectory::of(caller)?;
    // All are read before the first is stored.
    let mut values = Vec::new();
    for from in found.values() {
        values.push(match from {
            Place::Variable { name, .. } => Some(ValueSource::Variable(name.clone()).value()?),
            Place::System(_) => None,
        });
    }
    for (((whose, provider), from), value) in found.iter().zip(values) {
        let vault = Credentials::open(caller, &state, whose.clone())?;
        let (name, differ) = match from {
            Place::Variable { name, differ } => (name.as_str(), differ.as_slice()),
            Place::System(key) => {
                tell_replaced(provider, &vault.keep(key)?);
                (SystemKeys::VARIABLE, &[][..])
            }
        };
        if let Some(value) = value {
            tell_replaced(provider, &vault.put(provider, value)?);
        }
        let whose = whose.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
        let left = match differ {
            [] => String::new(),
            [other, ..] => format!(
                "; another value is in {}, and was left: lockgate creds import-env {other} takes it instead",
                differ.join(", ")
            ),
        };
        output::tell(&format!("{provider}{whose}: taken from {name}{left}"));
    }
    Ok(())
}

/// Explains why there is nothing to import.
fn nothing(
    names: &[String],
    of_others: usize,
    organisation: Option<&OrganisationName>,
) -> Result<anyhow::Error, anyhow::Error> {
    if let Some(name) = organisation.filter(|_| of_others > 0) {
        let what = format!("{} holds no key of `{name}`", SystemKeys::VARIABLE);
        return Ok(Usage::error(what, "an entry says whose key it is in its `organizations`"));
    }
    if !names.is_empty() {
        let what = format!("not set, or empty: {}", names.join(", "));
        return Ok(Usage::error(what, "set it in this shell, or lockgate creds set PROVIDER"));
    }
    let known: Vec<String> = provider_names()?.into_iter().map(|(name, _)| name).collect();
    let what = "no variable of a known provider is set";
    Ok(Usage::error(what, format!("the providers are {}", known.join(", "))))
}
