//! A deny rule catches every spelling of its path, and its address under any name, and nothing else.

#![expect(clippy::unwrap_used, reason = "a test: what does not hold ends it")]

use std::net::IpAddr;

use policy::{Asked, Guard, Hint, Layers, Method, Origin, Plane, Policy, RunConfig, Target};

fn policy(egress: &str) -> Policy {
    let config: RunConfig = toml::from_str(egress).unwrap();
    let mut layers = Layers::default();
    layers.push(Origin::Named("test".into()), config);
    layers.compile().unwrap().policy
}

/// Decides a request to a host that has these addresses.
fn verdict(policy: &Policy, target: &str, found: &[&str]) -> Result<(), policy::Denial> {
    let asked =
        Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &Target::parse(target).unwrap());
    let found: Vec<IpAddr> = found.iter().map(|text| text.parse().unwrap()).collect();
    policy.decide(&asked)?.vet(&found)
}

#[test]
fn a_method_is_denied_in_every_case_and_allowed_in_its_own() {
    let policy = policy(
        "[egress]\nallow = [{ host = \"open.example.com\" }, { host = \"some.example.com\", methods = [\"GET\", \"patch\"] }]\n\
         deny = [{ host = \"open.example.com\", methods = [\"DELETE\", \"purge\"] }]\n",
    );
    let verdict = |method: &str, host: &str| {
        let target = Target::parse(&format!("http://{host}.example.com/")).unwrap();
        let asked = Asked::request(Plane::Forward, Method::parse(method).unwrap(), &target);
        policy.decide(&asked).map(drop).map_err(|denial| denial.guard)
    };
    for method in ["DELETE", "delete", "Delete", "PURGE", "purge"] {
        assert_eq!(verdict(method, "open"), Err(Guard::DenyRule), "{method}");
    }
    for (method, host) in [("get", "open"), ("GET", "some"), ("patch", "some")] {
        assert_eq!(verdict(method, host), Ok(()), "{method} {host}");
    }
    for method in ["get", "PATCH", "Patch"] {
        assert_eq!(verdict(method, "some"), Err(Guard::Method), "{method}");
    }
}

#[test]
fn a_denied_host_has_a_way_out_for_whoever_keeps_the_rule() {
    let denied = "[[egress.deny]]\nhost = \"ads.example.com\"\nreason = \"no ads\"\n";
    for (managed, own, told) in [
        ("", denied, "take that rule out of its file"),
        (denied, "", "only whoever keeps the managed policy"),
    ] {
        let mut layers = Layers::default();
        layers.push(Origin::Managed("/etc/policy".into()), toml::from_str(managed).unwrap());
        layers.push(Origin::Named("file".into()), toml::from_str(own).unwrap());
        let policy = layers.compile().unwrap().policy;
        let denial = verdict(&policy, "http://ads.example.com/", &[]).unwrap_err();
        assert!(denial.hint.as_ref().is_some_and(|hint| hint.to_string().starts_with(told)), "{denial:?}");
    }
}

#[test]
fn an_address_that_the_managed_policy_denies_is_denied_under_every_name() {
    let managed = |deny: &str| {
        let mut layers = Layers::default();
        let theirs = format!("[egress]\ndefault = \"open-internet\"\ndeny = [{{ {deny} }}]\n");
        layers.push(Origin::Managed("/etc/policy".into()), toml::from_str(&theirs).unwrap());
        let own = "[egress]\nallow = [{ host = \"a.example.com\" }]\n";
        layers.push(Origin::Named("file".into()), toml::from_str(own).unwrap());
        let policy = layers.compile().unwrap().policy;
        let at = |found: &str| verdict(&policy, "http://a.example.com/", &[found]).is_ok();
        [at("93.184.216.34"), at("93.184.216.35")]
    };
    assert_eq!(managed("host = \"93.184.216.34\""), [false, true]);
    assert_eq!(managed("url = \"http://93.184.216.34/*\""), [false, true]);
    assert_eq!(managed("url = \"http://93.184.216.34/x\""), [true, true]);
}

