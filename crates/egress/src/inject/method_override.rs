//! Header fields and parameters of the query by which servers take another method or path than those of the request line, or a second
//! path. The request must be allowed under each reading, and under each it must be fit for the credential that is injected.

use std::borrow::Cow;
use std::net::IpAddr;

use policy::{Asked, Denial, Guard, Method, Plane, Policy, Provider, Target};

use super::copy_source;
use super::draft::Sending;
use super::key_names::may_be_same;
use super::percent::decoded;

/// Fields that override the method.
const METHODS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
/// Parameters of the query that override the method at Google's APIs, and whose hosts those are. There `$` may be left out of such names;
/// elsewhere the plain one is any service's own.
const QUERIED_METHODS: [&str; 2] = ["$httpMethod", "httpMethod"];
const GOOGLES: &str = ".googleapis.com";
/// Fields that override the path.
const PATHS: [&str; 4] = ["x-original-url", "x-rewrite-url", "x-original-uri", "x-forwarded-uri"];
/// The field that names a second path, and the methods that read it (RFC 4918 §10.3).
const DESTINATION: &str = "destination";
const WITH_DESTINATION: [&str; 2] = ["COPY", "MOVE"];
/// How many different values all these fields, and those of a copy's source, may have together: each is judged with the others.
const MOST_VALUES: usize = 4;

/// What a request was granted by, and what each of its readings is judged by.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) policy: &'a Policy,
    pub(super) provider: Option<&'a Provider>,
    /// The addresses to which the request may go, where they are known here.
    pub(super) judged: &'a [IpAddr],
}

impl Terms<'_> {
    /// Judges a reading, as the request itself was: by the policy, and by where it goes.
    pub(super) fn allow(&self, method: &Method, target: &Target) -> Result<(), Denial> {
        let mut asked = Asked::request(Plane::Forward, method.clone(), target);
        asked.provider = self.provider.map(|provider| provider.id().clone());
        let grant = self.policy.decide(&asked)?;
        if self.judged.is_empty() { Ok(()) } else { grant.vet(self.judged) }
    }
}

/// The ways in which servers may read a request: each method with each target, and first those of the request line.
pub(super) struct Readings {
    pub(super) methods: Vec<Method>,
    targets: Vec<Target>,
}

impl Readings {
    /// Returns the reading of the request line alone.
    pub(super) fn as_written(sending: &Sending, target: &Target) -> Self {
        Self { methods: vec![sending.method.clone()], targets: vec![target.clone()] }
    }

    /// Returns the path of each reading.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().map(|target| target.path().as_str())
    }

    /// Takes in a target that is allowed by each method. One that is known already is not judged again.
    fn take(
        &mut self,
        other: Target,
        allowed: impl Fn(&Method, &Target) -> Result<(), Denial>,
    ) -> Result<(), Denial> {
        if !self.targets.contains(&other) {
            self.methods.iter().try_for_each(|method| allowed(method, &other))?;
            self.targets.push(other);
        }
        Ok(())
    }
}

