//! Credentials that a run gives to its command by value, because the policy names a variable for one.
//!
//! They are taken out of the vault, and refused, before anything is made. Until the command's own sandbox begins, each is kept in a
//! file without a name, so that no companion's process ever has one in memory. The vault stays closed if none is asked for.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Deref;

use credential::{Credential, Secret};
use policy::{ProviderId, RunSpec};
use sandbox::Plan;
use zeroize::Zeroize;

use crate::error::{Error, plumbing};
use crate::missing_credential::{MissingCredential, Needed};
use crate::stash::Stash;
use crate::vault::VaultLater;

/// The variables that will hold a credential, and their values.
#[derive(Debug, Default)]
pub(crate) struct Exposed(Vec<(String, ProviderId, Stash)>);

impl Exposed {
    /// Takes the exposed credentials out of the vault, which is opened for this and closed again before anything is forked.
    pub(crate) fn take(spec: &RunSpec, vault: &VaultLater) -> Result<Self, Error> {
        let asked = spec.policy.providers().flat_map(|it| it.exposed().iter().map(|name| (name, it.id())));
        let mut asked = asked.peekable();
        if asked.peek().is_none() {
            return Ok(Self::default());
        }
        let vault = vault.open()?;
        let one = |(variable, provider): (&String, &ProviderId)| {
            let found = vault.get(provider.as_str())?;
            let found = found.ok_or_else(|| {
                let needed = Needed::Provider(provider.to_string());
                Error::NoCredential(MissingCredential { needed, organisation: spec.organisation.clone() })
            })?;
            let value = fit(&found).map_err(|(why, remedy)| Error::Expose {
                variable: variable.clone(),
                why: format!("the credential of `{provider}` {why}"),
                remedy: remedy.replace("NAME", provider.as_str()),
            })?;
            Ok((variable.clone(), provider.clone(), Stash::keep(value)?))
        };
        asked.map(one).collect::<Result<_, Error>>().map(Self)
    }

    /// Returns the values that the sidecar may meet in traffic.
    pub(crate) fn values(&self) -> Result<Vec<(ProviderId, Secret)>, Error> {
        let read = |(_, provider, kept): &(String, ProviderId, Stash)| Ok((provider.clone(), kept.read()?));
        self.0.iter().map(read).collect::<std::io::Result<_>>().map_err(plumbing("read what is exposed"))
    }

    /// Returns the plan with the values in the command's variables.
    pub(crate) fn put_into<'a>(&'a self, plan: &'a Plan) -> Result<Filled<'a>, Error> {
        let mut filled = Filled { plan: Cow::Borrowed(plan), variables: self };
        for (variable, _, kept) in &self.0 {
            let value = kept.read().map_err(plumbing("read what is exposed"))?;
            let text = std::str::from_utf8(value.expose()).unwrap_or_default().to_owned();
            let environment = &mut filled.plan.to_mut().environment;
            environment.retain(|(name, _)| name != variable);
            environment.push((variable.clone(), text));
        }
        Ok(filled)
    }
}

/// A plan whose environment holds credentials, wiped when it is dropped.
pub(crate) struct Filled<'a> {
    plan: Cow<'a, Plan>,
    variables: &'a Exposed,
}

impl Deref for Filled<'_> {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        let Cow::Owned(plan) = &mut self.plan else { return };
        for (name, value) in &mut plan.environment {
            if self.variables.0.iter().any(|(variable, ..)| variable == name) {
                value.zeroize();
            }
        }
    }
}

/// Says of each variable that `env` passes or sets to a private key, a companion's too, what that means. Whoever names it there has
/// decided, so the run goes on.
pub(crate) fn private_keys(spec: &RunSpec, plan: &Plan) -> Vec<String> {
    let named: BTreeSet<&String> = spec.env.set.iter().map(|(name, _)| name).chain(&spec.env.pass).collect();
    let own = plan.environment.iter().filter(|(name, _)| named.contains(name));
    let own = own.map(|variable| (String::new(), variable));
    let companions = spec.companions.iter().flat_map(|companion| {
        companion.env.iter().map(|variable| (format!("companion `{}`: ", companion.name), variable))
    });
    let is_key = |value: &str| Secret::from_text(value.to_owned()).holds_private_key();
    let keys = own.chain(companions).filter(|(_, (_, value))| is_key(value));
    let told = keys.map(|(whose, (name, _))| {
        format!(
            "{whose}`{name}` holds a private key: whatever runs inside can read it, and sign with it until it is revoked. Let what signs with it \
             run outside, and give the command a token that it gets"
        )
    });
    told.collect()
}

