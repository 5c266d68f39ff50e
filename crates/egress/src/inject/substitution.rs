//! Replaces placeholders and `{{field}}` in a request by values, and renders a provider's own template into its place.

use credential::{
    Credential, FieldName, NoRoom, Placeholder, Position, Room, Template, is_template, substitute,
};
use policy::{Denial, Guard, InjectionSite, Provider};
use zeroize::Zeroizing;

use super::basic::{basic_of, basic_value};
use super::draft::Sending;
use super::key_names::{is_same_parameter, may_be_same};
use super::subprotocol;
use crate::fetched_credential::{FetchedCredential, unfit};

/// Replaces placeholders by the credential's value, encoded for the place in which each stands.
pub(super) fn redeem(
    sending: &mut Sending,
    provider: &Provider,
    credential: &Credential,
    room: &mut Room,
) -> Result<(), Denial> {
    let field = credential.main_name();
    if credential.field(field.as_str()).is_none() {
        return Err(stands_for_nothing(provider, credential, &field));
    }
    let mut replaced = |text: &[u8], position| {
        let value = Template::parse(&format!("{{{{{field}}}}}"))
            .map_err(|e| Denial::new(Guard::Unresolved, e.to_string()))?
            .render(credential, position)
            .map_err(|e| unfit("request", &e))?;
        replaced(text, value.expose(), room).map_err(|e| unfit("request", &e.into()))
    };
    if Placeholder::is_in(sending.origin_form.as_bytes()) {
        sending.rewrite_target(|text, position| match Placeholder::is_in(text.as_bytes()) {
            true => replaced(text.as_bytes(), position),
            false => Ok(text.as_bytes().to_vec().into()),
        })?;
    }
    sending.fields.rewrite(|name, content| match basic_of(name, content) {
        Some(basic) if Placeholder::is_in(&basic) => {
            Ok(Some(basic_value(&replaced(&basic, Position::Login)?).into()))
        }
        None if Placeholder::is_in(content) => {
            fit_for(name, content, replaced(content, Position::Header)?).map(Some)
        }
        _ => Ok(None),
    })
}

/// Returns the denial for a placeholder that stands for a field which the credential lacks. It names fields, never values.
fn stands_for_nothing(provider: &Provider, credential: &Credential, field: &FieldName) -> Denial {
    let variables = match provider.environment() {
        [] => "a variable".to_owned(),
        names => names.join(" or "),
    };
    let names: Vec<&str> = credential.names().map(FieldName::as_str).collect();
    let has = if names.is_empty() { "no field".to_owned() } else { format!("only {}", names.join(", ")) };
    let why = format!(
        "Unresolved placeholders in request: that of {variables} stands for the field `{field}`, and the credential of `{}` has {has}",
        provider.id()
    );
    Denial::new(Guard::Unresolved, why)
        .with_hint("leave it out where the provider's `inject` puts these fields; or write {{field}} in a request to the gateway's /proxy")
}

/// Whether the target or a header holds `{{field}}`.
pub(super) fn has_templates(sending: &Sending) -> bool {
    is_template(sending.origin_form.as_bytes()) || sending.fields.iter().any(|(_, value)| is_template(value))
}

/// Replaces each `{{field}}` in target and headers. S0.49
pub(super) fn fill(sending: &mut Sending, credential: &Credential, room: &mut Room) -> Result<(), Denial> {
    sending.rewrite_target(|text, position| {
        substitute(text.as_bytes(), credential, position, room).map_err(|e| unfit("URL", &e))
    })?;
    sending.fields.rewrite(|name, content| match is_template(content) {
        true => {
            let filled = substitute(content, credential, Position::Header, room);
            fit_for(name, content, filled.map_err(|e| unfit("header", &e))?).map(Some)
        }
        false => Ok(None),
    })
}

/// Returns a header's value with the credential in it, unless it breaks the form of that header.
fn fit_for(name: &str, written: &[u8], filled: Zeroizing<Vec<u8>>) -> Result<Zeroizing<Vec<u8>>, Denial> {
    if subprotocol::is_fit(name, written, &filled) {
        return Ok(filled);
    }
    let reason = "the credential's value cannot stand in a WebSocket's sub-protocol";
    Err(Denial::new(Guard::Unresolved, reason))
}

fn replaced(text: &[u8], value: &[u8], room: &mut Room) -> Result<Zeroizing<Vec<u8>>, NoRoom> {
    let times = Placeholder::find_all(text).count();
    room.take(std::iter::repeat_n(value.len(), times))?;
    // Allocated at full size: a buffer that grows leaves copies behind.
    let mut out = Zeroizing::new(Vec::with_capacity(text.len() + times * value.len()));
    let mut from = 0;
    for (range, _) in Placeholder::find_all(text) {
        out.extend_from_slice(&text[from..range.start]);
        out.extend_from_slice(value);
        from = range.end;
    }
    out.extend_from_slice(&text[from..]);
    Ok(out)
}

