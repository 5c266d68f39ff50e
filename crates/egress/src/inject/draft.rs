//! A request as it will be sent, and as it was before its credential was injected.

use std::rc::Rc;

use policy::{Method, Scheme, Target};

use crate::credentials::FetchedCredential;
use crate::http::Fields;
use crate::llm::Admitted;

/// A request as it will be sent. It has no `Debug`, because it may hold a credential.
#[derive(Clone)]
pub(crate) struct Sending {
    pub(crate) method: Method,
    pub(crate) scheme: Scheme,
    pub(crate) authority: String,
    pub(crate) origin_form: String,
    pub(crate) fields: Fields,
}

impl Sending {
    /// Makes a request for a target, with the header fields that are sent on.
    pub(crate) fn new(method: Method, target: &Target, fields: Fields) -> Self {
        let (authority, origin_form) = (target.host_header(), target.origin_form());
        Self { method, scheme: target.scheme(), authority, origin_form, fields }
    }
}

/// How the agent marks where a credential goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// By a placeholder from its environment.
    Placeholders,
    /// By a placeholder or `{{field}}`, as in requests to the gateway's `/proxy`.
    Templates,
}

/// A request before its credential was injected, kept to be sent again with another credential.
pub(crate) struct Draft {
    pub(super) sending: Sending,
    pub(super) redeemable: Redeemable,
}

/// What was injected into a request.
pub(crate) struct Injected {
    pub(crate) held: Rc<FetchedCredential>,
    pub(crate) draft: Draft,
    /// The admission by the run's budget, if the request asks a model for something.
    pub(crate) admitted: Option<Admitted>,
}

/// What a request holds for its credential to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redeemable {
    Placeholders,
    Templates,
    Nothing,
}