#[test]
fn a_path_is_denied_in_every_spelling() {
    for (denied, caught, free) in [
        (
            "/caf%C3%A9/*",
            &["/caf%C3%A9/x", "/caf%c3%a9/x", "/%63af%C3%A9/x", "//caf%C3%A9/x", "/CAF%C3%89/x"][..],
            &["/caf/x"][..],
        ),
        ("/a%20b/*", &["/A%20b/x", "/%61%20b/x", "/a%20b;v/x", "/a%20b./x", "/a%2520b/x"], &["/ab/x"]),
        ("/%7Euser/*", &["/~user/x", "/%7euser/x"], &["/user/x"]),
        ("/m;v=1/*", &["/M;v=1/x", "/m%3bv=1/x"], &["/m/x"]),
        (
            "/admin",
            &["/admin", "/Admin/", "/admin;x", "/%61dmin", "/admin%3fx"],
            &["/admin/x", "/administer"],
        ),
        (
            "/admin/*",
            &[
                "/admin",
                "/admin?x",
                "/Admin",
                "/%61dmin",
                "//admin",
                "/admin;v=1",
                "/admin%3f/x",
                "/admin%23/x",
                "/admin/",
            ],
            &["/administer", "/x/admin", "/adm"],
        ),
        ("/admin*", &["/admin", "/administer"], &["/adm"]),
        ("/-/npm/*", &["/-/npm/x", "/-%2Fnpm/x", "/-/NPM/x"], &["/@types%2fnode", "/-/np/m"]),
        ("/a%2Fb/*", &["/a%2Fb/x", "/a/b/x"], &["/a/c"]),
        ("/a//b/*", &["/a//b/x", "/a/b/x", "/a///b/x"], &["/a/c"]),
        (
            "/admin/keys/*",
            &[
                "/admin/keys::$INDEX_ALLOCATION/x",
                "/admin/keys:$i30:$INDEX_ALLOCATION/x",
                "/admin/keys::$DATA/x",
                "/admin::%24index_allocation/keys/x",
                "/admin%ef%bc%8fkeys/x",
                "/%EF%BD%81dmin/keys/x",
                "/x/%ef%bc%8e%ef%bc%8e/admin/keys/x",
                "/admin/keys%c2%a0/x",
                "/admin%E2%88%95keys%E2%81%84x",
                "/admin%C2%A5keys%E2%88%96x",
                "/admin%EF%BF%A6keys%E2%80%A6/x",
                "/admin/keys%CD%BEv/x",
                "/%EF%BC%8561dmin/keys/x",
                "/admin/keys%E2%81%87/x",
                "/admin/keys%E2%81%88/x",
                "/x%EF%B9%A8y",
            ],
            &[
                "/admin/keys:1/x",
                "/admin/%EF%BD%81/x",
                "/admin/%c2%a0keys/x",
                "/prices/%C2%A5100",
                "/admin/%EF%BC%91%EF%BC%90%EF%BC%8510%E6%9C%88",
            ],
        ),
    ] {
        let policy = policy(&format!(
            "[[egress.allow]]\nhost = \"x.example.com\"\n[[egress.deny]]\nurl = \"https://x.example.com{denied}\""
        ));
        let ask = |path: &&str| verdict(&policy, &format!("https://x.example.com{path}"), &["93.184.216.34"]);
        for path in caught {
            let denial = ask(path).unwrap_err();
            assert_eq!(denial.guard.code(), "deny_rule", "{denied} {path}");
            // The reason names the path, as not the whole host is denied.
            assert!(denial.reason.contains(denied), "{}", denial.reason);
        }
        for path in free {
            assert!(ask(path).is_ok(), "{denied} {path}: {:?}", ask(path));
        }
    }
}