/// Returns the readings of a request.
///
/// # Errors
/// No rule allows one of the readings, there are too many, or one is a `TRACE` that would carry a credential.
pub(super) fn judge(sending: &Sending, terms: Terms<'_>, target: &Target) -> Result<Readings, Denial> {
    let allowed = |method: &Method, target: &Target| terms.allow(method, target);
    let mut queried: Vec<(&str, Cow<'_, str>)> = queried_methods(target).collect();
    let moves = queried.iter().any(|(_, method)| has_destination(method.trim()));
    if !terms.policy.looks_at_methods(target.host(), target.port()) {
        queried.clear(); // any method is like the next, and so a query changes no verdict (R8)
    }
    check_few(sending, &queried)?;
    let refused = |name: &str, denial: Denial| {
        let reason = format!("`{name}` makes it another request to some servers: {}", denial.reason);
        Denial { reason, ..denial }.with_hint(format!("send it without `{name}`"))
    };
    let values =
        |name| sending.fields.iter().filter(move |(it, _)| may_be_same(it, name)).map(|(_, value)| value);
    let mut readings = Readings::as_written(sending, target);
    let in_query =
        |name| queried.iter().filter(move |(it, _)| *it == name).map(|(_, value)| value.as_bytes());
    for name in METHODS.into_iter().chain(QUERIED_METHODS) {
        for method in methods(values(name).chain(in_query(name))).map_err(|denial| refused(name, denial))? {
            if !readings.methods.contains(&method) {
                allowed(&method, target).map_err(|denial| refused(name, denial))?;
                readings.methods.push(method);
            }
        }
    }
    for name in PATHS {
        for value in values(name) {
            let path = String::from_utf8_lossy(value);
            let other =
                Target::from_origin_form(target.scheme(), target.host().clone(), target.port(), path.trim());
            let judged = other.and_then(|other| readings.take(other, allowed));
            judged.map_err(|denial| refused(name, denial))?;
        }
    }
    if moves || readings.methods.iter().any(|method| has_destination(method.as_str())) {
        for value in values(DESTINATION) {
            let other = destination(target, String::from_utf8_lossy(value).trim());
            other.and_then(|other| readings.take(other, allowed)).map_err(|denial| {
                let reason = format!("its `{DESTINATION}` is judged as its path: {}", denial.reason);
                Denial { reason, hint: None, ..denial }
            })?;
        }
    }
    copy_source::judge(sending, target, &readings.methods, &allowed)?;
    if terms.provider.is_some() && readings.methods.iter().any(|method| method.as_str() == "TRACE") {
        // A response to TRACE repeats every header (C12).
        return Err(Denial::new(Guard::Method, "TRACE is not sent with a credential"));
    }
    Ok(readings)
}

/// Returns what the query names as the method, each with the name of its parameter, however a server may decode it.
fn queried_methods(target: &Target) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let is_googles = target.host().to_string().ends_with(GOOGLES);
    target.query().unwrap_or_default().split(['&', ';']).filter_map(move |parameter| {
        let (name, value) = parameter.split_once('=')?;
        let name = decoded(name);
        let mut known = QUERIED_METHODS.into_iter().filter(|known| is_googles || known.starts_with('$'));
        let known = known.find(|known| name.eq_ignore_ascii_case(known))?;
        Some((known, decoded(value)))
    })
}

