//! The names under which services look for keys: headers, and parameters of the query.
//!
//! Names are compared as servers read them: without case, `_` as `-`, parameters decoded.

use policy::{InjectionSite, Provider, Target};

use super::percent::decoded_once;

/// Header fields by which services authenticate clients.
pub(crate) const AUTHENTICATION: &[&str] = &[
    "authorization",
    "x-api-key",
    "api-key",
    "apikey",
    "x-apikey",
    "x-goog-api-key",
    "private-token",
    "job-token",
    "deploy-token",
    "token",
    "x-token",
    "x-auth",
    "x-auth-key",
    "x-auth-token",
    "x-access-token",
    "x-session-token",
    "x-subscription-token",
    "x-vault-token",
    "x-gitlab-token",
    "x-amz-security-token",
];
/// Query parameters by which services authenticate clients.
const PARAMETERS: &[&str] = &[
    "key",
    "api-key",
    "apikey",
    "token",
    "access-token",
    "auth",
    "auth-token",
    "oauth-token",
    "private-token",
    "job-token",
    "client-secret",
    "secret",
    "sig",
    "signature",
    "session",
    "sessionid",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
    "x-goog-signature",
    "x-goog-credential",
];

/// The end of further headers by which a service behind a proxy authenticates clients: `x-forwarded-authorization`.
const FORWARDED: &str = "-authorization";
/// The names under which a request may hold a key: the usual ones, and the one under which the provider injects its own.
pub(super) struct KeyNames<'a>(Option<&'a InjectionSite>);

impl<'a> KeyNames<'a> {
    pub(super) fn of(provider: Option<&'a Provider>, target: &Target) -> Self {
        Self(provider.and_then(|p| p.injection(target)).map(|injection| injection.place()))
    }

    pub(super) fn is_header(&self, name: &str) -> bool {
        is_among(name, AUTHENTICATION) || self.is_own_header(name)
    }

    pub(super) fn is_own_header(&self, name: &str) -> bool {
        match self.0 {
            Some(InjectionSite::Header(header)) => is_same(header, name),
            Some(InjectionSite::Basic) => name == "authorization",
            _ => false,
        }
    }

    /// Whether a parameter's name, as written, is one of these to every server: a placeholder may stand there.
    pub(super) fn is_parameter(&self, written: &str) -> bool {
        let name = decoded_once(&written.replace('+', " "));
        self.parameters().any(|known| is_same(known, &name))
    }

    /// Whether some server reads a parameter's decoded name as one of these: no key of the agent's own may stand there.
    pub(super) fn may_be_parameter(&self, name: &str) -> bool {
        // Some servers read a name up to a NUL, and `name[x]` as a part of `name`. PHP reads a space, a dot and `[` as `_`.
        let name = name.split('\0').next().unwrap_or_default().trim_end();
        let list = name.split('[').next().unwrap_or_default().trim_end();
        [name, list].iter().any(|name| {
            let name = name.replace([' ', '.', '['], "_");
            self.parameters().any(|known| is_same(&known.replace('.', "_"), &name))
        })
    }

    fn parameters(&self) -> impl Iterator<Item = &str> {
        let own = match self.0 {
            Some(InjectionSite::Query(parameter)) => Some(parameter.as_ref()),
            _ => None,
        };
        PARAMETERS.iter().copied().chain(own)
    }
}

/// Whether a parameter of this name, as it is written, holds a key.
pub(super) fn is_key_parameter(name: &str) -> bool {
    is_among(name, PARAMETERS)
}

fn is_among(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| is_same(known, name))
}

pub(super) fn is_forwarded(name: &str) -> bool {
    name.len()
        .checked_sub(FORWARDED.len())
        .and_then(|at| name.get(at..))
        .is_some_and(|end| is_same(end, FORWARDED))
}

/// Whether servers may take two names for one: in CGI variables case is lost, and `-` becomes `_`.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().map(folded).eq(other.bytes().map(folded))
}

pub(super) fn folded(octet: u8) -> u8 {
    if octet == b'_' { b'-' } else { octet.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::super::percent::decoded;
    use super::*;

    #[test]
    fn names_are_read_as_servers_read_them() {
        assert_eq!(decoded("%6Bey"), "key");
        assert_eq!(decoded("%256Bey"), "key");
        assert!(is_same("X_Api_Key", "x-api-key") && !is_same("x-api-keys", "x-api-key"));
        assert!(KeyNames(None).is_parameter("Access_Token") && !KeyNames(None).is_parameter("page_token"));
        assert!(
            KeyNames(None).may_be_parameter("Access_Token") && !KeyNames(None).may_be_parameter("page_token")
        );
        assert!(!KeyNames(None).is_header("idempotency-key"));
    }

    #[test]
    fn an_own_key_is_seen_in_a_name_that_some_server_reads_as_a_place_of_keys() {
        for name in [
            "token[]",
            "token[a][b]",
            "token\0",
            "Token \0x",
            "access_token[0]",
            "access.token",
            "access token",
            "access[token",
            "Access.Token[]",
            "x.amz-signature",
        ] {
            assert!(KeyNames(None).may_be_parameter(name), "{name}");
        }
        for name in ["page[token]", "[]", "access[token]", "page.token", "tokens", ""] {
            assert!(!KeyNames(None).may_be_parameter(name), "{name}");
        }
        let own = InjectionSite::Query("api.of.key".to_owned());
        assert!(
            KeyNames(Some(&own)).may_be_parameter("api_of_key")
                && !KeyNames(None).may_be_parameter("api_of_key")
        );
    }

    #[test]
    fn who_asks_behind_others_is_told_by_more_headers() {
        assert!(is_forwarded("x-forwarded-authorization") && is_forwarded("X_Original_Authorization"));
        assert!(!is_forwarded("authorization") && !is_forwarded("x-authorizations") && !is_forwarded("é"));
    }
}
