//! A credential that is needed and not stored, and the commands that store it.

use std::fmt;

use policy::OrganisationName;

/// A credential that is needed and not stored.
#[derive(Debug)]
pub struct MissingCredential {
    pub(crate) needed: Needed,
    /// The organisation in whose vault it would be, if that is not the person's own.
    pub(crate) organisation: Option<OrganisationName>,
}

/// What a credential is needed for.
#[derive(Debug)]
pub(crate) enum Needed {
    /// Requests of a provider.
    Provider(String),
    /// The login at the proxy on the way out.
    Proxy { id: String, credential: String },
    /// The login at a registry.
    Registry(String),
}

impl MissingCredential {
    /// Returns the commands that store it, as a shell takes them. For a web search, that of another provider serves as well.
    #[must_use]
    pub fn remedy(&self) -> String {
        let whose = OrganisationName::flag(self.organisation.as_ref());
        let set = |name: &str| format!("lockgate creds set {name}{whose}");
        let provider = match &self.needed {
            Needed::Provider(name) => name,
            Needed::Proxy { credential: name, .. } | Needed::Registry(name) => {
                return ["username", "password"]
                    .map(|field| format!("{} --field {field}", set(name)))
                    .join("; ");
            }
        };
        let mut remedy = set(provider);
        if let Ok(searches) = policy::web_searches()
            && searches.contains(provider)
        {
            let others: Vec<&str> =
                searches.iter().filter(|it| *it != provider).map(String::as_str).collect();
            remedy += &format!("; with --web-search, one of {} will do as well", others.join(", "));
        }
        remedy
    }
}

impl fmt::Display for MissingCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.needed {
            Needed::Provider(name) | Needed::Registry(name) => write!(f, "a credential for `{name}`")?,
            Needed::Proxy { id, credential } => {
                write!(
                    f,
                    "the credential `{credential}` for the proxy `{id}`, which everything goes through"
                )?;
            }
        }
        f.write_str(": there is none in the vault")?;
        self.organisation.as_ref().map_or(Ok(()), |name| write!(f, " of `{name}`"))
    }
}
