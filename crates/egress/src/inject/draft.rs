//! A request as it will be sent, and as it was before its credential was injected.

use std::rc::Rc;

use credential::{Placeholder, Position, is_template};
use policy::{Denial, Guard, Method, Scheme, Target};
use zeroize::Zeroizing;

use crate::fetched_credential::FetchedCredential;
use crate::http::Fields;
use crate::llm::Admitted;
use crate::rate::Token;

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

    /// The path of its target.
    pub(super) fn path(&self) -> &str {
        self.origin_form.split_once('?').map_or(&self.origin_form, |(path, _)| path)
    }

    /// The query of its target, if it has one.
    pub(super) fn query(&self) -> Option<&str> {
        self.origin_form.split_once('?').map(|(_, query)| query)
    }

    /// Rewrites the path and the query of its target, each by itself: what is unfit for the one may stand in the other.
    pub(super) fn rewrite_target(
        &mut self,
        mut rewrite: impl FnMut(&str, Position) -> Result<Zeroizing<Vec<u8>>, Denial>,
    ) -> Result<(), Denial> {
        let path = rewrite(self.path(), Position::Path)?;
        let target = match self.query() {
            Some(query) => [&path[..], b"?", &rewrite(query, Position::Query)?].concat(),
            None => path.to_vec(),
        };
        self.origin_form = String::from_utf8(target)
            .map_err(|_| Denial::new(Guard::Unresolved, "the credential's value cannot stand in a target"))?;
        Ok(())
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

impl Form {
    /// Whether a text holds such a mark.
    pub(super) fn marks(self, text: &[u8]) -> bool {
        Placeholder::is_in(text) || (self == Self::Templates && is_template(text))
    }
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
    /// The token of the provider's rate, until the request is sent.
    pub(crate) token: Option<Token>,
    /// The admission by the run's budget, if the request asks a model for something.
    pub(crate) admitted: Option<Admitted>,
    /// Whether it asks a model's API for what somebody has stored there, which tells nothing of a model's use.
    pub(crate) asks_for_stored: bool,
}

/// What a request holds for its credential to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redeemable {
    Placeholders,
    Templates,
    Nothing,
}
