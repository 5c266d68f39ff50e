//! Providers: outside services with a credential. A provider defines where its credential is authorized and how it is injected
//! into a request. This module never holds the credential itself.

use crate::asked::Asked;
use crate::error::ConfigError;
use crate::hostname::Host;
use crate::location::Location;
use crate::pattern::Width;
use crate::provider_id::ProviderId;
use crate::reach::Reach;
use crate::rule::{AllowRule, RuleName};
use crate::target::{Port, Target};
use crate::written::{
    AllowConfig, InjectConfig, LlmFormat, OneOrMany, Placeholders, ProviderConfig, RateConfig,
};

/// A compiled rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The average of requests per minute.
    pub requests_per_minute: u32,
    /// The most requests at once.
    pub burst: u32,
}

/// The place in a request where a credential is injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InjectionSite {
    /// A header, by its name in lower case.
    Header(String),
    /// A query parameter.
    Query(String),
    /// The `Authorization` header, as basic authentication.
    Basic,
}

/// How a credential is injected into a request.
#[derive(Clone, Debug)]
pub struct Injection {
    place: InjectionSite,
    value: String,
    at: Option<Reach>,
}

impl Injection {
    /// Returns the place where it is injected.
    #[must_use]
    pub fn place(&self) -> &InjectionSite {
        &self.place
    }

    /// Returns the template of the value, with `{{…}}` for the credential's fields; for basic authentication `USER:PASSWORD`.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    fn covers(&self, target: &Target) -> bool {
        self.at.as_ref().is_none_or(|reach| reach.covers(target))
    }
}

/// A compiled provider.
#[derive(Clone, Debug)]
pub struct Provider {
    id: ProviderId,
    pub(crate) rules: Vec<AllowRule>,
    injections: Vec<Injection>,
    first_uri: String,
    env: Vec<String>,
    pub(crate) exposed: Vec<String>,
    pub(crate) pinned: bool,
    placeholders: Placeholders,
    rate: Option<Rate>,
    headers: Option<Vec<String>>,
    pub(crate) grpc: bool,
    llm: Option<LlmFormat>,
}

impl Provider {
    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> &ProviderId {
        &self.id
    }

    /// Returns the first injection that covers the target.
    #[must_use]
    pub fn injection(&self, target: &Target) -> Option<&Injection> {
        self.injections.iter().find(|injection| injection.covers(target))
    }

    /// Returns whether an injection covers a request that is seen as a whole.
    #[must_use]
    pub fn injects_into(&self, asked: &Asked) -> bool {
        let covers = |at: &Option<Reach>| at.as_ref().is_none_or(|reach| reach.covers_asked(asked));
        self.injections.iter().any(|injection| covers(&injection.at))
    }

    /// Returns its rate limit.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Returns whether a header of the agent may pass, by its name in lower case. Those without which body and answer are not understood,
    /// and a WebSocket is not opened, always do.
    #[must_use]
    pub fn lets_pass(&self, header: &str) -> bool {
        const ALWAYS: &[&str] = &[
            "content-type",
            "content-encoding",
            "accept",
            "expect",
            "sec-websocket-key",
            "sec-websocket-version",
        ];
        let listed = |list: &Vec<String>| list.iter().any(|name| name == header);
        self.headers.as_ref().is_none_or(listed) || ALWAYS.contains(&header)
    }

    /// Returns where its placeholder may stand.
    #[must_use]
    pub fn placeholders(&self) -> Placeholders {
        self.placeholders
    }

    /// Returns the first of its authorized URIs, as it was written.
    #[must_use]
    pub fn first_uri(&self) -> &str {
        &self.first_uri
    }

    /// Returns the variables that hold its placeholder inside the sandbox.
    #[must_use]
    pub fn environment(&self) -> &[String] {
        &self.env
    }

    /// Returns those of its variables that hold the credential itself in this run.
    #[must_use]
    pub fn exposed(&self) -> &[String] {
        &self.exposed
    }

    /// Returns whether its credential is authorized for a URI of plain HTTP.
    pub(crate) fn may_be_in_the_clear(&self) -> bool {
        self.rules.iter().any(|rule| !rule.reach.may_be_tls())
    }

    /// Returns whether its credential is authorized for a URI at this host and port.
    pub(crate) fn is_at(&self, host: &Host, port: Port) -> bool {
        self.rules.iter().any(|rule| rule.reach.is_at(host, port))
    }

    /// Returns the model API that it speaks, if any.
    #[must_use]
    pub fn llm(&self) -> Option<LlmFormat> {
        self.llm
    }

