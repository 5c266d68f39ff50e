//! Whether what stands in a place of keys is the run's own: a placeholder, or a `{{field}}` in a form that has them, in one of the forms in
//! which services take a key, and nothing beside it that could be another key.
//!
//! The forms, each from end to end:
//! - a mark alone, or behind a scheme: `Bearer MARK`;
//! - the text that the provider injects there, with a mark for each of its fields;
//! - where the agent chooses the place, also parameters that services read as keys (`token="MARK", secret=MARK`), and one word of marks,
//!   separators and fewer letters than a secret has (`id-MARK`, `MARK/MARK`, `MARK:foo`).

use credential::{Placeholder, is_template};
use policy::{Injection, InjectionSite, Placeholders, Provider, Target};

use super::basic::{basic_of, is_no_password, user_and_password};
use super::draft::Form;
use super::key_names::{is_key_parameter, is_same};

/// What counts as the run's own in a request to one target.
#[derive(Clone, Copy)]
pub(super) struct Marks<'a> {
    form: Form,
    place: Placeholders,
    injection: Option<&'a Injection>,
}

impl<'a> Marks<'a> {
    pub(super) fn of(provider: Option<&'a Provider>, target: &Target, form: Form) -> Self {
        Self {
            form,
            place: provider.map_or(Placeholders::InPlace, Provider::placeholders),
            injection: provider.and_then(|provider| provider.injection(target)),
        }
    }

    /// Whether a header holds nothing but the run's own. In basic authentication, whether the key is.
    pub(super) fn are_all_of_header(self, name: &str, value: &[u8]) -> bool {
        if let Some(basic) = basic_of(name, value) {
            return self.are_key_of_basic(&basic);
        }
        let injected =
            |site: &InjectionSite| matches!(site, InjectionSite::Header(header) if is_same(header, name));
        let value = value.trim_ascii();
        let behind_scheme = scheme_of(value).map(|scheme| &value[scheme.len()..]);
        is_placeholder(value, self.form)
            || behind_scheme.is_some_and(|key| is_placeholder(key, self.form))
            || self.fill_injection(injected, value)
            || self.are_all_of_free(value)
            || behind_scheme.is_some_and(|key| self.are_all_of_free(key))
    }

    /// Whether a parameter of the query holds nothing but the run's own.
    pub(super) fn are_all_of_parameter(self, name: &str, value: &[u8]) -> bool {
        let injected = |site: &InjectionSite| matches!(site, InjectionSite::Query(parameter) if is_same(parameter, name));
        is_placeholder(value, self.form)
            || self.fill_injection(injected, value)
            || (self.place == Placeholders::Anywhere && is_word_of_marks(value, self.form))
    }

    /// Whether the `NAME=VALUE` of a cookie holds nothing but the run's own.
    pub(super) fn are_all_of_cookie(self, pair: &[u8]) -> bool {
        let value = memchr::memchr(b'=', pair).map_or(pair, |at| &pair[at + 1..]);
        is_placeholder(unquoted(value), self.form)
            || (self.place == Placeholders::Anywhere && is_word_of_marks(unquoted(value), self.form))
    }

    /// Whether a text is that which the provider injects, with a mark for each field.
    pub(super) fn fill_injection(self, is_place: impl Fn(&InjectionSite) -> bool, text: &[u8]) -> bool {
        self.injection.is_some_and(|injection| {
            is_place(injection.place()) && is_filled(injection.value().as_bytes(), text, self.form)
        })
    }

    /// Whether a header is what the provider's injection would put there, with a placeholder for its field. Of two fields a placeholder,
    /// which stands for one, is not both.
    pub(super) fn are_as_injected(self, name: &str, value: &[u8]) -> bool {
        let is_basic = |site: &InjectionSite| matches!(site, InjectionSite::Basic);
        let basic = basic_of(name, value).filter(|_| self.injection.is_some_and(|it| is_basic(it.place())));
        let (text, in_basic) = (basic.as_deref().unwrap_or(value), basic.is_some());
        Placeholder::find_all(text).count() == 1
            && self.fill_injection(|site| is_basic(site) == in_basic, text)
    }

    fn are_all_of_free(self, value: &[u8]) -> bool {
        self.place == Placeholders::Anywhere
            && (are_parameters(value, self.form) || is_word_of_marks(value, self.form))
    }

