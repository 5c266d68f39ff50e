//! A host that a credential is bound to is bound for every request there, by whichever policy.

#![expect(clippy::unwrap_used, reason = "a test: what does not hold ends it")]

use policy::{Asked, Carriage, Host, Layers, Method, Origin, Plane, Policy, Port, RunConfig, Target, View};

const BOUND: &str = r#"
[[provider]]
id = "own"
authorized_uris = ["https://api.example.com/v1/*"]
grpc = true
pinned = false
"#;
const ALLOWED: &str = r#"
[egress]
allow = [{ host = "api.example.com" }, { host = "other.example.com" }]
"#;

fn policy(layers: &[(Origin, &str)]) -> Policy {
    let mut all = Layers::default();
    for (origin, text) in layers {
        all.push(origin.clone(), toml::from_str::<RunConfig>(text).unwrap());
    }
    all.compile().unwrap().policy
}

/// Whether a GET is granted with a credential; whether its host is bound; whether keys of the command's own are refused there.
fn seen(policy: &Policy, target: &str) -> (bool, bool, bool) {
    let target = Target::parse(target).unwrap();
    let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
    let grant = policy.decide(&asked).unwrap();
    (grant.provider().is_some(), grant.is_bound(), grant.refuses_own_credentials())
}

#[test]
fn a_host_is_bound_beside_the_uris_of_its_credential_and_without_pinned_too() {
    let own = policy(&[(Origin::Named("own".into()), &format!("{ALLOWED}{BOUND}"))]);
    assert_eq!(seen(&own, "https://api.example.com/v1/x"), (true, true, false));
    assert_eq!(seen(&own, "https://api.example.com/v2/x"), (false, true, false));
    assert_eq!(seen(&own, "https://other.example.com/v1/x"), (false, false, false));
}

#[test]
fn a_host_that_the_managed_policy_binds_is_bound() {
    let managed = (Origin::Managed("managed".into()), &*format!("{ALLOWED}{BOUND}"));
    let own = (Origin::Named("own".into()), ALLOWED);
    let both = policy(&[managed, own]);
    assert!(seen(&both, "https://api.example.com/v2/x").1);
    assert!(!seen(&both, "https://other.example.com/").1);
}

#[test]
fn what_the_managed_policy_pins_no_other_policy_frees() {
    // C22
    let pinned = BOUND.replace("pinned = false", "pinned = true").replace("grpc = true\n", "");
    let managed = format!("{ALLOWED}{pinned}");
    let own = (Origin::Named("own".into()), ALLOWED);
    let grant = |policy: &Policy, target: &str| {
        let target = Target::parse(target).unwrap();
        policy.decide(&Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target)).unwrap()
    };
    let both = policy(&[(Origin::Managed("managed".into()), &managed), own]);
    let held = grant(&both, "https://api.example.com/v2/x");
    assert!(held.is_bound() && held.refuses_own_credentials() && !held.is_message_wise());
    let free = grant(&both, "https://other.example.com/v2/x");
    assert!(!free.is_bound() && !free.refuses_own_credentials() && free.is_message_wise());
}

#[test]
fn a_provider_that_is_declared_again_is_held_to_the_managed_policys() {
    // C22
    let pinned = BOUND.replace("pinned = false", "pinned = true").replace("grpc = true\n", "");
    let managed = format!("{ALLOWED}{pinned}");
    let again = |uris: &str| {
        let text = format!(
            "{ALLOWED}[[provider]]\nid = \"own\"\nauthorized_uris = [{uris}]\ngrpc = true\npinned = false\n"
        );
        policy(&[(Origin::Managed("managed".into()), &managed), (Origin::Flags, &text)])
    };
    let decide = |policy: &Policy, target: &str, provider: Option<&str>| {
        let target = Target::parse(target).unwrap();
        let mut asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
        asked.provider = provider.map(|id| id.parse().unwrap());
        policy.decide(&asked)
    };
    let elsewhere = again("\"https://other.example.com/*\"");
    let held = decide(&elsewhere, "https://api.example.com/v2/x", None).unwrap();
    assert!(held.is_bound() && held.refuses_own_credentials() && !held.is_message_wise());
    let refused = decide(&elsewhere, "https://other.example.com/x", None).unwrap_err();
    assert!(refused.reason.contains("authorizes `own` elsewhere"), "{}", refused.reason);
    let wider = again("\"https://api.example.com/*\"");
    assert!(decide(&wider, "https://api.example.com/v2/x", Some("own")).is_err());
    assert!(decide(&wider, "https://api.example.com/v1/x", Some("own")).unwrap().provider().is_some());
    // A provider that the managed policy does not know is held to the hosts of that one alone.
    let text = format!("{ALLOWED}{}", BOUND.replace("\"own\"", "\"mine\""));
    let mine = policy(&[(Origin::Managed("managed".into()), ALLOWED), (Origin::Flags, &text)]);
    assert!(decide(&mine, "https://api.example.com/v1/x", Some("mine")).unwrap().provider().is_some());
}