    /// Returns whether the gateway's `/llm` leads to it: requests to it name their model in the body. Gemini's own API has it in the path.
    #[must_use]
    pub fn is_asked_by_model(&self) -> bool {
        matches!(self.llm, Some(LlmFormat::Anthropic | LlmFormat::OpenAi))
    }

    pub(crate) fn compile(at: &Location<'_>, config: &ProviderConfig) -> Result<Self, ConfigError> {
        let id =
            ProviderId::given(&config.id).map_err(|why| at.error("id", format!("`{}`: {why}", config.id)))?;
        if config.authorized_uris.is_empty() {
            return Err(
                at.error("authorized_uris", "the list is empty: the credential would be good nowhere")
            );
        }
        let name = RuleName::of_provider(&id).into();
        let name = match at.width {
            Width::AsWritten => RuleName::BuiltIn(name),
            Width::BelowPublicSuffix | Width::OfCredential | Width::Closing => RuleName::Declared(name),
        };
        let rule = |(number, uri): (usize, &String)| {
            let allow = AllowConfig {
                url: Some(uri.clone()),
                methods: config.methods.clone(),
                encoded_slash: config.encoded_slash,
                addresses: config.addresses.clone(),
                ..AllowConfig::default()
            };
            let (called, written) =
                (format!("{}.url", at.field), format!("{}.authorized_uris[{number}]", at.field));
            AllowRule::compile(at, &allow, name.clone()).map_err(|error| error.renamed(&called, written))
        };
        let rules: Vec<AllowRule> =
            config.authorized_uris.iter().enumerate().map(rule).collect::<Result<_, _>>()?;
        // Otherwise a name of somebody else's would lead to an address of this network, with the credential.
        if config.addresses.is_some() && rules.iter().any(|rule| rule.reach.host != rules[0].reach.host) {
            let why = "they are those of one host, and `authorized_uris` names several: give each a provider of its own";
            return Err(at.error("addresses", why));
        }
        let inject = config.inject.as_ref().map_or(&[][..], OneOrMany::as_slice);
        let injections =
            inject.iter().map(|i| compile_injection(at, i, &rules)).collect::<Result<Vec<_>, _>>()?;
        let env = config.env.as_ref().map_or(&[][..], OneOrMany::as_slice).to_vec();
        if let Some(bad) = env.iter().find(|name| !is_variable(name)) {
            return Err(at.error("env", format!("`{}` is not a variable's name", bad.escape_default())));
        }
        let first_uri = config.authorized_uris[0].clone();
        let pinned = config.pinned.unwrap_or(true);
        let usual = if injections.is_empty() { Placeholders::Anywhere } else { Placeholders::InPlace };
        let placeholders = config.placeholders.unwrap_or(usual);
        let rate = config.rate.as_ref().map(|rate| compile_rate(at, rate)).transpose()?;
        let headers = config.headers.as_ref().map(|list| compile_headers(at, list)).transpose()?;
        Ok(Self {
            id,
            rules,
            injections,
            first_uri,
            env,
            exposed: Vec::new(),
            pinned,
            placeholders,
            rate,
            headers,
            grpc: config.grpc,
            llm: config.llm,
        })
    }
}

fn compile_rate(at: &Location<'_>, config: &RateConfig) -> Result<Rate, ConfigError> {
    let burst = config.burst.unwrap_or(config.requests_per_minute);
    if config.requests_per_minute == 0 || burst == 0 {
        return Err(at.error("rate", "0 lets nothing pass; leave the provider out instead"));
    }
    Ok(Rate { requests_per_minute: config.requests_per_minute, burst })
}

/// Parses the names of headers that may pass. A `*` is the one character of names that people take for a pattern.
fn compile_headers(at: &Location<'_>, list: &[String]) -> Result<Vec<String>, ConfigError> {
    let lower = |name: &String| match is_token(name) && !name.contains('*') {
        true => Ok(name.to_ascii_lowercase()),
        false => {
            let problem = format!("`{}` is not the name of a header", name.escape_default());
            Err(at.error("headers", problem).with_hint("name each header by itself, without `:` and `*`"))
        }
    };
    list.iter().map(lower).collect()
}

