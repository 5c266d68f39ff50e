//! What a request to `/proxy` asks for, by its headers. S0.26, S1.19

use policy::ProviderId;

use crate::http::Fields;

/// S0.53: how much of an answer is given back, and how much may be asked for.
const MAX_RESPONSE_SIZE: usize = 50_000;
const ABSOLUTE_MAX_RESPONSE_SIZE: usize = 1_000_000;

/// What is asked for.
pub(super) struct Ask {
    pub(super) provider: ProviderId,
    /// The target, which may hold `{{…}}` in its path and query.
    pub(super) target: String,
    pub(super) substitute_body: bool,
    pub(super) most: usize,
    /// The proxy to go through.
    pub(super) proxy: Option<String>,
}

impl Ask {
    /// Reads the headers, or says what is wrong in the words that existing clients know.
    pub(super) fn of(fields: &Fields) -> Result<Self, &'static str> {
        let provider = one(fields, "x-provider", "Missing X-Provider header")?;
        let target = one(fields, "x-target", "Missing X-Target header")?;
        let provider = provider.parse().map_err(|_| "Invalid X-Provider format")?;
        let substitute_body = fields.text("x-substitute-body") == Some("true");
        let most = match fields.text("x-max-response-size") {
            None => MAX_RESPONSE_SIZE,
            Some(text) => text.parse::<usize>().map_err(|_| "Invalid X-Max-Response-Size")?,
        };
        let proxy = fields.text("x-proxy").map(str::to_owned);
        let most = most.clamp(1, ABSOLUTE_MAX_RESPONSE_SIZE);
        Ok(Self { provider, target: target.to_owned(), substitute_body, most, proxy })
    }
}

/// The value of a field that there must be one of: of two, two readers could take one each.
fn one<'a>(fields: &'a Fields, name: &'static str, missing: &'static str) -> Result<&'a str, &'static str> {
    match fields.values(name).count() {
        0 | 1 => fields.text(name).ok_or(missing),
        _ => Err("X-Provider and X-Target are given once each"),
    }
}