/// Refuses more values than any client sends: each makes it one more request to judge.
fn check_few(sending: &Sending, queried: &[(&str, Cow<'_, str>)]) -> Result<(), Denial> {
    let names = METHODS.iter().chain(&PATHS).chain([&DESTINATION]);
    let is_another = |name: &str| {
        names.clone().any(|known| may_be_same(name, known)) || copy_source::Source::of(name).is_some()
    };
    let in_fields = sending.fields.iter().filter(|(name, _)| is_another(name));
    let in_query = queried.iter().map(|(name, value)| (*name, value.as_bytes()));
    let mut values: Vec<&[u8]> = Vec::new();
    for (name, value) in in_fields.chain(in_query) {
        if values.contains(&value) {
            continue;
        }
        if values.len() == MOST_VALUES {
            let why = format!(
                "`{name}` is one too many: {MOST_VALUES} values may say that it has another method or path"
            );
            return Err(Denial::new(Guard::Framing, why).with_hint(format!("send it without `{name}`")));
        }
        values.push(value);
    }
    Ok(())
}

fn has_destination(method: &str) -> bool {
    WITH_DESTINATION.iter().any(|it| method.eq_ignore_ascii_case(it))
}

/// Reads a `Destination`: a path, or a whole address of the same host. A server looks at the path of it.
fn destination(target: &Target, text: &str) -> Result<Target, Denial> {
    let path = match text.starts_with('/') {
        true if text.starts_with("//") => {
            return Err(Denial::new(Guard::Syntax, "a path begins with one `/` (RFC 4918 §8.3)"));
        }
        true => text.to_owned(),
        // Beside what is moved, as CouchDB has it.
        false if !text.contains("://") => {
            let path = target.path().as_str();
            format!("{}{text}", &path[..=path.rfind('/').unwrap_or(0)])
        }
        false => {
            let whole = Target::parse(text)?;
            if whole.host() != target.host() {
                let why = format!("{} is another host than {}", whole.host(), target.host());
                return Err(Denial::new(Guard::AuthorityMismatch, why));
            }
            whole.origin_form()
        }
    };
    Target::from_origin_form(target.scheme(), target.host().clone(), target.port(), &path)
}

/// Reads the methods that a field names, one in each of its values. A single empty value overrides nothing.
fn methods<'a>(values: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Method>, Denial> {
    let texts: Vec<String> =
        values.map(|value| String::from_utf8_lossy(value).trim().to_ascii_uppercase()).collect();
    if matches!(&texts[..], [only] if only.is_empty()) {
        return Ok(Vec::new());
    }
    let read =
        |text: &String| Method::parse(text).ok_or_else(|| Denial::new(Guard::Method, "it names no method"));
    texts.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Fields;

    fn terms<'a>(policy: &'a Policy, judged: &'a [IpAddr]) -> Terms<'a> {
        Terms { policy, provider: None, judged }
    }

    #[test]
    fn a_header_without_a_text_stands_in_for_no_method() {
        let read = |values: &[&str]| {
            let values = values.iter().map(|value| value.as_bytes());
            methods(values).ok().map(|all| all.iter().map(|it| it.as_str().to_owned()).collect::<Vec<_>>())
        };
        assert_eq!((read(&[]), read(&[""]), read(&[" \t"])), (Some(vec![]), Some(vec![]), Some(vec![])));
        assert_eq!(read(&["delete ", "PUT"]), Some(vec!["DELETE".into(), "PUT".into()]));
        // Servers differ in which of several values they take.
        for strange in [&["", "DELETE"][..], &["", ""], &["a b"], &[","]] {
            assert_eq!(read(strange), None, "{strange:?}");
        }
    }

    #[test]
    fn a_path_in_a_header_is_judged_as_the_path() {
        let config = toml::from_str("[[egress.allow]]\nurl = \"https://api.example.com/open/*\"\n");
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        let policy = layers.compile().unwrap().policy;
        let target = Target::parse("https://api.example.com/open/a").unwrap();
        let judged = |name: &str, path: &str| {
            let fields = Fields::from_iter([(name, path.as_bytes())]);
            let sending = Sending::new(Method::parse("GET").unwrap(), &target, fields);
            judge(&sending, terms(&policy, &[]), &target).map(|readings| readings.paths().count())
        };
        for name in [
            "x-original-url",
            "X-Rewrite-URL",
            "X-Original-URI",
            "X-Forwarded-Uri",
            "x_forwarded_uri",
            "X.Original.URL",
        ] {
            assert_eq!(judged(name, "/open/b").ok(), Some(2), "{name}");
            let denial = judged(name, "/closed").err().unwrap();
            assert!(denial.reason.contains("makes it another request"), "{name}: {}", denial.reason);
        }
        assert_eq!(judged("x-forwarded-for", "/closed").ok(), Some(1));
    }

    #[test]
    fn few_values_may_make_it_another_request_and_each_is_judged_once() {
        let config = toml::from_str("[[egress.allow]]\nhost = \"api.example.com\"\n");
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        let policy = layers.compile().unwrap().policy;
        let target = Target::parse("https://api.example.com/a").unwrap();
        let judged = |fields: &[(&str, &str)]| {
            let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
            let sending = Sending::new(Method::parse("COPY").unwrap(), &target, Fields::from_iter(fields));
            judge(&sending, terms(&policy, &[]), &target).map(|it| (it.methods.len(), it.targets.len()))
        };
        let (method, path) = ("x-method-override", "x-original-url");
        let many = [(method, "GET"), (path, "/b"), ("destination", "/b"), (path, "/a"), (method, "COPY")];
        assert_eq!(judged(&many.repeat(25)).unwrap(), (2, 2));
        for (name, value) in [
            (method, "PUT"),
            ("x_http_method", "PUT"),
            (path, "/c"),
            ("destination", "/c"),
            ("x-amz-copy-source", "/c"),
        ] {
            let denial = judged(&[&many[..], &[(name, value)]].concat()).unwrap_err();
            assert_eq!(denial.guard, Guard::Framing, "{name}");
            assert!(denial.reason.starts_with(&format!("`{name}` is one too many")), "{denial:?}");
        }
    }

    #[test]
    fn a_method_in_a_header_and_a_source_are_judged() {
        let config = toml::from_str(
            "[[egress.allow]]\nurl = \"https://api.example.com/open/*\"\nmethods = [\"GET\", \"PUT\"]\n",
        );
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        let policy = layers.compile().unwrap().policy;
        let target = Target::parse("https://api.example.com/open/a").unwrap();
        let judged = |name: &str, value: &str| {
            let fields = Fields::from_iter([(name, value.as_bytes())]);
            let sending = Sending::new(Method::parse("PUT").unwrap(), &target, fields);
            judge(&sending, terms(&policy, &[]), &target).map(drop).map_err(|denial| denial.guard)
        };
        for name in ["X-HTTP-Method-Override", "X_HTTP_Method", "X.HTTP.Method.Override", "x-method~override"]
        {
            assert_eq!((judged(name, "get"), judged(name, "DELETE")), (Ok(()), Err(Guard::Method)), "{name}");
        }
        assert_eq!(judged("x-amz-copy-source", "/open/b"), Ok(()));
        assert_eq!(judged("x-amz-copy-source", "/secret/b"), Err(Guard::Path));
    }

    #[test]
    fn a_method_in_the_query_is_judged() {
        let config = toml::from_str(
            "[egress]\nallow = [{ url = \"https://api.example.com/*\", methods = [\"GET\", \"PUT\"] },\n\
             { url = \"https://a.googleapis.com/*\", methods = [\"GET\", \"PUT\"] }]\n",
        );
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        let policy = layers.compile().unwrap().policy;
        let judged_at = |host: &str, query: &str| {
            let target = Target::parse(&format!("https://{host}/a?{query}")).unwrap();
            let sending = Sending::new(Method::parse("GET").unwrap(), &target, Fields::default());
            let count = |readings: Readings| readings.methods.len();
            judge(&sending, terms(&policy, &[]), &target).map(count).map_err(|denial| denial.guard)
        };
        let judged = |query: &str| judged_at("a.googleapis.com", query);
        // The plain name is any service's own.
        assert_eq!(judged_at("api.example.com", "httpMethod=POST&httpMethod=all+methods"), Ok(1));
        assert_eq!(judged_at("api.example.com", "$httpMethod=POST"), Err(Guard::Method));
        for name in ["$httpMethod", "%24httpMethod", "httpMethod", "%2524http%4dethod", "$HTTPMETHOD"] {
            for (value, outcome) in [
                ("", Ok(1)),
                ("get", Ok(1)),
                ("P%55T", Ok(2)),
                ("POST", Err(Guard::Method)),
                ("%C3%A9", Err(Guard::Method)),
            ] {
                assert_eq!(judged(&format!("x=1&{name}={value}")), outcome, "{name}={value}");
            }
        }
        assert_eq!(judged("$httpMethods=POST&method=POST&x=$httpMethod"), Ok(1));
        let many = "httpMethod=GET&httpMethod=PUT&$httpMethod=get&$httpMethod=put";
        assert_eq!(judged(&format!("{many}&{many}")), Ok(2));
        assert_eq!(judged(&format!("{many}&httpMethod=Put")), Err(Guard::Framing));
    }

    #[test]
    fn the_query_changes_no_verdict_where_no_rule_looks_at_methods() {
        let read = |methods: &str| {
            let text = format!(
                "[egress]\nallow = [{{ url = \"https://api.example.com/v1/*\" }}, {{ host = \"other.example.com\"{methods} }}]\n"
            );
            let mut layers = policy::Layers::default();
            layers.push(policy::Origin::Named("test".into()), toml::from_str(&text).unwrap());
            layers.compile().unwrap().policy
        };
        let judged = |policy: &Policy, host: &str, query: &str, fields: &[(&str, &[u8])]| {
            let target = Target::parse(&format!("https://{host}/v1/x?{query}")).unwrap();
            let sending =
                Sending::new(Method::parse("GET").unwrap(), &target, fields.iter().copied().collect());
            judge(&sending, terms(policy, &[]), &target).map(drop).map_err(|denial| denial.guard)
        };
        let many = (0..40).map(|at| format!("$httpMethod={at}")).collect::<Vec<_>>().join("&");
        let long = format!("$httpMethod={}", "A".repeat(33));
        for query in
            ["$httpMethod=a+b", "$httpMethod=GET/1", "%24httpmethod=[]", "$httpMethod=%C3%A9", &many, &long]
        {
            let named = read(", methods = [\"GET\"]");
            assert_eq!(judged(&named, "api.example.com", query, &[]), Ok(()), "{query}");
            let refused = if query == many { Guard::Framing } else { Guard::Method };
            assert_eq!(judged(&named, "other.example.com", query, &[]), Err(refused), "{query}");
            assert_eq!(judged(&read(""), "other.example.com", query, &[]), Ok(()), "{query}");
        }
        let moved = |path: &[u8]| {
            let fields = [("destination", path)];
            judged(&read(""), "api.example.com", &format!("{many}&$httpMethod=move"), &fields)
        };
        assert_eq!((moved(b"/v1/y"), moved(b"/closed")), (Ok(()), Err(Guard::Path)));
    }

    #[test]
    fn the_rule_that_refuses_a_reading_is_named() {
        let config = toml::from_str(
            "[egress]\nallow = [{ host = \"api.example.com\" }]\n\
             deny = [{ url = \"https://api.example.com/admin/*\" }, { host = \"api.example.com\", methods = [\"DELETE\"] }]\n",
        );
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        let policy = layers.compile().unwrap().policy;
        let refused = |method: &str, query: &str, name: &str, value: &str| {
            let target = Target::parse(&format!("https://api.example.com/a{query}")).unwrap();
            let fields = Fields::from_iter([(name, value.as_bytes())]);
            let sending = Sending::new(Method::parse(method).unwrap(), &target, fields);
            judge(&sending, terms(&policy, &[]), &target).err().unwrap().rule
        };
        for (method, query, name, value, rule) in [
            ("GET", "", "x-original-url", "/admin/x", 0),
            ("MOVE", "", "destination", "/admin/x", 0),
            ("PUT", "", "x-amz-copy-source", "/admin/x", 0),
            ("POST", "", "x-http-method-override", "DELETE", 1),
            ("POST", "?$httpMethod=DELETE", "accept", "*/*", 1),
        ] {
            let named = refused(method, query, name, value);
            assert_eq!(named, Some(format!("egress.deny[{rule}] in test")), "{name}");
        }
    }

    #[test]
    fn a_deny_rule_for_an_address_is_for_each_reading_that_goes_there() {
        let policy = |deny: &str| {
            let text = format!(
                "[egress]\nallow = [{{ host = \"127.0.0.1\", ports = [18091] }},\n\
                 {{ url = \"http://d.test:18091/*\", addresses = [\"127.0.0.1\"] }}]\ndeny = [{deny}]\n"
            );
            let mut layers = policy::Layers::default();
            layers.push(policy::Origin::Named("test".into()), toml::from_str(&text).unwrap());
            layers.compile().unwrap().policy
        };
        let by_path = policy("{ url = \"http://127.0.0.1:18091/admin*\" }");
        let by_method = policy("{ host = \"127.0.0.1\", ports = [18091], methods = [\"DELETE\"] }");
        let address = [IpAddr::from([127, 0, 0, 1])];
        for (policy, method, query, name, value, harmless) in [
            (&by_path, "GET", "", "x-original-url", "/admin/x", "/open"),
            (&by_path, "MOVE", "", "destination", "/admin/x", "/open"),
            (&by_path, "PUT", "", "x-amz-copy-source", "/admin/x", "/open"),
            (&by_method, "POST", "", "x-http-method-override", "DELETE", "PUT"),
            (&by_method, "POST", "?$httpMethod=", "", "DELETE", "PUT"),
        ] {
            for host in ["d.test", "127.0.0.1"] {
                let judged = |value: &str, judged: &[IpAddr]| {
                    let query = if query.is_empty() { String::new() } else { format!("{query}{value}") };
                    let target = Target::parse(&format!("http://{host}:18091/x{query}")).unwrap();
                    let fields = Fields::from_iter(
                        [(name, value.as_bytes())].into_iter().filter(|it| !it.0.is_empty()),
                    );
                    let sending = Sending::new(Method::parse(method).unwrap(), &target, fields);
                    let refused = judge(&sending, terms(policy, judged), &target).err();
                    refused.map(|denial| (denial.guard, denial.rule))
                };
                let denied = Some((Guard::DenyRule, Some("egress.deny[0] in test".to_owned())));
                assert_eq!(judged(value, &address), denied, "{name} at {host}");
                assert_eq!(judged(harmless, &address), None, "{name} at {host}");
                // Where a proxy resolves the name, or nobody, the rule cannot know where it leads.
                assert_eq!(judged(value, &[]).is_none(), host == "d.test", "{name} at {host}");
            }
        }
    }

    #[test]
    fn where_something_is_moved_to_is_judged_as_the_path() {
        let config = toml::from_str(
            "[egress]\nallow = [{ url = \"https://api.example.com/open/*\" }, { host = \"dav.example.com\" }]\n\
             deny = [{ url = \"https://dav.example.com/admin/*\" }]\n",
        );
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        let policy = layers.compile().unwrap().policy;
        let judged = |method: &str, target: &str, destination: &str| {
            let target = Target::parse(target).unwrap();
            let fields = Fields::from_iter([("Destination", destination.as_bytes())]);
            let sending = Sending::new(Method::parse(method).unwrap(), &target, fields);
            judge(&sending, terms(&policy, &[]), &target).map(drop).map_err(|denial| denial.guard)
        };
        let (api, dav) = ("https://api.example.com/open/a", "https://dav.example.com/a");
        for (method, target, destination, outcome) in [
            ("MOVE", api, "/open/b", Ok(())),
            ("COPY", api, "https://api.example.com/open/b", Ok(())),
            ("MOVE", api, "http://API.example.com:80/open/b", Ok(())),
            ("MOVE", api, "/closed", Err(Guard::Path)),
            ("copy", api, "https://api.example.com/closed", Err(Guard::Path)),
            ("MOVE", api, "https://dav.example.com/open/b", Err(Guard::AuthorityMismatch)),
            ("MOVE", dav, "/b", Ok(())),
            ("MOVE", dav, "/%61dmin/x", Err(Guard::DenyRule)),
            ("COPY", dav, "https://dav.example.com/Admin", Err(Guard::DenyRule)),
            ("COPY", dav, "//dav.example.com/admin/x", Err(Guard::Syntax)),
            ("COPY", dav, "admin/x", Err(Guard::DenyRule)),
            // No other method reads it.
            ("GET", dav, "/admin/x", Ok(())),
        ] {
            assert_eq!(judged(method, target, destination), outcome, "{method} {target} {destination}");
        }
    }
}