    fn are_key_of_basic(self, basic: &[u8]) -> bool {
        let (user, password) = user_and_password(basic);
        // Templates are not filled inside base64, so none may stand there.
        let is_ours = |part: &[u8]| is_placeholder(part, Form::Placeholders);
        match basic_key(self.injection) {
            BasicKey::User => is_ours(user) && (is_no_password(password) || is_ours(password)),
            BasicKey::Password => is_ours(password) || (is_no_password(password) && is_ours(user)),
        }
    }
}

/// Where a service looks for the key in basic authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BasicKey {
    /// In the user's name. A password is not looked at.
    User,
    /// In the password, or in the user's name if there is no real password.
    Password,
}

/// Returns where this provider's own injection puts the key.
fn basic_key(injection: Option<&Injection>) -> BasicKey {
    // If both are fields, the user's name only says whose key it is.
    let is_user = |it: &Injection| {
        let (user, password) = user_and_password(it.value().as_bytes());
        matches!(it.place(), InjectionSite::Basic) && is_template(user) && !is_template(password)
    };
    if injection.is_some_and(is_user) { BasicKey::User } else { BasicKey::Password }
}

/// A scheme with anything but letters is no longer than those in use (`Klaviyo-API-Key`), so that a key is not taken for one.
const LONGEST_SCHEME: usize = 16;
/// A text of fewer octets is no secret.
const SHORTEST_SECRET: usize = 4;

/// Returns the authentication scheme before a key, with the blanks after it: `Bearer `. RFC 9110 §11.4
fn scheme_of(value: &[u8]) -> Option<&[u8]> {
    let at = value.iter().position(|b| is_blank(*b))?;
    let blanks = value[at..].iter().take_while(|b| is_blank(**b)).count();
    let is_scheme = |scheme: &[u8]| {
        let others = scheme.iter().filter(|b| !b.is_ascii_alphabetic()).count();
        others == 0
            || (others < SHORTEST_SECRET
                && scheme.len() <= LONGEST_SCHEME
                && scheme.iter().all(|b| is_token_octet(*b)))
    };
    is_scheme(&value[..at]).then(|| &value[..at + blanks])
}

fn is_blank(octet: u8) -> bool {
    matches!(octet, b' ' | b'\t')
}

/// Whether an octet may stand in a token (RFC 9110 §5.6.2).
pub(super) fn is_token_octet(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet)
}

/// Whether a text is one placeholder from end to end, or one `{{field}}` in a form that has them.
pub(super) fn is_placeholder(text: &[u8], form: Form) -> bool {
    !text.is_empty() && mark_at_start(text, form) == Some(text.len())
}

/// Returns the length of the mark with which a text begins.
fn mark_at_start(text: &[u8], form: Form) -> Option<usize> {
    let head = &text[..text.len().min(Placeholder::LENGTH)];
    if Placeholder::is_in(head) {
        return Some(Placeholder::LENGTH);
    }
    if form == Form::Templates { field_at_start(text) } else { None }
}

/// Returns the length of the `{{field}}` with which a text begins.
fn field_at_start(text: &[u8]) -> Option<usize> {
    let behind = text.strip_prefix(b"{{")?;
    let name = behind.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    (name > 0 && behind[name..].starts_with(b"}}")).then_some(name + 4)
}

/// Whether a text is a template with a mark in the place of each of its fields. A blank stands for any number of them.
fn is_filled(template: &[u8], text: &[u8], form: Form) -> bool {
    let (template, text) = (template.trim_ascii(), text.trim_ascii());
    let behind_blanks = |text: &[u8]| text.iter().take_while(|b| is_blank(**b)).count();
    let (mut template, mut text) = (template, text);
    loop {
        if let Some(field) = field_at_start(template) {
            let Some(mark) = mark_at_start(text, form) else { return false };
            (template, text) = (&template[field..], &text[mark..]);
            continue;
        }
        match (template.first(), text.first()) {
            (None, None) => return true,
            (Some(a), Some(b)) if is_blank(*a) && is_blank(*b) => {
                (template, text) = (&template[behind_blanks(template)..], &text[behind_blanks(text)..]);
            }
            (Some(a), Some(b)) if a == b => (template, text) = (&template[1..], &text[1..]),
            _ => return false,
        }
    }
}