/// Returns the value that the credential's placeholder stands for, if it may be given out; otherwise why not, and what helps.
fn fit(credential: &Credential) -> Result<&Secret, (&'static str, &'static str)> {
    let name = credential.main_name();
    let value = credential.field(name.as_str()).ok_or((
        "has several fields, and none of them is the one that a placeholder stands for",
        "lockgate creds set NAME, which sets its `access_token`",
    ))?;
    if value.holds_private_key() {
        return Err((
            "is a private key, and no private key enters a sandbox",
            "leave `expose` out, and run what signs with the key outside; a token that it gets can be exposed",
        ));
    }
    match std::str::from_utf8(value.expose()) {
        Ok(_) => Ok(value),
        Err(_) => Err((
            "is not text, and a variable holds text",
            "leave `expose` out: the placeholder is good wherever the credential is",
        )),
    }
}

#[cfg(test)]
mod tests {
    use credential::Value;
    use policy::{Layers, Origin};
    use sandbox::{Additions, Caller, Host, MountsOnceRead};

    use super::*;

    fn credential(fields: &[(&str, &[u8])]) -> Credential {
        let mut all = Credential::default();
        for (name, value) in fields {
            all.set(name.parse().unwrap(), Value::new(Secret::new(value.to_vec())).unwrap());
        }
        all
    }

    #[test]
    fn what_a_placeholder_stands_for_is_given_out() {
        let given = |fields: &[(&str, &[u8])]| fit(&credential(fields)).map(|it| it.expose().to_vec());
        assert_eq!(given(&[("key", b"one")]), Ok(b"one".to_vec()));
        assert_eq!(given(&[("access_token", b"two"), ("refresh_token", b"no")]), Ok(b"two".to_vec()));
        assert!(given(&[("user", b"me"), ("password", b"no")]).unwrap_err().0.contains("several fields"));
        assert!(given(&[("key", b"\xff")]).unwrap_err().0.contains("not text"));
    }

    // "The GitHub App PEM enters no sandbox, ever."
    #[test]
    fn a_private_key_is_not_whatever_its_name() {
        for kind in ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "] {
            let pem = format!("-----BEGIN {kind}PRIVATE KEY-----\\nMIIE\\n-----END {kind}PRIVATE KEY-----");
            let refused = fit(&credential(&[("access_token", pem.as_bytes()), ("id", b"1")])).map(drop);
            assert!(refused.unwrap_err().0.contains("private key"), "{kind}");
        }
        // A token beside a private key may be exposed: the placeholder does not stand for the key.
        let app = credential(&[("access_token", b"ghs_x"), ("pem", b"-----BEGIN RSA PRIVATE KEY-----")]);
        assert!(fit(&app).is_ok());
    }

    #[test]
    fn a_private_key_in_the_environment_is_told_by_its_variable() {
        let pem = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
        let packed = data_encoding::BASE64.encode(pem.as_bytes());
        let text = format!(
            "env.pass = [\"APP_KEY\", \"LANG\"]\nenv.set = {{ PACKED = \"{packed}\", NOTE = \"PRIVATE KEY\", TZ = \"UTC\" }}
            [[companion]]
            name = \"signer\"
            image = \"signer\"
            ports = [8080]
            env = {{ OWN_KEY = \"{packed}\", TZ = \"UTC\" }}"
        );
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(&text).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let spec = RunSpec { workspace: Some(folder.clone()), ..layers.compile().unwrap() };
        let caller =
            Caller::new(1000, 1000, &folder).with_env([("APP_KEY", pem), ("LANG", "C"), ("KEPT", pem)]);
        let (run, host) = ("abcdefghjkmn".parse().unwrap(), Host::detect(&caller));
        let (additions, mounts) = (Additions::default(), MountsOnceRead::default());
        let plan = sandbox::plan(&spec, &run, &caller, &host, &additions, &mounts).unwrap();
        let told = private_keys(&spec, &plan);
        assert!(
            matches!(&told[..], [one, other, companions] if one.starts_with("`APP_KEY` ")
                && other.starts_with("`PACKED` ") && companions.starts_with("companion `signer`: `OWN_KEY` ")),
            "{told:?}"
        );
        assert!(told.iter().all(|told| !told.contains("c2VjcmV0") && !told.contains(&packed)), "{told:?}");
    }
}
