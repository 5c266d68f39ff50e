//! `lockgate creds` and `lockgate keys`: credentials in the vaults of the person and of organisations. No command prints a value.

use std::collections::BTreeSet;

use policy::{OrganisationName, ProviderId};
use runtime::{Credentials, Entry, FailedRecord, FieldName, Listing, Rotation, StateDirectory, ValueSource};

use super::import;
use super::replaced::tell_replaced;
use crate::arguments::{Creds, Keys, ValueFlags, Whose};
use crate::exit::{Done, Usage};
use crate::output::{self, Form, ListForm};

pub(crate) fn creds(command: Creds) -> Done {
    match command {
        Creds::Set { provider, given, field, value, whose } => {
            if provider.contains('=') || !given.is_empty() {
                return Err(refused_value());
            }
            set(&provider, field.as_deref(), &value, whose)
        }
        Creds::Ls { json, quiet, whose } => ls(ListForm::of(json, quiet), whose),
        Creds::Show { provider, json, whose } => show(&provider, Form::of(json), whose),
        Creds::Rm { providers, whose } => rm(&providers, whose),
        Creds::ImportEnv { names, whose } => import::import_env(&names, whose.org.as_ref()),
    }
}

pub(crate) fn keys(command: Keys) -> Done {
    match command {
        Keys::Rotate { json } => rotate(Form::of(json)),
    }
}

fn vault(whose: Whose) -> Result<Credentials, anyhow::Error> {
    let caller = super::caller()?;
    Ok(Credentials::open(&caller, &StateDirectory::of(&caller)?, whose.org)?)
}

fn named(text: &str) -> Result<ProviderId, anyhow::Error> {
    named_or(text, "lockgate creds ls")
}

/// Parses the name of a provider. One that is built in may have been meant.
fn named_or(text: &str, remedy: &str) -> Result<ProviderId, anyhow::Error> {
    let names = policy::provider_names()?;
    text.parse().map_err(|why: &str| {
        let names = names.iter().map(|(name, _)| name.as_str());
        let remedy = match policy::did_you_mean(&text.to_ascii_lowercase(), names) {
            meant if meant.is_empty() => remedy.to_owned(),
            meant => meant.trim_end().to_owned(),
        };
        Usage::error(format!("`{}`: {why}", output::plain(text)), remedy)
    })
}

/// Refuses a value given as an extra word or as `NAME=VALUE`.
fn refused_value() -> anyhow::Error {
    Usage::error(
        "a value was given on the command line, where others can read it and the shell keeps it",
        "leave it out to be asked for it, or use --stdin, --from-file, --from-env or --from-command; have a new key \
         made if that one matters",
    )
}

fn set(provider: &str, field: Option<&str>, value: &ValueFlags, whose: Whose) -> Done {
    let provider = named_or(provider, "as in `lockgate creds set github`")?;
    if ProviderId::is_own(provider.as_str()) {
        let what =
            format!("`{provider}`: names under `@lockgate/` are this program's own, and no run would use it");
        return Err(Usage::error(
            what,
            "store it under another name; the user and password of PROXY_URL stay in that variable",
        ));
    }
    let name = field.map(field_name).transpose()?;
    for note in slips(&provider, name.as_ref())? {
        output::tell(&format!("note: {note}"));
    }
    let what = format!("{} of {provider}", field.unwrap_or("access token"));
    let source = match (value.stdin, &value.from_file, &value.from_env, value.from_command.as_slice()) {
        (true, ..) => ValueSource::Stdin,
        (_, Some(path), ..) => ValueSource::File(path.clone()),
        (_, _, Some(name), _) => ValueSource::Variable(name.clone()),
        (.., [_, ..]) => ValueSource::Command(value.from_command.clone()),
        _ => ValueSource::Prompt(what),
    };
    let vault = vault(whose)?;
    let set = vault.set(&provider, name.unwrap_or_default(), &source)?;
    tell_replaced(&provider, &set.stored);
    let whose = OrganisationName::flag(vault.organisation());
    let with = if whose.is_empty() { String::new() } else { format!(", and with{whose}") };
    output::tell(&match policy::provider_names()?.iter().any(|(name, _)| name == provider.as_str()) {
        true => format!("stored; a run uses it with --provider {provider}{whose}"),
        false => format!(
            "stored; there is no built-in provider of that name: a run uses it where its policy has a [[provider]] with id = \"{provider}\", or a \
             [[proxy]] with credential = \"{provider}\"{with}"
        ),
    });
    if let Some(mistaken) = set.mistaken {
        output::tell(&format!("note: {mistaken}{whose}"));
    }
    Ok(0)
}