#[test]
fn a_path_is_denied_behind_what_servers_take_for_a_host() {
    let policy = |denied: &str| {
        policy(&format!(
            "[[egress.allow]]\nhost = \"x.example.com\"\n[[egress.deny]]\nurl = \"https://x.example.com{denied}\""
        ))
    };
    let ask = |policy: &Policy, path: &str| {
        verdict(policy, &format!("https://x.example.com{path}"), &["93.184.216.34"])
            .map_err(|denial| denial.guard)
    };
    let (folder, root) = (policy("/admin/*"), policy("/"));
    for path in [
        "//x/admin/secret",
        "//x/%61dmin;v/secret",
        "//x/admin",
        "//u@h/admin/secret",
        "//h:80/admin/secret",
        "//[::1]/admin/secret",
        "//h;x/admin/secret",
        "//%61/admin/secret",
        "//h:bad/admin/secret",
        "//h%3f/admin/secret",
        "//h%20/Admin/secret",
        "///h/admin/secret",
        "//h//admin/secret",
        "//h//i/admin/secret",
        "//h%2f/admin/secret",
        "//h%2fadmin/secret",
        "//a%252fb%2fadmin/secret",
        "//a%25252fb%252fadmin/secret",
        "//a%ef%bc%8fadmin/secret",
        "/%2fx/admin/secret",
        "/%252fx/admin/secret",
        "/;/x/admin/secret",
        "/%20/x/admin/secret",
    ] {
        assert_eq!(ask(&folder, path), Err(Guard::DenyRule), "{path}");
    }
    for path in ["//x", "//x/", "//x%3fy", "//"] {
        assert_eq!(ask(&root, path), Err(Guard::DenyRule), "{path}");
    }
    for path in ["//x/home/admin/x", "//x/administer", "/x//y/admin/z", "/a/@types%2fnode", "//x"] {
        assert_eq!(ask(&folder, path), Ok(()), "{path}");
    }
}

#[test]
fn no_allow_rule_is_for_what_servers_take_for_another_path() {
    let compiled = |rule: &str| {
        let mut layers = Layers::default();
        layers.push(Origin::Named("file".into()), toml::from_str(rule).unwrap());
        layers.compile().map(|compiled| compiled.policy).map_err(|error| error.to_string())
    };
    for path in ["//v1/*", "//v1/x", "//*", "/;/v1/*"] {
        for rule in [
            format!("[[egress.allow]]\nurl = \"https://x.example.com{path}\""),
            format!("[[provider]]\nid = \"mine\"\nauthorized_uris = [\"https://x.example.com{path}\"]"),
        ] {
            let refused = compiled(&rule).err().unwrap_or_default();
            assert!(
                refused.contains("no request can fit it") && refused.contains("for a host"),
                "{rule}: {refused}"
            );
        }
    }
    let policy = compiled("[[egress.allow]]\nurl = \"https://x.example.com/v1/*\"").unwrap();
    for path in ["//v1/x", "//x/v1/x"] {
        let denial = verdict(&policy, &format!("https://x.example.com{path}"), &[]).unwrap_err();
        assert_eq!(denial.guard, Guard::Path, "{path}");
        let hint = denial.hint.unwrap().to_string();
        assert!(hint.contains("no rule can name this path"), "{hint}");
    }
    // A rule for every path covers each of them, and so does one that looks at none.
    for rule in ["url = \"https://x.example.com/*\"", "host = \"x.example.com\""] {
        let policy = compiled(&format!("[[egress.allow]]\n{rule}")).unwrap();
        assert_eq!(verdict(&policy, "https://x.example.com//x/v1", &["93.184.216.34"]), Ok(()), "{rule}");
    }
    // The control: a price is no host.
    let policy = compiled("[[egress.allow]]\nurl = \"https://x.example.com/%C2%A5*\"").unwrap();
    assert_eq!(verdict(&policy, "https://x.example.com/%C2%A5100", &["93.184.216.34"]), Ok(()));
}

