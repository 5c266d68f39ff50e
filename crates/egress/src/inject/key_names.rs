//! The names under which services look for keys: headers, and parameters of the query.
//!
//! Names are compared as servers read them: without case, `_` as `-`, parameters decoded. Where a key may not stand, they are compared as
//! any server reads them.

use policy::{Host, InjectionSite, Provider, Target};

use super::percent::decoded_once;
use crate::http::variable_octet;

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

/// Parameters that hold no key at one host, though some services take one there. GitHub reads no key in a query, and `key` is a cache's name.
const NO_KEYS: &[(&str, &str)] = &[("api.github.com", "key")];

/// The end of further headers by which a service behind a proxy authenticates clients: `x-forwarded-authorization`.
const FORWARDED: &str = "-authorization";
/// The names under which a request may hold a key: the usual ones, and the one under which the provider injects its own.
pub(super) struct KeyNames<'a> {
    own: Option<&'a InjectionSite>,
    no_key: Option<&'static str>,
}

impl<'a> KeyNames<'a> {
    pub(super) fn of(provider: Option<&'a Provider>, target: &Target) -> Self {
        let is_here = |host: &str| matches!(target.host(), Host::Name(name) if name.as_str() == host);
        Self {
            own: provider.and_then(|p| p.injection(target)).map(|injection| injection.place()),
            no_key: NO_KEYS.iter().find(|(host, _)| is_here(host)).map(|(_, parameter)| *parameter),
        }
    }

    /// Whether a header is one of these to every server that reads fields as variables: a placeholder may stand there.
    pub(super) fn is_header(&self, name: &str) -> bool {
        is_among(name, AUTHENTICATION) || self.is_own_header(name)
    }

    /// Whether some server takes a header for one of these: no key of the agent's own may stand there.
    pub(super) fn may_be_header(&self, name: &str) -> bool {
        let own = matches!(self.own, Some(InjectionSite::Header(header)) if may_be_same(header, name));
        own || may_authenticate(name) || self.is_own_header(name)
    }

    pub(super) fn is_own_header(&self, name: &str) -> bool {
        match self.own {
            Some(InjectionSite::Header(header)) => is_same(header, name),
            Some(InjectionSite::Basic) => name == "authorization",
            _ => false,
        }
    }

    /// Whether a parameter's name, as written, is one of these to every server: a placeholder may stand there.
    pub(super) fn is_parameter(&self, written: &str) -> bool {
        let name = as_read(written);
        self.parameters().any(|known| is_same(known, &name))
    }

    /// Whether the provider puts its credential into the parameter of this decoded name.
    pub(super) fn is_own_parameter(&self, name: &str) -> bool {
        matches!(self.own, Some(InjectionSite::Query(parameter)) if is_same(parameter, name))
    }

    /// Whether some server reads a parameter's decoded name as one of these: no key of the agent's own may stand there.
    pub(super) fn may_be_parameter(&self, name: &str) -> bool {
        // Some servers read a name up to a NUL, and `name[x]` as a part of `name`. PHP reads a space, a dot and `[` as `_`. Rack leaves out
        // brackets before a name, and others read `[name]` as `name`.
        let name = name.split('\0').next().unwrap_or_default().trim_end();
        let bare = name.trim_start_matches(|c: char| matches!(c, '[' | ']') || c.is_whitespace());
        let list = bare.split(['[', ']']).next().unwrap_or_default().trim_end();
        [name, list].iter().any(|name| {
            let name = name.replace([' ', '.', '['], "_");
            self.parameters().any(|known| is_same(&known.replace('.', "_"), &name))
        })
    }

    fn parameters(&self) -> impl Iterator<Item = &str> {
        let own = match self.own {
            Some(InjectionSite::Query(parameter)) => Some(parameter.as_ref()),
            _ => None,
        };
        PARAMETERS.iter().copied().filter(|name| Some(*name) != self.no_key).chain(own)
    }
}

/// Whether a parameter of this name, as it is written, holds a key.
pub(super) fn is_key_parameter(name: &str) -> bool {
    is_among(name, PARAMETERS)
}

/// Whether a parameter's name, as written, is this one to every server.
pub(super) fn is_same_parameter(known: &str, written: &str) -> bool {
    is_same(known, &as_read(written))
}

fn as_read(written: &str) -> String {
    decoded_once(&written.replace('+', " "))
}

fn is_among(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| is_same(known, name))
}

pub(super) fn is_forwarded(name: &str) -> bool {
    may_end_with(name, FORWARDED)
}

/// Whether some server takes the end of a header's name for this one.
pub(super) fn may_end_with(name: &str, end: &str) -> bool {
    let at = name.len().checked_sub(end.len());
    at.and_then(|at| name.get(at..)).is_some_and(|own| may_be_same(own, end))
}