/// Parses the name of a field. What is none is not repeated: it may be a value in the wrong place.
fn field_name(text: &str) -> Result<FieldName, anyhow::Error> {
    text.parse::<FieldName>()
        .map_err(|why| Usage::error(format!("--field: {why}"), "as in `--field username`"))
}

/// Returns what of a credential's name and field may be a slip. Both may be meant: a policy can declare any provider, and a request can name
/// any field.
fn slips(provider: &ProviderId, field: Option<&FieldName>) -> Result<Vec<String>, anyhow::Error> {
    let names = policy::provider_names()?;
    let is_built_in = names.iter().any(|(name, _)| name == provider.as_str());
    let meant = policy::did_you_mean(provider.as_str(), names.iter().map(|(name, _)| name.as_str()));
    let mut slips = Vec::new();
    if !is_built_in && !meant.is_empty() {
        slips.push(format!("{meant}There is no built-in provider `{provider}`"));
    }
    let fields = policy::provider_fields(provider.as_str())?;
    if let Some(field) =
        field.map(FieldName::as_str).filter(|field| !fields.is_empty() && !fields.contains(field))
    {
        let fields: Vec<String> = fields.iter().map(|name| format!("`{name}`")).collect();
        slips.push(format!(
            "`{provider}` puts {} into requests by itself; `{field}` goes only where a request names it",
            fields.join(" and ")
        ));
    }
    Ok(slips)
}

/// Lists the readable credentials, then the unreadable ones with their remedies.
fn ls(form: ListForm, whose: Whose) -> Done {
    let (caller, whose) = (super::caller()?, whose.org.as_ref());
    let Listing { entries, failed } = Credentials::list(&caller, &StateDirectory::to_read(&caller)?, whose)?;
    let of = OrganisationName::flag(whose);
    if entries.is_empty() && failed.is_empty() && form == ListForm::Text {
        output::tell(&format!("no credential is stored; lockgate creds set PROVIDER{of} stores one"));
    }
    for Entry { id, fields, updated } in entries {
        let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
        let line = match form {
            ListForm::Names => id,
            ListForm::Json => {
                serde_json::json!({"provider": id, "fields": fields, "updated": updated}).to_string()
            }
            ListForm::Text => format!("{id:<24}  {updated}  {}", fields.join(", ")),
        };
        output::answer(&line)?;
    }
    for FailedRecord { id, why } in &failed {
        output::tell(&format!("{id}: failed to {why} (`lockgate creds rm {id}{of}` removes it)"));
    }
    Ok(u8::from(!failed.is_empty()))
}

/// Prints the length of each field, which shows that it is there and can be decrypted, and never its value.
fn show(provider: &str, form: Form, whose: Whose) -> Done {
    let (provider, vault) = (named(provider)?, vault(whose)?);
    let Some(fields) = vault.check(&provider)? else {
        return Err(Usage::error(
            format!("there is no credential for `{provider}`"),
            format!("lockgate creds set {provider}{}", OrganisationName::flag(vault.organisation())),
        ));
    };
    for (name, length) in fields {
        let line = match form {
            Form::Json => serde_json::json!({"provider": provider.as_str(), "field": name, "octets": length})
                .to_string(),
            Form::Text => format!("{name:<24}  {length} octets"),
        };
        output::data(&line)?;
    }
    Ok(0)
}