#[test]
fn a_path_that_is_caught_by_doubt_is_told_so() {
    let policy = policy(
        "[[egress.allow]]\nhost = \"x.example.com\"\n[[egress.deny]]\nurl = \"https://x.example.com/admin/*\"\nreason = \"ours\"",
    );
    let denial = |path: &str| verdict(&policy, &format!("https://x.example.com{path}"), &[]).unwrap_err();
    for (path, why) in [
        ("/caf%E9", "not UTF-8"),
        ("/a%5Cb", "a control octet or a backslash"),
        ("/file%0Aname", "a control octet or a backslash"),
        ("/a/./b", "a `.` or `..` segment"),
        ("/a/%E2%80%A5/b", "read wide characters in it as a `.` or `..` segment"),
        ("/a%EF%BC%BCb", "read a wide character in it as a backslash"),
        ("/a%EF%BC%8500", "read wide characters in it as a control octet"),
        ("//h//x/y", "for a host"),
        ("/a;b%2Fc/d", "behind a `;`"),
        ("/%252525252525252541", "too many times over"),
    ] {
        let denial = denial(path);
        assert_eq!(denial.guard, Guard::DenyRule, "{path}");
        assert!(denial.rule.as_ref().is_some_and(|rule| rule.contains("egress.deny[0]")), "{denial:?}");
        assert!(denial.reason.contains(why) && denial.reason.contains("could lead elsewhere"), "{denial:?}");
        assert!(!denial.reason.contains("ours"), "{denial:?}");
        let hint = denial.hint.unwrap().to_string();
        assert!(hint.contains("every server reads alike") && !hint.contains("take that rule out"), "{hint}");
    }
    // The control: what is named is told as such, however it ends.
    for path in ["/admin/x", "/Admin", "/admin/a%5Cb", "//h/admin/x"] {
        assert_eq!(denial(path).reason, "ours", "{path}");
    }
}

#[test]
fn a_path_is_denied_whatever_its_parameters_hold() {
    let policy = policy(
        "[[egress.allow]]\nhost = \"x.example.com\"\n[egress]\n\
         deny = [{ url = \"https://x.example.com/admin/users/*\" }, { url = \"https://x.example.com/secret\" }]",
    );
    let ask = |path: &str| {
        verdict(&policy, &format!("https://x.example.com{path}"), &["93.184.216.34"])
            .map_err(|denial| denial.guard)
    };
    for path in [
        "/admin;a/users/1",
        "/admin;a%2Fx/users/1",
        "/admin;%2F/users/1",
        "/admin;%2Fx/users/1",
        "/admin;a%252Fx/users/1",
        "/admin;a%3Fx/users/1",
        "/admin;a%3Fb/users/",
        "/admin;%23/users/1",
        "/admin%3Ba%2Fx/users/1",
        "/admin%3Ba%3Fx/users/1",
        "/admin;a%ef%bc%8fx/users/1",
        "/admin%ef%bc%9ba%252Fx/users/1",
        "/admin/;;a%2Fx/users/",
        "/adm%69n;;..%23/users/1",
        "/admin/users;a%2Fx/1",
        "/secret;a%2Fx",
        "/secret;%23",
    ] {
        assert_eq!(ask(path), Err(Guard::DenyRule), "{path}");
    }
    // What ends in one place, or stands before a parameter, is for nobody else.
    for path in [
        "/a;v=1/b",
        "/a;jsessionid=%41%3D",
        "/a;b;c=d/e;f",
        "/a%2Fb;v=1",
        "/a%3Fb;c/d",
        "/a%23b/c;d",
        "/a;b/c%2Fd",
    ] {
        assert_eq!(ask(path), Ok(()), "{path}");
    }
}