/// Renders a provider's template and puts it where the provider wants it. There it takes room beside what the agent has put in; alone it
/// is as long as the policy and the credential make it.
pub(super) fn place(
    sending: &mut Sending,
    place: &InjectionSite,
    template: &str,
    held: &FetchedCredential,
    mut room: Option<&mut Room>,
) -> Result<(), Denial> {
    let mut render = |position| {
        let value = held.render(template, position)?;
        if let Some(room) = &mut room {
            room.take([value.expose().len()]).map_err(|e| unfit("request", &e.into()))?;
        }
        Ok(value)
    };
    match place {
        InjectionSite::Header(name) => {
            // A server that takes another spelling for the same header could read that one.
            sending.fields.keep(|other| !may_be_same(name, other));
            sending.fields.push(name, render(Position::Header)?.expose());
        }
        InjectionSite::Basic => {
            sending.fields.set("authorization", &basic_value(render(Position::Login)?.expose()));
        }
        InjectionSite::Query(name) => {
            let value = render(Position::Query)?;
            let value = std::str::from_utf8(value.expose()).map_err(|_| {
                Denial::new(Guard::Unresolved, "the credential's value cannot stand in a query")
            })?;
            leave_out_empty(sending, name);
            let joint = if sending.origin_form.contains('?') { '&' } else { '?' };
            sending.origin_form.push(joint);
            sending.origin_form.push_str(name);
            sending.origin_form.push('=');
            sending.origin_form.push_str(value);
        }
    }
    Ok(())
}

/// Leaves out the empty parameters of this name: a server that takes the first one would see no key.
fn leave_out_empty(sending: &mut Sending, name: &str) {
    let Some((path, query)) = sending.origin_form.split_once('?') else { return };
    let is_empty = |pair: &&str| {
        let (written, value) = pair.split_once('=').unwrap_or((pair, ""));
        value.is_empty() && is_same_parameter(name, written)
    };
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_empty(pair)).collect();
    sending.origin_form = match kept.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", kept.join("&")),
    };
}

#[cfg(test)]
mod tests {
    use credential::{Secret, Value};
    use policy::{Method, Target};

    use super::*;
    use crate::http::Fields;

    const OURS: &str = "lgph_0123456789abcdefghijklmnopqrstuvwxyz";

