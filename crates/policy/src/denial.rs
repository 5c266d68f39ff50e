//! Denials: a refusal as a value, with the guard that refused, the reason, and what would allow the request.

use std::fmt;

use crate::hint::Hint;

/// The check that refused a request. Each has a stable code in problem documents, headers and audit records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// The target is not written in RFC 3986 characters and form.
    Syntax,
    /// The scheme is not http or https.
    Scheme,
    /// The target has a fragment.
    Fragment,
    /// The authority has user information.
    Userinfo,
    /// The host is neither a DNS name nor an address in canonical form.
    HostForm,
    /// The port is malformed, or no rule allows it for this host.
    Port,
    /// The name is reserved for the host, the sidecar or a metadata service.
    ReservedName,
    /// A deny rule matched.
    DenyRule,
    /// No rule allows this host.
    HostNotAllowed,
    /// The organisation's managed policy does not allow it.
    Managed,
    /// No rule allows this scheme for this host.
    SchemeNotAllowed,
    /// No rule allows this method here.
    Method,
    /// The path is outside every allowed prefix, or could lead outside.
    Path,
    /// A rule names a path or a method, which this plane does not see.
    Unseen,
    /// The name does not resolve.
    NoAddress,
    /// The name resolves to an address that is not public, or the address itself is not.
    Address,
    /// The TLS server name is missing.
    NoSni,
    /// The TLS server name is not the granted name.
    SniMismatch,
    /// `Host` and the request target disagree.
    AuthorityMismatch,
    /// The connection carries a protocol that the rule is not for.
    Protocol,
    /// The request's HTTP framing is ambiguous or malformed.
    Framing,
    /// The run declares no such provider.
    Provider,
    /// The provider's credential is not authorized for this target.
    NotAuthorized,
    /// A placeholder stands where its credential may not be used.
    EndpointMismatch,
    /// No field of the credential resolves a placeholder.
    Unresolved,
    /// A credential is bound to the host, and the agent sent one of its own.
    Pinned,
    /// The credential could not be fetched.
    Credential,
    /// The response cannot be searched for the credential.
    Unscrubbed,
    /// The run's budget is used up.
    Budget,
    /// The provider's rate limit is exceeded.
    RateLimit,
    /// A connection from outside has a source address that is not declared, or a web page in a browser asks the gateway.
    Source,
    /// The audit cannot be written. A request that cannot be recorded is not allowed.
    Audit,
}

impl Guard {
    /// Returns the stable code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Syntax => "target_syntax",
            Self::Scheme => "target_scheme",
            Self::Fragment => "target_fragment",
            Self::Userinfo => "target_userinfo",
            Self::HostForm => "host_form",
            Self::Port => "port_not_allowed",
            Self::ReservedName => "reserved_name",
            Self::DenyRule => "deny_rule",
            Self::HostNotAllowed => "host_not_allowed",
            Self::Managed => "managed_policy",
            Self::SchemeNotAllowed => "scheme_not_allowed",
            Self::Method => "method_not_allowed",
            Self::Path => "path_not_allowed",
            Self::Unseen => "rule_needs_visible_request",
            Self::NoAddress => "name_not_found",
            Self::Address => "address_blocked",
            Self::NoSni => "tls_no_server_name",
            Self::SniMismatch => "tls_server_name_mismatch",
            Self::AuthorityMismatch => "authority_mismatch",
            Self::Protocol => "protocol_not_allowed",
            Self::Framing => "http_framing",
            Self::Provider => "provider_not_declared",
            Self::NotAuthorized => "uri_not_authorized",
            Self::EndpointMismatch => "credential_endpoint_mismatch",
            Self::Unresolved => "placeholder_unresolved",
            Self::Pinned => "pinned",
            Self::Credential => "credential_unavailable",
            Self::Unscrubbed => "response_not_scrubbed",
            Self::Budget => "budget_exhausted",
            Self::RateLimit => "rate_limited",
            Self::Source => "source_not_allowed",
            Self::Audit => "audit_unavailable",
        }
    }
}

impl Guard {
    /// Returns whether it tells of a failure and not of the policy: a rule allows the request, and there is no way to where it goes.
    #[must_use]
    pub fn is_failure(self) -> bool {
        self == Self::NoAddress
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// A refusal. It is a result of the pipeline, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The guard that refused.
    pub guard: Guard,
    /// The reason, for people.
    pub reason: String,
    /// What would allow it, if anything does.
    pub hint: Option<Hint>,
    /// The rule that decided, if one did.
    pub rule: Option<String>,
}

impl Denial {
    /// Creates a denial without a hint.
    pub fn new(guard: Guard, reason: impl Into<String>) -> Self {
        Self { guard, reason: reason.into(), hint: None, rule: None }
    }

    /// Sets the hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Hint>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the rule that decided.
    #[must_use]
    pub fn with_rule(mut self, rule: impl Into<String>) -> Self {
        self.rule = Some(rule.into());
        self
    }

    /// Sets the rule that granted what is refused after all, unless another one decided.
    #[must_use]
    pub fn or_with_rule(mut self, granted_by: &str) -> Self {
        self.rule.get_or_insert_with(|| granted_by.to_owned());
        self
    }

    /// Makes it a denial by the managed policy, whose guard refused.
    #[must_use]
    pub(crate) fn managed(self) -> Self {
        let reason = format!("the managed policy does not allow it: {}", self.reason);
        Self { guard: Guard::Managed, reason, ..self }.with_hint(MANAGED)
    }
}

/// The hint of every denial by a managed policy.
pub(crate) const MANAGED: &str = "only whoever keeps the managed policy of this machine can open it";

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.guard, self.reason)
    }
}