proptest::proptest! {
    #[test]
    fn no_parameter_leads_past_a_denied_path(at in 0..3_usize, octets: Vec<u8>, levels in 1..4_usize, case: bool) {
        let policy = policy(
            "[[egress.allow]]\nhost = \"x.example.com\"\n[[egress.deny]]\nurl = \"https://x.example.com/admin/users/*\"",
        );
        let encoded: String = octets.iter().map(|octet| format!("%{}{octet:02X}", "25".repeat(levels - 1))).collect();
        let mut segments = [if case { "Admin" } else { "admin" }.to_owned(), "users".into(), "1".into()];
        segments[at].push(';');
        segments[at].push_str(&encoded);
        let path = format!("https://x.example.com/{}", segments.join("/"));
        let denial = verdict(&policy, &path, &["93.184.216.34"]).map_err(|denial| denial.guard);
        proptest::prop_assert_eq!(denial, Err(Guard::DenyRule), "{}", path);
    }
}

proptest::proptest! {
    /// Of each wide form, in each order: what a server that reads them cannot be led by, is allowed, and nothing else.
    #[test]
    fn no_wide_form_leads_out_of_an_allowed_path(picked in proptest::collection::vec(0..WIDE.len(), 1..9), levels in 1..4_usize) {
        let policy = policy(
            "[[egress.allow]]\nurl = \"https://x.example.com/v1/*\"\n\
             [[provider]]\nid = \"mine\"\nauthorized_uris = [\"https://api.example.com/v1/*\"]\naddresses = [\"93.184.216.34\"]",
        );
        let wide: String = picked.iter().map(|at| WIDE[*at].0).collect();
        let narrow: String = picked.iter().map(|at| WIDE[*at].1).collect();
        let encoded: String =
            wide.bytes().map(|octet| if octet == b'/' { "/".into() } else { format!("%{}{octet:02X}", "25".repeat(levels - 1)) }).collect();
        let cut = |segment: &str| segment.split(';').next().unwrap_or_default().trim_end_matches(' ').to_owned();
        let climbs = narrow.split(['/', '\\']).map(cut).any(|name| name == "." || name == "..");
        for host in ["x", "api"] {
            let target = format!("https://{host}.example.com/v1/{encoded}");
            let verdict = verdict(&policy, &target, &["93.184.216.34"]).map_err(|denial| denial.guard);
            proptest::prop_assert_eq!(verdict, if climbs { Err(Guard::Path) } else { Ok(()) }, "{} {}", target, narrow);
        }
    }
}

/// Wide forms, ASCII and names, and what they are to a server that reads them.
const WIDE: [(&str, &str); 24] = [
    (".", "."),
    ("..", ".."),
    ("/", "/"),
    (";", ";"),
    ("a", "a"),
    ("\u{ff0e}", "."),
    ("\u{2024}", "."),
    ("\u{fe52}", "."),
    ("\u{2025}", ".."),
    ("\u{fe30}", ".."),
    ("\u{2026}", "..."),
    ("\u{ff0f}", "/"),
    ("\u{2215}", "/"),
    ("\u{2044}", "/"),
    ("\u{ff3c}", "\\"),
    ("\u{2216}", "\\"),
    ("\u{a5}", "\\"),
    ("\u{20a9}", "\\"),
    ("\u{ff1b}", ";"),
    ("\u{37e}", ";"),
    ("\u{3000}", " "),
    ("\u{e9}", "\u{e9}"),
    ("\u{540d}", "\u{540d}"),
    ("\u{3002}", "\u{3002}"),
];

#[test]
fn an_allow_rule_for_a_directory_is_not_for_its_name_without_a_slash() {
    let policy = policy("[[egress.allow]]\nurl = \"https://x.example.com/v1/*\"");
    let ask = |path: &str| verdict(&policy, &format!("https://x.example.com{path}"), &["93.184.216.34"]);
    assert!(ask("/v1/").is_ok());
    for path in ["/v1", "/v1?x", "/v1%3f/x", "/V1/"] {
        assert_eq!(ask(path).unwrap_err().guard.code(), "path_not_allowed", "{path}");
    }
}

