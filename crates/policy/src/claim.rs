//! Refuses a project file that declares a provider under a name that already has a meaning: a credential stored under that name
//! would be sent where the project says. This holds for an approved file too, and for the name of a proxy's credential.

use crate::error::ConfigError;
use crate::preset;
use crate::rules::Policy;
use crate::written::RunConfig;

/// Refuses a provider or a proxy's credential with the name of one that an earlier layer or this program declares. A repeated
/// declaration of the same proxy is accepted.
pub(crate) fn refuse(origin: &str, config: &RunConfig, known: &Policy) -> Result<(), ConfigError> {
    let refused = |field: String, problem: String| {
        Err(ConfigError::new(origin, field, problem).with_hint("choose another name"))
    };
    for (index, written) in config.provider.iter().enumerate() {
        if is_known(&written.id, known) {
            let problem = format!(
                "`{}` is the name of a provider that a project's file cannot give another meaning",
                written.id
            );
            return refused(format!("provider[{index}].id"), problem);
        }
    }
    for (index, proxy) in config.proxy.iter().enumerate() {
        let Some(credential) = &proxy.credential else { continue };
        let is_the_same = known.proxies.declared().any(|other| {
            other.to_string() == proxy.url.trim_end_matches('/')
                && other.credential.as_ref().is_some_and(|own| own.as_str() == credential)
        });
        if is_known(credential, known) && !is_the_same {
            let problem = format!(
                "`{credential}` is the name of a credential that a project's file cannot send to a proxy"
            );
            return refused(format!("proxy[{index}].credential"), problem);
        }
    }
    Ok(())
}

/// Returns whether this program or an earlier layer gives a credential's name a meaning.
fn is_known(name: &str, known: &Policy) -> bool {
    let is_a_proxys = |id: &crate::provider_id::ProviderId| id.as_str() == name;
    preset::is_provider(name)
        || known.providers.iter().any(|provider| provider.id().as_str() == name)
        || known.proxies.declared().any(|proxy| proxy.credential.as_ref().is_some_and(is_a_proxys))
}

#[cfg(test)]
mod tests {
    use crate::{Layers, Origin};

    fn field(user: &str, project: &str) -> Result<(), (String, String)> {
        let mut layers = Layers::default();
        layers.push(Origin::User("config.toml".into()), toml::from_str(user).unwrap());
        let origin = Origin::Project { path: "lockgate.toml".into(), approved: true };
        layers.push(origin, toml::from_str(project).unwrap());
        layers.compile().map(drop).map_err(|error| (error.field, error.problem))
    }

    #[test]
    fn a_name_that_means_somebody_else_is_not_the_projects_to_use() {
        let provider =
            |id: &str| format!("[[provider]]\nid = \"{id}\"\nauthorized_uris = [\"https://a.example/*\"]\n");
        let proxy = |url: &str, credential: &str| {
            format!("[[proxy]]\nid = \"p\"\nurl = \"{url}\"\ncredential = \"{credential}\"\n")
        };
        let own = "http://corp.example:3128";
        let user = provider("corp-api") + &proxy(own, "corp-proxy");
        for (project, at) in [
            (provider("github"), "provider[0].id"),
            // Naming its own providers as well does not change that.
            (format!("providers = [\"mine\"]\n{}{}", provider("github"), provider("mine")), "provider[0].id"),
            (
                format!("providers = [\"mine\", \"mine\"]\n{}{}", provider("mine"), provider("corp-api")),
                "provider[1].id",
            ),
            (provider("corp-proxy"), "provider[0].id"),
            (proxy("http://evil.example:3128", "github"), "proxy[0].credential"),
            (proxy("http://evil.example:3128", "corp-api"), "proxy[0].credential"),
            (proxy("http://evil.example:3128", "corp-proxy"), "proxy[0].credential"),
        ] {
            let (field, problem) = field(&user, &project).expect_err(&project);
            assert!(
                field == at && problem.contains("a project's file cannot"),
                "{project}: {field}: {problem}"
            );
        }
        for project in [
            provider("mine"),
            format!("providers = [\"mine\", \"github\"]\n{}", provider("mine")),
            proxy("http://own.example:3128", "mine"),
            proxy(own, "corp-proxy"),
        ] {
            assert_eq!(field(&user, &project), Ok(()), "{project}");
        }
    }
}
