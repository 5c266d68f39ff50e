//! Tells an API key of Anthropic's from the token of a login, which goes into another header, by what every one of them has in it.

use credential::Value;
use policy::ProviderId;

/// Returns what to say of a value that the provider's service would not take. Nothing of the value is in it.
pub(crate) fn mistaken(provider: &ProviderId, value: &Value) -> Option<&'static str> {
    let given = value.secret().expose();
    let has = |part: &[u8]| given.windows(part.len()).any(|at| at == part);
    let begins = |with: &[u8]| given.trim_ascii_start().starts_with(with);
    match provider.as_str() {
        "anthropic" if has(b"sk-ant-oat") || has(b"sk-ant-ort") => Some(
            "it looks like the token of a Claude subscription, which is no API key. What `claude setup-token` prints goes to: \
             lockgate creds set claude-subscription",
        ),
        "claude-subscription" if has(b"sk-ant-api") => Some(
            "it looks like an API key, which no subscription has. It goes to: lockgate creds set anthropic",
        ),
        "claude-subscription" if begins(b"{") || begins(b"Bearer ") => Some(
            "it looks like a token with more around it. What `claude setup-token` prints goes alone to: \
             lockgate creds set claude-subscription",
        ),
        "claude-subscription" if has(b"sk-ant-ort") => Some(
            "it looks like the token that renews a login, with which nothing can be asked. What `claude setup-token` prints goes to: \
             lockgate creds set claude-subscription",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use credential::Secret;

    use super::*;

    #[test]
    fn a_token_in_the_place_of_a_key_is_told_without_it() {
        for (provider, given, meant) in [
            ("anthropic", "sk-ant-oat01-hush", Some("claude-subscription")),
            ("anthropic", "sk-ant-ort01-hush", Some("claude-subscription")),
            ("anthropic", "Bearer sk-ant-oat01-hush", Some("claude-subscription")),
            ("anthropic", r#"{"accessToken":"sk-ant-oat01-hush"}"#, Some("claude-subscription")),
            ("claude-subscription", "sk-ant-api03-hush", Some("anthropic")),
            ("claude-subscription", "sk-ant-ort01-hush", Some("claude-subscription")),
            ("claude-subscription", "Bearer sk-ant-oat01-hush", Some("claude-subscription")),
            ("claude-subscription", r#"{"accessToken":"sk-ant-oat01-hush"}"#, Some("claude-subscription")),
            ("anthropic", "sk-ant-api03-hush", None),
            ("claude-subscription", "sk-ant-oat01-hush", None),
            ("openai", "sk-ant-oat01-hush", None),
        ] {
            let value = Value::new(Secret::new(given.into())).unwrap();
            let told = mistaken(&provider.parse().unwrap(), &value);
            assert_eq!(told.is_some(), meant.is_some(), "{provider} {given}");
            assert!(
                told.is_none_or(|told| !told.contains("hush") && told.ends_with(meant.unwrap_or_default()))
            );
        }
    }
}
