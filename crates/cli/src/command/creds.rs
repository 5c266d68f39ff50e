//! `lockgate creds` and `lockgate keys`: credentials of the person's own vault. Values go in and never come out again.

use policy::{ProviderId, provider_names};
use runtime::{Credentials, StateDirectory, ValueSource};
use sandbox::Caller;

use crate::arguments::{Creds, Keys, ValueFlags};
use crate::exit::{Done, Usage};
use crate::output::{self, Form};

pub(crate) fn creds(command: Creds) -> Done {
    match command {
        Creds::Set { provider, field, value } => set(&provider, field.as_deref(), &value),
        Creds::Ls { json, quiet } => ls(Form::of(json), quiet),
        Creds::Show { provider, json } => show(&provider, Form::of(json)),
        Creds::Rm { providers } => rm(&providers),
        Creds::ImportEnv { names } => import_env(&names),
    }
}

pub(crate) fn keys(command: Keys) -> Done {
    match command {
        Keys::Rotate { json } => rotate(Form::of(json)),
    }
}

fn vault() -> Result<Credentials, anyhow::Error> {
    let caller = Caller::current()?;
    Ok(Credentials::open(&caller, &StateDirectory::of(&caller)?)?)
}

fn named(text: &str) -> Result<ProviderId, anyhow::Error> {
    text.parse()
        .map_err(|why: &str| Usage::error(format!("`{}`: {why}", output::plain(text)), "lockgate creds ls"))
}

fn set(provider: &str, field: Option<&str>, value: &ValueFlags) -> Done {
    let provider = named(provider)?;
    let what = format!("{} of {provider}", field.unwrap_or("access token"));
    let source = match (value.stdin, &value.from_file, &value.from_env, value.from_command.as_slice()) {
        (true, ..) => ValueSource::Stdin,
        (_, Some(path), ..) => ValueSource::File(path.clone()),
        (_, _, Some(name), _) => ValueSource::Variable(name.clone()),
        (.., [_, ..]) => ValueSource::Command(value.from_command.clone()),
        _ => ValueSource::Prompt(what),
    };
    vault()?.set(&provider, field, &source)?;
    output::tell(&format!("stored; a run uses it with --provider {provider}"));
    Ok(0)
}

fn ls(form: Form, quiet: bool) -> Done {
    for stored in vault()?.list()? {
        let line = match form {
            _ if quiet => stored.provider,
            Form::Json => serde_json::json!({
                "provider": stored.provider, "fields": stored.fields, "updated": stored.updated,
            })
            .to_string(),
            Form::Text => {
                format!("{:<24}  {}  {}", stored.provider, stored.updated, stored.fields.join(", "))
            }
        };
        output::data(&line)?;
    }
    Ok(0)
}

/// The lengths and not the values: enough to see that something is there and can be decrypted.
fn show(provider: &str, form: Form) -> Done {
    let provider = named(provider)?;
    let Some(fields) = vault()?.check(&provider)? else {
        return Err(Usage::error(
            format!("there is no credential for `{provider}`"),
            format!("lockgate creds set {provider}"),
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

fn rm(providers: &[String]) -> Done {
    let vault = vault()?;
    for provider in providers {
        let provider = named(provider)?;
        if !vault.remove(&provider)? {
            return Err(Usage::error(
                format!("there is no credential for `{provider}`"),
                "lockgate creds ls",
            ));
        }
    }
    Ok(0)
}

/// Takes the keys that the environment holds under the usual names of the built-in providers.
fn import_env(names: &[String]) -> Done {
    let vault = vault()?;
    let mut taken = 0;
    for (provider, variables) in policy::provider_variables()? {
        let wanted = |name: &&String| names.is_empty() || names.contains(name);
        let found = variables
            .iter()
            .filter(wanted)
            .find(|name| std::env::var_os(name).is_some_and(|v| !v.is_empty()));
        if let Some(name) = found {
            vault.set(&provider, None, &ValueSource::Variable(name.clone()))?;
            output::tell(&format!("{provider}: taken from {name}"));
            taken += 1;
        }
    }
    if taken == 0 {
        let known: Vec<String> = provider_names()?.into_iter().map(|(name, _)| name).collect();
        return Err(Usage::error(
            "no variable of a known provider is set",
            format!("the providers are {}", known.join(", ")),
        ));
    }
    output::tell("the variables themselves are still set in your shell");
    Ok(0)
}

fn rotate(form: Form) -> Done {
    let done = vault()?.rotate()?;
    match form {
        Form::Json => output::data(
            &serde_json::json!({
                "rewrapped": done.rewrapped, "already": done.already,
                "failed": done.failed.iter().map(|(id, why)| serde_json::json!({"provider": id, "why": why})).collect::<Vec<_>>(),
            })
            .to_string(),
        )?,
        Form::Text => {
            output::data(&format!("{} rewrapped, {} were already", done.rewrapped, done.already))?;
            for (id, why) in &done.failed {
                output::tell(&format!("{id}: {why}"));
            }
        }
    }
    Ok(u8::from(!done.failed.is_empty()))
}