/// Compiles one `inject` of a provider with these authorized URIs.
fn compile_injection(
    at: &Location<'_>,
    config: &InjectConfig,
    authorized: &[AllowRule],
) -> Result<Injection, ConfigError> {
    let bad = |field: &str, why: &str| at.error(&format!("inject.{field}"), why);
    let (place, value) = match (&config.header, &config.query, &config.basic) {
        (Some(header), None, None) => (InjectionSite::Header(header_name(at, header)?), &config.value),
        (None, Some(query), None) => {
            if query.is_empty() || !query.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b)) {
                return Err(bad("query", "a parameter is named in letters, digits and `-._~`"));
            }
            (InjectionSite::Query(query.clone()), &config.value)
        }
        (None, None, Some(basic)) if basic.contains(':') && config.value.is_none() => {
            (InjectionSite::Basic, &config.basic)
        }
        (None, None, Some(_)) => return Err(bad("basic", "write it as USER:PASSWORD, without `value`")),
        _ => return Err(at.error("inject", "give one of `header`, `query` and `basic`")),
    };
    let value = value.as_ref().ok_or_else(|| bad("value", "is missing, as in `Bearer {{access_token}}`"))?;
    if value.contains(|c: char| c.is_ascii_control()) {
        return Err(bad(
            "value",
            "it holds a control character, which can stand in no header and no parameter",
        ));
    }
    if named_fields(value).is_none_or(|names| names.is_empty()) {
        return Err(bad("value", "it must name a field of the credential, as in `Bearer {{access_token}}`"));
    }
    let field = format!("{}.inject.at", at.field);
    let within = Location { origin: at.origin, field: &field, width: at.width };
    let reach = config.at.as_ref().map(|url| Reach::from_url(&within, url)).transpose()?;
    if let (Some(reach), Some(url)) = (&reach, &config.at)
        && !authorized.iter().any(|rule| rule.reach.overlaps(reach))
    {
        let why =
            format!("`{url}` is outside all of its `authorized_uris`, so nothing would be put in there");
        return Err(bad("at", &why).with_hint("name a part of one of them, or add it to them"));
    }
    Ok(Injection { place, value: value.clone(), at: reach })
}

/// Parses the name of a header for a credential. Headers that frame or route a request are refused.
fn header_name(at: &Location<'_>, text: &str) -> Result<String, ConfigError> {
    const NOT: &[&str] = &[
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "upgrade",
        "te",
        "trailer",
        "keep-alive",
        "proxy-connection",
        "expect",
        "content-encoding",
    ];
    let name = text.to_ascii_lowercase();
    if is_token(&name) && !NOT.contains(&name.as_str()) {
        Ok(name)
    } else {
        Err(at.error("inject.header", format!("`{}` cannot carry a credential", text.escape_default())))
    }
}

/// Returns whether a text can be the name of a header: a `token` of RFC 9110 §5.6.2.
fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn is_variable(name: &str) -> bool {
    name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Returns the fields that a value names as `{{field}}`; nothing if it has any other `{{`, which would be sent as it stands.
pub(crate) fn named_fields<'a>(value: &'a str) -> Option<Vec<&'a str>> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = |rest: &'a str| {
        let (name, _) = rest.split_once("}}")?;
        (!name.is_empty() && name.chars().all(is_word)).then_some(name)
    };
    value.split("{{").skip(1).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_list_of_headers_names_stays_but_for_what_body_and_answer_need() {
        let config = "provider = [{ id = \"one\", authorized_uris = [\"https://api.example/*\"], headers = [\"User-Agent\"] }]";
        let mut layers = crate::Layers::default();
        layers.push(crate::Origin::Flags, toml::from_str(config).unwrap());
        let policy = layers.compile().unwrap().policy;
        let provider = policy.providers().next().unwrap();
        for name in
            ["user-agent", "accept", "content-type", "content-encoding", "expect", "sec-websocket-key"]
        {
            assert!(provider.lets_pass(name), "{name}");
        }
        for name in ["x-other", "accept-language", "sec-websocket-protocol", "sec-websocket-extensions"] {
            assert!(!provider.lets_pass(name), "{name}");
        }
    }

    #[test]
    fn a_value_names_its_fields_whole() {
        for good in ["{{a}}", "Bearer {{access_token}}", "{{user}}:{{pass_word}}", "x{{a}}}"] {
            assert!(named_fields(good).is_some_and(|names| !names.is_empty()), "{good}");
        }
        assert_eq!(named_fields("{{user}}:{{pass_word}}").unwrap(), ["user", "pass_word"]);
        assert_eq!(named_fields("fixed").unwrap(), [""; 0]);
        for bad in ["{{token", "{{}}", "{{a b}}", "{{a}} {{b", "{{{a}}", "{{a-b}}"] {
            assert_eq!(named_fields(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_are_held_to_their_form() {
        for good in ["gmail", "@acme/gmail", "a", "a-b"] {
            assert!(good.parse::<ProviderId>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "@/a", "@acme/", "a/b", "a b", "@a/b/c", "a.b", "\u{e9}"] {
            assert!(bad.parse::<ProviderId>().is_err(), "{bad}");
        }
    }
}
