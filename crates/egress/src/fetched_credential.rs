//! A credential as it was fetched, and what the policy's templates come to with it.

use std::cell::RefCell;
use std::rc::Rc;

use credential::{Credential, FieldName, Position, RenderError, Secret, Template};
use policy::{Denial, Guard, Hint, ProviderId};

/// A provider's credential, as it was fetched.
pub(crate) struct FetchedCredential {
    provider: ProviderId,
    credential: Credential,
    /// The command that stores the credential, if it is of this machine's vault.
    stored_by: Option<String>,
    /// The policy's templates that were rendered with it.
    rendered: RefCell<Vec<RenderedTemplate>>,
}

/// A template of the policy's with a credential put in.
struct RenderedTemplate {
    template: String,
    position: Position,
    value: Rc<Secret>,
}

impl FetchedCredential {
    pub(crate) fn new(provider: ProviderId, credential: Credential, stored_by: Option<String>) -> Self {
        Self { provider, credential, stored_by, rendered: RefCell::default() }
    }

    pub(crate) fn provider(&self) -> &ProviderId {
        &self.provider
    }

    pub(crate) fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Renders a template of the policy's, once for each position.
    pub(crate) fn render(&self, template: &str, position: Position) -> Result<Rc<Secret>, Denial> {
        let is_it = |made: &&RenderedTemplate| made.template == template && made.position == position;
        if let Some(made) = self.rendered.borrow().iter().find(is_it) {
            return Ok(Rc::clone(&made.value));
        }
        let parsed = Template::parse(template).map_err(|e| Denial::new(Guard::Unresolved, e.to_string()))?;
        let value = Rc::new(parsed.render(&self.credential, position).map_err(|error| self.unfit(&error))?);
        let made = RenderedTemplate { template: template.to_owned(), position, value: Rc::clone(&value) };
        self.rendered.borrow_mut().push(made);
        Ok(value)
    }

    /// Returns the denial for a template of the policy's that cannot be rendered: if a field is missing, the request is not to blame.
    fn unfit(&self, error: &RenderError) -> Denial {
        let names = match error {
            RenderError::Unresolved(names) => names,
            RenderError::TooLong(_) => {
                let reason = format!("the `inject` of `{}`: {error}", self.provider);
                return Denial::new(Guard::Unresolved, reason)
                    .with_hint("name the credential fewer times there");
            }
            RenderError::Unfit { .. } => return unfit("request", error),
        };
        let fields: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let reason = format!(
            "the credential of `{}` has no field {}, which the provider's `inject` names",
            self.provider,
            fields.join(" and ")
        );
        let denial = Denial::new(Guard::Unresolved, reason).with_rule(format!("provider {}", self.provider));
        let flag = names.first().filter(|name| name.as_str() != FieldName::access_token().as_str());
        let flag = flag.map(|name| format!(" --field {name}")).unwrap_or_default();
        denial.with_hint(match &self.stored_by {
            Some(command) => Hint::Command(format!("{command}{flag}")),
            None => Hint::Advice("the platform that this sidecar asks has to have that field".into()),
        })
    }

    /// Returns the denial of a login that lacks a field.
    pub(crate) fn without(&self, field: &str) -> Denial {
        let reason = format!("the credential `{}` has no `{field}`", self.provider);
        Denial::new(Guard::Credential, reason).with_hint(match &self.stored_by {
            Some(command) => Hint::Command(format!("{command} --field {field}")),
            None => Hint::Advice("the platform that this sidecar asks has to have that field".into()),
        })
    }

    /// Returns whether both are equal, field by field.
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

/// Returns the denial for a template that cannot be rendered. Its text names fields, never values. S0.50
pub(crate) fn unfit(place: &str, error: &RenderError) -> Denial {
    let reason = match error {
        RenderError::Unresolved(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("{{{{{name}}}}}")).collect();
            format!("Unresolved placeholders in {place}: {}", names.join(", "))
        }
        RenderError::Unfit { source, .. } => format!("{place}: {error}, because {source}"),
        RenderError::TooLong(_) => {
            return Denial::new(Guard::Unresolved, format!("{place}: {error}"))
                .with_hint("name the credential fewer times in one request");
        }
    };
    Denial::new(Guard::Unresolved, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_the_policy_names_and_the_credential_lacks_is_not_blamed_on_the_request() {
        let told = |template: &str, is_stored: bool| {
            let stored_by = is_stored.then(|| "lockgate creds set mine --org acme".to_owned());
            let held = FetchedCredential::new("mine".parse().unwrap(), Credential::default(), stored_by);
            let denial = held.render(template, Position::Header).unwrap_err();
            assert_eq!(denial.guard, Guard::Unresolved);
            assert!(denial.reason.starts_with("the credential of `mine` has no field"), "{denial}");
            denial.hint.unwrap().to_string()
        };
        assert_eq!(told("Bearer {{access_token}}", true), "lockgate creds set mine --org acme");
        assert_eq!(told("{{api_key}}", true), "lockgate creds set mine --org acme --field api_key");
        assert!(told("{{api_key}}", false).starts_with("the platform"));
    }

    #[test]
    fn a_template_of_the_policy_that_comes_to_too_much_is_not_blamed_on_the_request() {
        let mut credential = Credential::default();
        let value = Secret::from_text("v".repeat(64 << 10));
        credential.set(FieldName::access_token(), credential::Value::new(value).unwrap());
        let held = FetchedCredential::new("mine".parse().unwrap(), credential, None);
        let denial = held.render(&"{{access_token}}".repeat(257), Position::Header).unwrap_err();
        assert!(denial.reason.starts_with("the `inject` of `mine`: the values would add"), "{denial}");
        assert_eq!(denial.hint.unwrap().to_string(), "name the credential fewer times there");
    }
}