    fn provider() -> Provider {
        let config = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://api.example.com/*\"]\n\
            env = [\"MF_TOKEN\", \"MF_KEY\"]\n";
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), toml::from_str(config).unwrap());
        Provider::clone(layers.compile().unwrap().policy.providers().next().unwrap())
    }

    /// What becomes of a path and query with placeholders, for a credential of these fields, all with this value.
    fn redeemed_with(path_and_query: &str, fields: &[&str], value: &str) -> Result<String, Denial> {
        let mut credential = Credential::default();
        for field in fields {
            let value = Value::new(Secret::from_text(value.to_owned())).unwrap();
            credential.set(field.parse().unwrap(), value);
        }
        let target = Target::parse("https://api.example.com/").unwrap();
        let mut sending = Sending::new(Method::parse("GET").unwrap(), &target, Fields::default());
        sending.origin_form = path_and_query.to_owned();
        redeem(&mut sending, &provider(), &credential, &mut Room::of_head()).map(|()| sending.origin_form)
    }

    fn redeemed(path_and_query: &str, value: &str) -> Result<String, Denial> {
        redeemed_with(path_and_query, &["access_token"], value)
    }

    #[test]
    fn a_placeholder_that_stands_for_no_field_is_told_of_by_names() {
        let (asked, value) = (format!("/v1?key={OURS}"), "the-secret-value");
        for (fields, has) in [
            (
                &["client_id", "client_secret"][..],
                "the credential of `one` has only client_id, client_secret",
            ),
            (&[], "the credential of `one` has no field"),
        ] {
            let denial = redeemed_with(&asked, fields, value).unwrap_err();
            let why = format!(
                "Unresolved placeholders in request: that of MF_TOKEN or MF_KEY stands for the field `access_token`, and {has}"
            );
            assert_eq!((denial.guard, denial.reason), (Guard::Unresolved, why));
        }
        assert!(redeemed_with(&asked, &["client_id"], value).is_ok());
        assert!(redeemed_with(&asked, &["client_id", "access_token"], value).is_ok());
    }

    fn ours() -> FetchedCredential {
        let mut credential = Credential::default();
        let value = Value::new(Secret::from_text("ours".to_owned())).unwrap();
        credential.set("access_token".parse().unwrap(), value);
        FetchedCredential::new("one".parse().unwrap(), credential, None)
    }

    #[test]
    fn what_is_put_in_stands_in_the_place_of_an_empty_parameter() {
        let placed = |path_and_query: &str| {
            let target = Target::parse("https://api.example.com/").unwrap();
            let mut sending = Sending::new(Method::parse("GET").unwrap(), &target, Fields::default());
            sending.origin_form = path_and_query.to_owned();
            let site = InjectionSite::Query("api_key".to_owned());
            place(&mut sending, &site, "{{access_token}}", &ours(), None).unwrap();
            sending.origin_form
        };
        for (asked, sent) in [
            ("/v1", "/v1?api_key=ours"),
            ("/v1?api_key=", "/v1?api_key=ours"),
            ("/v1?api_key", "/v1?api_key=ours"),
            ("/v1?api_key=&a=1&API%2Dkey&b", "/v1?a=1&b&api_key=ours"),
            ("/v1?a=1&&key=", "/v1?a=1&&key=&api_key=ours"),
            ("/v1?api_key=own&api_keys=", "/v1?api_key=own&api_keys=&api_key=ours"),
        ] {
            assert_eq!(placed(asked), sent, "{asked}");
        }
    }

    #[test]
    fn what_is_put_in_stands_in_its_header_alone_however_that_is_spelled() {
        let target = Target::parse("https://api.example.com/").unwrap();
        let names = ["x-api-key", "X_Api_Key", "x.api.key", "x-api-keys"];
        let fields = names.iter().map(|name| (*name, &b"own"[..])).collect();
        let mut sending = Sending::new(Method::parse("GET").unwrap(), &target, fields);
        let site = InjectionSite::Header("x-api-key".to_owned());
        place(&mut sending, &site, "{{access_token}}", &ours(), None).unwrap();
        let left: Vec<_> = sending.fields.iter().collect();
        assert_eq!(left, [("x-api-keys", &b"own"[..]), ("x-api-key", b"ours")]);
    }

    /// A request of 16 KiB can name a credential hundreds of times, and thousands of requests can be on their way at once.
    #[test]
    fn what_a_head_takes_of_values_is_bounded() {
        let value = "v".repeat(30 << 10);
        let mut credential = Credential::default();
        credential.set("access_token".parse().unwrap(), Value::new(Secret::from_text(value)).unwrap());
        let held = FetchedCredential::new("one".parse().unwrap(), credential, None);
        let target = Target::parse("https://api.example.com/").unwrap();
        let sending = |field: &str, fields: usize| {
            let fields = std::iter::repeat_n(("x-key", field.as_bytes()), fields).collect();
            Sending::new(Method::parse("GET").unwrap(), &target, fields)
        };
        let is_refused = |put: Result<(), Denial>| match put {
            Ok(()) => false,
            Err(denial) => {
                assert!(denial.guard == Guard::Unresolved && denial.reason.contains("65536"), "{denial}");
                true
            }
        };
        let provider = provider();
        let redeemed =
            |mut it: Sending| is_refused(redeem(&mut it, &provider, held.credential(), &mut Room::of_head()));
        let filled = |mut it: Sending| is_refused(fill(&mut it, held.credential(), &mut Room::of_head()));
        for (times, fields, refused) in
            [(1, 1, false), (2, 1, false), (1, 2, false), (390, 1, true), (1, 3, true)]
        {
            assert_eq!(redeemed(sending(&OURS.repeat(times), fields)), refused, "{times} in {fields}");
            assert_eq!(
                filled(sending(&"{{access_token}}".repeat(times), fields)),
                refused,
                "{times} in {fields}"
            );
        }
        // What the provider puts in counts with it.
        let mut room = Room::of_head();
        let mut both = sending("{{access_token}}", 2);
        fill(&mut both, held.credential(), &mut room).unwrap();
        let room = Some(&mut room);
        assert!(is_refused(place(&mut both, &InjectionSite::Basic, "{{access_token}}", &held, room)));
    }

    #[test]
    fn a_value_is_judged_by_the_place_in_which_its_placeholder_stands() {
        let value = "a/b?c#d%..";
        assert_eq!(redeemed(&format!("/v1?key={OURS}"), value).unwrap(), "/v1?key=a%2Fb%3Fc%23d%25..");
        for path in [format!("/{OURS}"), format!("/{OURS}?key=1"), format!("/{OURS}?key={OURS}")] {
            assert!(redeemed(&path, value).is_err(), "{path}");
        }
        assert_eq!(redeemed(&format!("/{OURS}?key={OURS}"), "ab").unwrap(), "/ab?key=ab");
        assert_eq!(redeemed(&format!("/{OURS}?q"), "ab").unwrap(), "/ab?q");
    }
}