#[test]
fn a_part_of_a_providers_uris_is_neither_another_host_nor_another_scheme_nor_another_path() {
    // C22
    let text = r#"
[[provider]]
id = "own"
authorized_uris = ["https://api.example.com/*", "http://api.example.com/*", "https://b.example.com/*"]
inject = [{ header = "x-key", value = "{{key}}", at = "https://api.example.com/v1/*" }]
"#;
    let policy = policy(&[(Origin::Named("own".into()), text)]);
    let provider = policy.providers().next().unwrap();
    for (target, wanted) in [
        ("https://api.example.com/v1/x", true),
        ("https://api.example.com/v2/x", false),
        ("https://api.example.com:8443/v1/x", false),
        ("http://api.example.com/v1/x", false),
        ("http://api.example.com:443/v1/x", false),
        ("https://b.example.com/v1/x", false),
    ] {
        let target = Target::parse(target).unwrap();
        let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
        assert_eq!(provider.injection(&target).is_some(), wanted, "{target}");
        assert_eq!(provider.injects_into(&asked), wanted, "{target}");
    }
}

#[test]
fn tls_to_a_bound_host_is_opened_at_its_other_ports() {
    // C22
    const ELSEWHERE: &str = r#"
[[provider]]
id = "own"
authorized_uris = ["http://api.example.com:8080/v1/*"]
"#;
    let allowed = "[egress]\nallow = [{ host = \"*.example.com\", ports = [22, 8443] }, \
                   { url = \"https://api.example.com:9443/*\" }, { url = \"https://other.example.com:9443/*\" }]\n";
    let open = "egress.default = \"open-internet\"\n";
    let own = |text: &str| policy(&[(Origin::Named("own".into()), text)]);
    let managed = |theirs: &str, text: &str| {
        policy(&[(Origin::Managed("managed".into()), theirs), (Origin::Named("own".into()), text)])
    };
    for (bound, ports) in [
        (own(&format!("{allowed}{ELSEWHERE}")), &["22", "8443", "9443"][..]),
        (own(&format!("{open}{ELSEWHERE}")), &["22", "443"]),
        (managed(&format!("{allowed}{ELSEWHERE}"), allowed), &["22", "8443", "9443"]),
        (managed(open, &format!("{allowed}{ELSEWHERE}")), &["22", "8443", "9443"]),
        (managed(&format!("{open}{ELSEWHERE}"), allowed), &["22", "8443", "9443"]),
    ] {
        let carriage = |host: &str, port: &str, view: View| {
            let (host, port) = (Host::parse(host).unwrap(), Port::parse(port).unwrap());
            bound.decide(&Asked::connection(Plane::Transparent, host, port, view)).unwrap().carriage()
        };
        assert!(bound.may_open());
        for port in ports {
            assert_eq!(carriage("api.example.com", port, View::Tls), Carriage::Terminated, "{port}");
            assert_eq!(carriage("other.example.com", port, View::Tls), Carriage::Tls, "{port}");
            // Another protocol may pass, as SSH does, but not where a rule is for TLS.
            let (here, elsewhere) = match *port {
                "9443" => (Carriage::Terminated, Carriage::Tls),
                _ => (Carriage::Any, Carriage::Any),
            };
            assert_eq!(carriage("api.example.com", port, View::Opaque), here, "{port}");
            assert_eq!(carriage("other.example.com", port, View::Opaque), elsewhere, "{port}");
        }
    }
    // No connection can be TLS to the host: no authority is made.
    let other =
        "[egress]\nallow = [{ host = \"other.example.com\" }, { url = \"http://api.example.com/*\" }]\n";
    assert!(!own(&format!("{other}{ELSEWHERE}")).may_open() && !own(allowed).may_open());
}