/// Whether some server takes a header for one by which services authenticate clients.
pub(crate) fn may_authenticate(name: &str) -> bool {
    AUTHENTICATION.iter().any(|known| may_be_same(known, name))
}

/// Whether two names are one to all servers that read them as variables: case is lost, and `-` becomes `_`.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    let folded = |octet: u8| if octet == b'_' { b'-' } else { octet.to_ascii_lowercase() };
    one.len() == other.len() && one.bytes().map(folded).eq(other.bytes().map(folded))
}

/// Whether some server takes two names of headers for one.
pub(super) fn may_be_same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().map(variable_octet).eq(other.bytes().map(variable_octet))
}

#[cfg(test)]
mod tests {
    use super::super::percent::decoded;
    use super::*;

    const ANY: KeyNames<'static> = KeyNames { own: None, no_key: None };

    #[test]
    fn a_name_that_is_no_key_at_a_host_is_one_elsewhere_and_where_the_provider_puts_its_own() {
        let at = |host: &str| Target::parse(&format!("https://{host}/repos/o/r/actions/caches")).unwrap();
        let is_key = |host: &str, name: &str| KeyNames::of(None, &at(host)).may_be_parameter(name);
        assert!(!is_key("api.github.com", "key") && !is_key("API.github.com", "key[]"));
        assert!(is_key("api.github.com", "access_token") && is_key("api.github.com", "token"));
        assert!(is_key("generativelanguage.googleapis.com", "key") && is_key("uploads.github.com", "key"));
        let own = InjectionSite::Query("key".to_owned());
        let names = KeyNames { own: Some(&own), ..KeyNames::of(None, &at("api.github.com")) };
        assert!(names.may_be_parameter("key"));
    }

    #[test]
    fn names_are_read_as_servers_read_them() {
        assert_eq!(decoded("%6Bey"), "key");
        assert_eq!(decoded("%256Bey"), "key");
        assert!(is_same("X_Api_Key", "x-api-key") && !is_same("x-api-keys", "x-api-key"));
        assert!(ANY.is_parameter("Access_Token") && !ANY.is_parameter("page_token"));
        assert!(ANY.may_be_parameter("Access_Token") && !ANY.may_be_parameter("page_token"));
        assert!(!ANY.is_header("idempotency-key"));
        // Only some servers read these as `x-api-key`.
        for name in ["x.api.key", "x.api-key", "x!api~key", "X_Api.Key"] {
            assert!(ANY.may_be_header(name) && !ANY.is_header(name), "{name}");
        }
        let own = InjectionSite::Header("x-service-pass".to_owned());
        assert!(
            KeyNames { own: Some(&own), ..ANY }.may_be_header("x.service.pass")
                && !ANY.may_be_header("x.service.pass")
        );
    }

    #[test]
    fn every_usual_name_of_a_key_is_one() {
        for name in "authorization x-api-key api-key apikey x-apikey x-goog-api-key private-token job-token deploy-token token x-token \
                     x-auth x-auth-key x-auth-token x-access-token x-session-token x-subscription-token x-vault-token x-gitlab-token \
                     x-amz-security-token"
            .split_whitespace()
        {
            assert!(ANY.is_header(name) && ANY.may_be_header(&name.replace('-', ".")), "{name}");
        }
        for name in "key api_key apikey token access_token auth auth_token oauth_token private_token job_token client_secret secret \
                     sig signature session sessionId X-Amz-Signature X-Amz-Credential X-Amz-Security-Token X-Goog-Signature \
                     X-Goog-Credential"
            .split_whitespace()
        {
            assert!(ANY.is_parameter(name) && ANY.may_be_parameter(&format!("{name}[]")), "{name}");
        }
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
            "[token]",
            "]token",
            "token]",
            "[]token",
            "[[token]]",
            "[ access.token][]",
        ] {
            assert!(ANY.may_be_parameter(name), "{name}");
        }
        for name in ["page[token]", "[]", "access[token]", "page.token", "tokens", "[page][token]", "]", ""] {
            assert!(!ANY.may_be_parameter(name), "{name}");
        }
        let own = InjectionSite::Query("api.of.key".to_owned());
        assert!(
            KeyNames { own: Some(&own), ..ANY }.may_be_parameter("api_of_key")
                && !ANY.may_be_parameter("api_of_key")
        );
    }

    #[test]
    fn who_asks_behind_others_is_told_by_more_headers() {
        assert!(is_forwarded("x-forwarded-authorization") && is_forwarded("X_Original_Authorization"));
        assert!(is_forwarded("X.Original.Authorization"));
        assert!(!is_forwarded("authorization") && !is_forwarded("x-authorizations") && !is_forwarded("é"));
    }
}