#[test]
fn an_address_is_denied_under_any_name() {
    let policy = policy(
        "[egress]\ndefault = \"open-internet\"\ndeny = [{ host = \"8.8.4.4\" }, { host = \"[2606:4700::dead]\", ports = [80] }]",
    );
    for (target, found, denied) in [
        ("http://x.test/", &["8.8.4.4"][..], true),
        ("http://x.test/", &["8.8.8.8", "8.8.4.4"], true),
        ("http://x.test/", &["8.8.8.8"], false),
        ("http://x.test/", &["2606:4700::dead", "8.8.8.8"], true),
        ("https://x.test/", &["2606:4700::dead"], false),
        ("http://8.8.4.4/", &["8.8.4.4"], true),
    ] {
        let verdict = verdict(&policy, target, found);
        assert_eq!(verdict.is_err(), denied, "{target} at {found:?}: {verdict:?}");
        if let Err(denial) = verdict {
            assert_eq!(denial.guard.code(), "deny_rule", "{denial}");
            assert!(denial.rule.is_some_and(|rule| rule.contains("egress.deny")));
        }
    }
}

#[test]
fn a_rule_that_closes_may_be_wide_and_name_what_is_closed() {
    let policy = policy(
        "[egress]\ndefault = \"open-internet\"\ndeny = [{ host = \"**.ru\" }, { host = \"169.254.169.254\" }, \
         { host = \"localhost\" }, { host = \"co.uk\", subdomains = true }]",
    );
    for (target, denied) in [
        ("http://a.b.ru/", true),
        ("http://a.co.uk/", true),
        ("http://a.run/", false),
        ("http://a.uk/", false),
    ] {
        assert_eq!(verdict(&policy, target, &["8.8.8.8"]).is_err(), denied, "{target}");
    }
}

#[test]
fn a_hint_is_one_that_can_be_followed() {
    let policy = policy("[[egress.allow]]\nurl = \"https://x.example.com/v1/*\"");
    for (target, hint) in [
        ("https://x.example.com/v2/a", "lockgate policy allow https://x.example.com/v2/a"),
        ("https://x.example.com/v2/a*b", "none can name this path alone"),
        ("http://x.example.com:443/v1/x", "lockgate policy allow http://x.example.com:443/v1/x"),
        ("http://10.0.0.5/", "lockgate policy allow 10.0.0.5:80"),
    ] {
        let denial = verdict(&policy, target, &["8.8.8.8"]).unwrap_err();
        assert!(denial.hint.as_ref().is_some_and(|it| it.to_string().contains(hint)), "{target}: {denial:?}");
    }
    let open = self::policy("egress.default = \"open-internet\"");
    let denial = verdict(&open, "http://10.0.0.5/", &["10.0.0.5"]).unwrap_err();
    assert_eq!(denial.hint.unwrap().to_string(), "lockgate policy allow 10.0.0.5:80");
}