/// The providers whose credential is good for a GET: that which is put in first.
fn good_for(policy: &Policy, target: &str) -> Vec<String> {
    let asked =
        Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &Target::parse(target).unwrap());
    let ids: Vec<String> = policy.providers_for(&asked).iter().map(|one| one.id().to_string()).collect();
    let put_in = policy.decide(&asked).unwrap().provider().map(|provider| provider.id().to_string());
    assert_eq!(put_in.as_ref(), ids.first(), "{target}");
    ids
}

#[test]
fn the_credential_of_the_narrowest_uri_is_put_in() {
    // S0.46: a credential is good at each of its URIs, whatever others are.
    let one = |id: &str, uri: &str| format!("[[provider]]\nid = \"{id}\"\nauthorized_uris = [\"{uri}\"]\n");
    let all = [
        one("many", "https://**.example.com/repos/work/*"),
        one("label", "https://*.example.com/repos/work/*"),
        one("wide", "https://api.example.com/*"),
        one("again", "https://api.example.com/*"),
        one("work", "https://api.example.com/repos/work/*"),
        one("exact", "https://api.example.com/repos/work/x"),
        one("clear", "http://api.example.com/*"),
    ];
    let expected = ["exact", "work", "wide", "again", "label", "many"];
    let forwards = policy(&[(Origin::Named("own".into()), &all.concat())]);
    assert_eq!(good_for(&forwards, "https://api.example.com/repos/work/x"), expected);
    assert_eq!(good_for(&forwards, "https://api.example.com/repos/work/y"), expected[1..]);
    assert_eq!(good_for(&forwards, "https://api.example.com/repos"), ["wide", "again"]);
    assert_eq!(good_for(&forwards, "http://api.example.com/repos"), ["clear"]);
    let backwards: String = all.iter().rev().map(String::as_str).collect();
    let backwards = policy(&[(Origin::Named("own".into()), &backwards)]);
    let expected = ["exact", "work", "again", "wide", "label", "many"];
    assert_eq!(good_for(&backwards, "https://api.example.com/repos/work/x"), expected);
}

#[test]
fn what_a_request_names_is_used_wherever_it_is_good() {
    let text = "providers = [\"github\"]\n[[provider]]\nid = \"work\"\n\
                authorized_uris = [\"https://api.github.com/repos/work/*\"]\n";
    let both = policy(&[(Origin::Named("own".into()), text)]);
    let named = |target: &str, id: &str| {
        let mut asked =
            Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &Target::parse(target).unwrap());
        asked.provider = Some(id.parse().unwrap());
        both.decide(&asked).ok().and_then(|grant| Some(grant.provider()?.id().to_string()))
    };
    for id in ["github", "work"] {
        assert_eq!(named("https://api.github.com/repos/work/x", id).as_deref(), Some(id));
    }
    assert_eq!(named("https://api.github.com/repos/me/x", "work"), None);
    assert_eq!(good_for(&both, "https://api.github.com/repos/work/x"), ["work", "github"]);
}

#[test]
fn a_companion_is_no_place_of_a_credential() {
    let text = "backend = \"container\"\nimage = \"alpine\"\n\
                companion = [{ name = \"db\", image = \"postgres\", ports = [8080] }]\n\
                [[provider]]\nid = \"one\"\nauthorized_uris = [\"http://db:8080/*\"]\n";
    let beside = policy(&[(Origin::Named("own".into()), text)]);
    assert!(good_for(&beside, "http://db:8080/").is_empty());
}

