//! A request as it will be sent, and as it was before its credential was put in.

use std::rc::Rc;

use policy::{Method, Scheme, Target};

use crate::credentials::FetchedCredential;
use crate::http::Fields;
use crate::llm::Admitted;

/// A request as it will be sent. It may hold a credential, so it has no `Debug`.
#[derive(Clone)]
pub(crate) struct Sending {
    pub(crate) method: Method,
    pub(crate) scheme: Scheme,
    pub(crate) authority: String,
    pub(crate) origin_form: String,
    pub(crate) fields: Fields,
}

impl Sending {
    /// A request for a target, with the fields that go on.
    pub(crate) fn new(method: Method, target: &Target, fields: Fields) -> Self {
        let (authority, origin_form) = (target.host_header(), target.origin_form());
        Self { method, scheme: target.scheme(), authority, origin_form, fields }
    }
}

/// In what form the agent says where a credential goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// By the placeholder of its environment.
    Placeholders,
    /// By `{{field}}` as well, as requests to the gateway's `/proxy` do.
    Templates,
}

/// A request before its credential was put in, so that it can be made again with another.
pub(crate) struct Draft {
    pub(super) sending: Sending,
    pub(super) redeemable: Redeemable,
}

/// What has been put into a request.
pub(crate) struct Injected {
    pub(crate) held: Rc<FetchedCredential>,
    pub(crate) draft: Draft,
    /// Its place in the run's account, where it asks a model for something.
    pub(crate) admitted: Option<Admitted>,
}

/// Whether a request holds placeholders that may be redeemed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redeemable {
    Placeholders,
    Templates,
    Nothing,
}