#[test]
fn under_a_managed_policy_no_hint_is_one_that_cannot_help() {
    let provider = "[[provider]]\nid = \"mine\"\nauthorized_uris = [\"https://api.example.com/v1/*\"]";
    let hint = |managed: &str, own: &str, target: &str, addresses: &[&str]| {
        let mut layers = Layers::default();
        layers.push(Origin::Managed("managed.toml".into()), toml::from_str(managed).unwrap());
        layers.push(Origin::Flags, toml::from_str(own).unwrap());
        let denial = verdict(&layers.compile().unwrap().policy, target, addresses).unwrap_err();
        denial.hint.unwrap()
    };
    let is_vain = |hint: &Hint| matches!(hint, Hint::Advice(text) if text.contains("only whoever keeps"));
    let open = "egress.default = \"open-internet\"";
    let named = "egress.allow = [{ host = \"in.example.com\" }]";
    for (managed, own, target, address) in [
        (named, "", "https://other.example.com/", "8.8.8.8"),
        (named, named, "https://in.example.com/", "10.0.0.5"),
        (open, open, "http://10.0.0.5/", "10.0.0.5"),
        (provider, provider, "https://api.example.com/v2/x", "8.8.8.8"),
    ] {
        let hint = hint(managed, own, target, &[address]);
        assert!(is_vain(&hint), "{managed}, {target}: {hint:?}");
    }
    // The control: a hint that helps is given.
    let told = hint("", named, "https://in.example.com/", &["10.0.0.5"]);
    assert!(matches!(&told, Hint::Edit(text) if text.contains("addresses")), "{told:?}");
    let own = "egress.default = \"deny\"\negress.allow = [{ url = \"https://api.example.com/v1\" }]";
    let told = hint(open, own, "https://api.example.com/v2", &["8.8.8.8"]);
    assert_eq!(told, Hint::rule("https://api.example.com/v2"));
}

#[test]
fn what_an_address_is_denied_in_part_is_not_passed_unseen() {
    let policy = policy(
        "[egress]\nallow = [{ host = \"db.example.com\", ports = [443], addresses = [\"10.0.0.5\"] }]\n\
         deny = [{ host = \"10.0.0.5\", methods = [\"DELETE\"] }, { url = \"https://10.0.0.6/admin/*\" }]",
    );
    let host = policy::Host::parse("db.example.com").unwrap();
    let at = |view, address: &str| {
        let asked =
            Asked::connection(Plane::Forward, host.clone(), policy::Port::parse("443").unwrap(), view);
        policy.decide(&asked).unwrap().vet(&[address.parse().unwrap()])
    };
    for view in [policy::View::Opaque, policy::View::Tls] {
        assert_eq!(at(view, "10.0.0.5").unwrap_err().guard.code(), "deny_rule");
    }
    // A visible request passes.
    assert!(verdict(&policy, "https://db.example.com/", &["10.0.0.5"]).is_ok());
}

#[test]
fn the_addresses_of_a_provider_are_those_of_one_host() {
    let compiled = |uris: &[&str]| {
        let config =
            format!("[[provider]]\nid = \"mine\"\nauthorized_uris = {uris:?}\naddresses = [\"10.0.0.5\"]");
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(&config).unwrap());
        layers.compile().map(drop).map_err(|error| error.to_string())
    };
    let own = "https://one.internal/v1/*";
    assert_eq!(compiled(&[own, "https://one.internal:8443/v2/*"]), Ok(()));
    let refused = compiled(&[own, "https://api.example.com/*"]).unwrap_err();
    assert!(refused.contains("addresses") && refused.contains("provider of its own"), "{refused}");
}

#[test]
fn a_deny_rule_for_an_address_looks_at_the_methods_of_every_name_at_its_port() {
    let looks_in = |methods: &str, managed: bool| {
        let deny = format!(
            "egress.deny = [{{ host = \"93.184.216.34\", ports = [8080]{methods} }}]\negress.default = \"open-internet\"\n"
        );
        let mut layers = Layers::default();
        let origin =
            if managed { Origin::Managed("/etc/policy".into()) } else { Origin::Named("test".into()) };
        layers.push(origin, toml::from_str(&deny).unwrap());
        let policy = layers.compile().unwrap().policy;
        [
            "http://a.example:8080/",
            "http://93.184.216.34:8080/",
            "http://a.example/",
            "http://93.184.216.35:8080/",
        ]
        .map(|url| {
            let target = Target::parse(url).unwrap();
            policy.looks_at_methods(target.host(), target.port())
        })
    };
    for managed in [false, true] {
        assert_eq!(looks_in(", methods = [\"DELETE\"]", managed), [true, true, false, false]);
        assert_eq!(looks_in("", managed), [false; 4]);
    }
}