#[test]
fn the_placeholder_of_an_unmetered_provider_avoids_no_budget() {
    let one = |id: &str, uri: &str, more: &str| {
        format!("[[provider]]\nid = \"{id}\"\nauthorized_uris = [\"https://{uri}\"]\n{more}")
    };
    let llm = "llm = \"openai\"\n";
    let metered_as = |layers: &[(Origin, &str)], target: &str, id: &str| {
        let target = Target::parse(target).unwrap();
        let mut asked = Asked::request(Plane::Forward, Method::parse("POST").unwrap(), &target);
        asked.provider = Some(id.parse().unwrap());
        let grant = policy(layers).decide(&asked).unwrap();
        assert_eq!(grant.provider().unwrap().id().as_str(), id);
        grant.metered_as().map(|it| it.id().to_string())
    };
    let own = [
        one("models", "api.example.com/v1/*", llm),
        one("wide", "api.example.com/*", llm),
        one("beside", "api.example.com/v1/*", ""),
        one("wider", "*.example.com/*", ""),
        one("files", "api.example.com/v1/files/*", ""),
    ]
    .concat();
    let own = &[(Origin::Named("own".into()), own.as_str())];
    for (target, id, metered) in [
        ("https://api.example.com/v1/chat", "models", Some("models")),
        ("https://api.example.com/v1/chat", "wide", Some("wide")),
        ("https://api.example.com/v1/chat", "beside", Some("models")),
        ("https://api.example.com/v1/chat", "wider", Some("models")),
        ("https://api.example.com/v2/chat", "wider", Some("wide")),
        ("https://other.example.com/v1/chat", "wider", None),
        // A part of the API with a credential of its own asks no model.
        ("https://api.example.com/v1/files/x", "files", None),
        ("https://api.example.com/v1/files/x", "beside", Some("models")),
    ] {
        assert_eq!(metered_as(own, target, id).as_deref(), metered, "{id} at {target}");
    }
    // Declared once more, without `llm`, what the managed policy meters is metered still.
    let (managed, again) =
        (one("models", "api.example.com/v1/*", llm), one("models", "api.example.com/v1/*", ""));
    let layers =
        &[(Origin::Managed("/etc/policy".into()), managed.as_str()), (Origin::Flags, again.as_str())];
    assert_eq!(metered_as(layers, "https://api.example.com/v1/chat", "models").as_deref(), Some("models"));
}

#[test]
fn two_providers_with_one_variable_are_refused_by_name() {
    let own = |id: &str, env: &str| {
        format!(
            "[[provider]]\nid = \"{id}\"\nauthorized_uris = [\"https://api.example.com/*\"]\nenv = {env}\n"
        )
    };
    let compiled = |texts: &[String]| {
        let mut all = Layers::default();
        for text in texts {
            all.push(Origin::Named("file".into()), toml::from_str::<RunConfig>(text).unwrap());
        }
        all.compile().map(drop).map_err(|error| error.to_string())
    };
    let (one, two) = (own("one", "[\"ONE_KEY\", \"A_TOKEN\"]"), own("two", "\"A_TOKEN\""));
    let shipped = || "providers = [\"github\"]\n".to_owned();
    for (texts, field, named) in [
        (vec![one.clone() + &two], "file: provider[1].env: ", ["`one`", "`two`", "A_TOKEN"]),
        (vec![one.clone(), two.clone()], "file: provider[0].env: ", ["`one`", "`two`", "A_TOKEN"]),
        (
            vec![shipped() + &own("mine", "\"GH_TOKEN\"")],
            "file: provider[0].env: ",
            ["`github`", "`mine`", "GH_TOKEN"],
        ),
        (
            vec![own("mine", "\"GH_TOKEN\""), shipped()],
            "file: providers: ",
            ["`github`", "`mine`", "GH_TOKEN"],
        ),
    ] {
        let refused = compiled(&texts).unwrap_err();
        assert!(refused.starts_with(field), "{refused}");
        assert!(named.iter().all(|name| refused.contains(name)), "{refused}");
    }
    // A later layer's entry takes the place of an earlier one of its id, and of its variables.
    let other = own("one", "\"ANOTHER\"");
    for texts in [
        vec![one.clone(), one.clone()],
        vec![one.clone(), two.clone() + &other],
        vec![shipped(), shipped()],
        vec![one + &own("two", "\"a_token\"")],
    ] {
        assert_eq!(compiled(&texts), Ok(()), "{texts:?}");
    }
}