/// Whether a text is a list of parameters that services read as keys, each with a mark alone as its value (RFC 9110 §11.2).
fn are_parameters(text: &[u8], form: Form) -> bool {
    text.split(|b| *b == b',').all(|parameter| {
        let Some(at) = memchr::memchr(b'=', parameter) else { return false };
        let (name, value) = (parameter[..at].trim_ascii(), parameter[at + 1..].trim_ascii());
        std::str::from_utf8(name).is_ok_and(is_key_parameter) && is_placeholder(unquoted(value), form)
    })
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

/// Whether a text is one word of marks and separators, with fewer letters and digits than a secret has, none of which touches a mark:
/// what a service reads as one part is either a mark or no key.
fn is_word_of_marks(text: &[u8], form: Form) -> bool {
    let (mut rest, mut own, mut marks) = (text, 0, 0);
    let mut before = b':';
    while let Some((first, after)) = rest.split_first() {
        if let Some(length) = mark_at_start(rest, form) {
            rest = &rest[length..];
            if before.is_ascii_alphanumeric() || rest.first().is_some_and(u8::is_ascii_alphanumeric) {
                return false;
            }
            marks += 1;
            before = b':';
            continue;
        }
        own += usize::from(first.is_ascii_alphanumeric());
        if own >= SHORTEST_SECRET || !(first.is_ascii_alphanumeric() || b"-._~:/|@".contains(first)) {
            return false;
        }
        (rest, before) = (after, *first);
    }
    marks > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "lgph_0123456789abcdefghijklmnopqrstuvwxyz";

    fn basic(text: &str) -> Vec<u8> {
        super::super::basic::basic_value(text.as_bytes())
    }

    /// A provider with these further lines.
    fn provider(lines: &str) -> std::sync::Arc<Provider> {
        let config = toml::from_str(&format!(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://api.example.com/*\"]\n{lines}\n"
        ));
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        layers.compile().unwrap().policy.providers().next().unwrap().clone()
    }

    fn said(provider: Option<&std::sync::Arc<Provider>>, form: Form) -> Marks<'_> {
        Marks::of(provider.map(|it| &**it), &Target::parse("https://api.example.com/").unwrap(), form)
    }

    #[test]
    fn only_a_placeholder_authenticates() {
        let ours = |value: &[u8]| said(None, Form::Placeholders).are_all_of_header("authorization", value);
        assert!(
            ours(OURS.as_bytes())
                && ours(format!("Bearer {OURS}").as_bytes())
                && ours(format!("token {OURS}").as_bytes())
        );
        assert!(ours(&basic(&format!("x-access-token:{OURS}"))) && ours(&basic(&format!("{OURS}:"))));
        assert!(ours(&basic(&format!("{OURS}:x-oauth-basic"))));
        for own in [
            b"Bearer own".to_vec(),
            format!("Bearer own, Bearer {OURS}").into_bytes(),
            format!("Bearer {OURS}x").into_bytes(),
            basic(&format!("{OURS}:own")),
            basic(&format!("own:{OURS}x")),
            basic("{{x}}:own"),
            b"Bearer {{access_token}}".to_vec(),
        ] {
            assert!(!ours(&own), "{}", String::from_utf8_lossy(&own));
        }
        let filled = |value: &[u8]| said(None, Form::Templates).are_all_of_header("authorization", value);
        assert!(filled(b"Bearer {{access_token}}") && !filled(b"Bearer own {{access_token}}"));
    }

    #[test]
    fn a_key_that_is_the_user_is_not_somebody_elses() {
        let user = provider("inject = { basic = \"{{access_token}}:\" }");
        for (text, as_user, as_password) in [
            (format!("own:{OURS}"), false, true),
            (format!("{OURS}:"), true, true),
            (format!("{OURS}:x-oauth-basic"), true, true),
            (format!("{OURS}:{OURS}"), true, true),
            (format!("{OURS}:own"), false, false),
            ("own:".to_owned(), false, false),
        ] {
            let ours = |provider| {
                said(provider, Form::Placeholders).are_all_of_header("authorization", &basic(&text))
            };
            assert_eq!((ours(Some(&user)), ours(None)), (as_user, as_password), "{text}");
        }
    }

    #[test]
    fn a_scheme_is_a_token_that_is_no_key() {
        let ours =
            |value: &str| said(None, Form::Placeholders).are_all_of_header("authorization", value.as_bytes());
        for scheme in [
            "DeepL-Auth-Key ",
            "Api-Key ",
            "Klaviyo-API-Key ",
            "Zoho-oauthtoken ",
            "OAuth2 ",
            "Bearer  ",
            "Bearer\t",
            "SharedAccessSignature ",
        ] {
            assert!(ours(&format!("{scheme}{OURS}")), "{scheme}");
        }
        for value in [
            format!("sk-0123456789abcdef {OURS}"),
            format!("0123456789 {OURS}"),
            format!("Api-Key, {OURS}"),
            format!("Api:Key {OURS}"),
            format!("Api-Key own {OURS}"),
            format!(" , {OURS}"),
        ] {
            assert!(!ours(&value), "{value}");
        }
    }

    #[test]
    fn what_the_provider_injects_is_its_own_with_a_mark_in_it() {
        for (template, form) in [
            ("Token token={{access_token}}", "Token token=M"),
            ("Key id:{{access_token}}", "Key  id:M"),
            ("token=\"{{access_token}}\"", "token=\"M\""),
            ("AccountNumber0123456789 {{access_token}}", "AccountNumber0123456789\tM"),
            ("OAuth {{client_id}}/{{client_secret}}", "OAuth M/M"),
        ] {
            let inject = format!("inject = {{ header = \"authorization\", value = '{template}' }}");
            let provider = provider(&inject);
            let marks = said(Some(&provider), Form::Placeholders);
            let ours = |name: &str, value: &str| marks.are_all_of_header(name, value.as_bytes());
            let value = form.replace('M', OURS);
            assert!(ours("authorization", &value), "{form}");
            let templates = said(Some(&provider), Form::Templates);
            assert!(templates.are_all_of_header("authorization", template.as_bytes()), "{form}");
            assert!(!marks.are_all_of_header("authorization", template.as_bytes()), "{form}");
            for other in [format!("{value}x"), format!("x{value}"), format!("{value}, own"), form.to_owned()]
            {
                assert!(!ours("authorization", &other), "{other}");
            }
        }
        let provider = provider("inject = { query = \"sign\", value = \"v1-{{access_token}}\" }");
        let marks = said(Some(&provider), Form::Placeholders);
        let ours = |name: &str, value: &str| marks.are_all_of_parameter(name, value.as_bytes());
        assert!(ours("sign", &format!("v1-{OURS}")) && ours("sign", OURS));
        assert!(!ours("key", &format!("v1-{OURS}")) && !ours("sign", &format!("v2-{OURS}")));
        assert!(!marks.are_all_of_header("sign", format!("v1-{OURS}").as_bytes()));
    }

    #[test]
    fn where_the_agent_says_where_it_writes_no_key_beside_its_mark() {
        let anywhere = provider("");
        let own = provider("inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }");
        let free = said(Some(&anywhere), Form::Placeholders);
        let held = said(Some(&own), Form::Placeholders);
        for form in [
            "Token token=M",
            "Token token=\"M\"",
            "Discogs key=M, secret=M",
            "Token Access_Token = \"M\"",
            "OAuth M/M",
            "ApiKey u:M",
            "M:foo",
            "id-M",
            "M.M",
        ] {
            let value = form.replace('M', OURS);
            assert!(free.are_all_of_header("x-auth", value.as_bytes()), "{form}");
            assert!(!held.are_all_of_header("x-auth", value.as_bytes()), "{form}");
            let filled = form.replace('M', "{{access_token}}");
            assert!(!free.are_all_of_header("x-auth", filled.as_bytes()), "{form}");
            let templates = said(Some(&anywhere), Form::Templates);
            assert!(templates.are_all_of_header("x-auth", filled.as_bytes()), "{form}");
        }
        for form in [
            "Bearer OWNKEYM",
            "Bearer MOWNKEY",
            "Bearer OWNKEY-M",
            "Bearer OWNKEY:M",
            "Bearer M:OWNKEY",
            "Bearer OWNKEY=M",
            "Bearer OWNKEY, Bearer M",
            "Bearer M, Bearer own",
            "Bearer own M",
            "Bearer M own",
            "Bearer xM",
            "Bearer M1",
            "Token token=M, secret=OWNKEY",
            "Token token=OWNKEY, secret=M",
            "Token token=\"M\", OWNKEY",
            "Token token=\"OWNKEY M\"",
            "Token token=\"M",
            "Token own=M",
            "a-b-c-dM",
            "o:w:n:k:M",
            "\u{e9}:M",
            "%6F%77:M",
            "own;M",
            "own",
            ":",
            "",
        ] {
            let value = form.replace('M', OURS);
            assert!(!free.are_all_of_header("x-auth", value.as_bytes()), "{form}");
        }
        for (form, ours) in
            [("id-M", true), ("M", true), ("OWNKEYM", false), ("token=M", false), ("own%2CM", false)]
        {
            let value = form.replace('M', OURS);
            assert_eq!(free.are_all_of_parameter("key", value.as_bytes()), ours, "{form}");
        }
    }
}