fn rm(providers: &[String], whose: Whose) -> Done {
    let (directory, whose) = (StateDirectory::of(&super::caller()?)?, whose.org.as_ref());
    let providers: BTreeSet<ProviderId> =
        providers.iter().map(|name| named(name)).collect::<Result<_, _>>()?;
    // All are parsed before the first is removed, so that a misspelled name removes nothing.
    let stored = Credentials::stored(&directory, whose)?;
    if let Some(unknown) = providers.iter().find(|it| !stored.iter().any(|id| id == it.as_str())) {
        return Err(Usage::error(
            format!("there is no credential for `{unknown}`"),
            format!("lockgate creds ls{}", OrganisationName::flag(whose)),
        ));
    }
    for provider in &providers {
        Credentials::remove(&directory, whose, provider)?;
        output::tell(&format!("removed {provider}"));
    }
    Ok(0)
}

/// Rewraps the records of every vault: an old key is needed as long as one record is wrapped by it.
fn rotate(form: Form) -> Done {
    let caller = super::caller()?;
    let (mut rewrapped, mut already, mut failed) = (0, 0, Vec::new());
    for vault in Credentials::open_all(&caller, &StateDirectory::of(&caller)?)? {
        let done: Rotation = vault.rotate()?;
        rewrapped += done.rewrapped;
        already += done.already;
        let whose = vault.organisation().map(ToString::to_string);
        failed.extend(done.failed.into_iter().map(|record| (whose.clone(), record)));
    }
    match form {
        Form::Json => {
            let row = |(whose, FailedRecord { id, why }): &(Option<String>, FailedRecord)| {
                let mut row = serde_json::json!({"provider": id, "why": why});
                if let Some(whose) = whose {
                    row["org"] = whose.as_str().into();
                }
                row
            };
            let failed: Vec<_> = failed.iter().map(row).collect();
            let told = serde_json::json!({"rewrapped": rewrapped, "already": already, "failed": failed});
            output::answer(&told.to_string())?;
        }
        Form::Text => {
            output::answer(&format!("{rewrapped} rewrapped, {already} already up to date"))?;
            for (whose, FailedRecord { id, why }) in &failed {
                let whose = whose.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
                output::tell(&format!("{id}{whose}: failed to {why}"));
            }
        }
    }
    Ok(u8::from(!failed.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_told_with_the_one_that_was_meant() {
        for (written, remedy) in
            [("GitHub", "did you mean `github`?"), ("GITHBU", "did you mean `github`?"), ("a b", "elsewhere")]
        {
            let refused = named_or(written, "elsewhere").unwrap_err();
            assert_eq!(crate::exit::code_and_remedy(&refused), (2, Some(remedy.into())), "{written}");
        }
    }

    #[test]
    fn what_is_no_field_is_refused_before_anything_is_told_of_it() {
        for text in ["s3cr3t key", "", "s3cr3t-key"] {
            let error = field_name(text).unwrap_err();
            assert_eq!(crate::exit::code_and_remedy(&error).0, 2);
            assert!(!error.to_string().contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn a_name_or_a_field_that_may_be_a_slip_is_told_before_the_value_is_asked_for() {
        for (provider, field, told) in [
            ("antropic", None, Some("did you mean `anthropic`?")),
            ("anthropic", Some("acces_token"), Some("`acces_token` goes only where a request names it")),
            ("anthropic", Some("access_token"), None),
            ("anthropic", None, None),
            ("of-our-own", Some("key"), None),
        ] {
            let field = field.map(|name| field_name(name).unwrap());
            let slips = slips(&provider.parse().unwrap(), field.as_ref()).unwrap();
            assert_eq!(slips.len(), usize::from(told.is_some()), "{provider}: {slips:?}");
            assert!(told.iter().all(|told| slips[0].contains(told)), "{provider}: {slips:?}");
        }
    }
}
