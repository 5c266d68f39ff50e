//! What still denies a target that a file allows: a deny rule of any layer, the managed policy, or a rule that lists the addresses of the
//! host, beside which no other counts. Decided by the same `decide` that enforces.

use policy::{Asked, Denial, Guard, Method, Plane, Policy, Target, View};

use super::url::whole;

/// Returns the denial of a target of `policy allow`. A URL is asked for up to its `*`; `None` also for a pattern of hosts, of which
/// some may be denied and some not.
pub(super) fn standing_denial(policy: &Policy, target: &str) -> Option<Denial> {
    let exact = match target.contains("://") {
        true => target.split('*').next().unwrap_or_default().to_owned(),
        false => whole(target),
    };
    let url = Target::parse(&exact).ok()?;
    let asked = match target.contains("://") {
        true => Asked::request(Plane::Forward, Method::parse("GET")?, &url),
        false => Asked::connection(Plane::Forward, url.host().clone(), url.port(), View::Opaque),
    };
    let is_standing = |denial: &Denial| {
        matches!(denial.guard, Guard::DenyRule | Guard::Managed) || policy.places(url.host(), url.port())
    };
    // Any other denial is of what the rule itself leaves out.
    policy.decide(&asked).err().filter(is_standing)
}

#[cfg(test)]
mod tests {
    use policy::{Layers, Origin};

    use super::*;

    #[test]
    fn what_a_rule_denies_by_another_spelling_or_in_another_layer_is_found() {
        let mut layers = Layers::default();
        for (origin, text) in [
            (
                Origin::Managed("managed".into()),
                "[egress]\nallow = [{ host = \"**.example.com\" }, { host = \"**.example.net\" }]",
            ),
            (
                Origin::User("user".into()),
                "[egress]\ndeny = [{ host = \"api.example.net\", reason = \"not ours\" }]",
            ),
            (
                Origin::Project { path: "lockgate.toml".into(), approved: true },
                r#"
                [egress]
                allow = [
                    { url = "https://git.example.net/x/*", addresses = ["10.0.0.5"] }, { url = "https://git.example.net/y" },
                    { host = "api.example.com" }, { host = "api.example.net" }, { host = "api.example.org" },
                    { host = "www.example.net" }, { url = "https://www.example.com/v1/*" },
                ]
                deny = [
                    { host = "*.example.com" }, { host = "www.example.net", ports = [8443] },
                    { url = "https://www.example.net/admin/*" },
                ]
                "#,
            ),
        ] {
            layers.push(origin, toml::from_str(text).unwrap());
        }
        let policy = layers.compile().unwrap().policy;
        let found =
            |target: &str| standing_denial(&policy, target).map(|denial| (denial.guard, denial.reason));
        for (target, guard, words) in [
            ("api.example.com", Guard::DenyRule, "api.example.com is denied"),
            ("API.example.com:443", Guard::DenyRule, "api.example.com is denied"),
            ("https://www.example.com/v1/*", Guard::DenyRule, "www.example.com is denied"),
            ("api.example.net", Guard::DenyRule, "not ours"),
            ("api.example.org", Guard::Managed, "the managed policy does not allow it"),
            ("https://git.example.net/y", Guard::Path, ""),
        ] {
            let (by, reason) = found(target).unwrap_or_else(|| panic!("{target} is not denied"));
            assert!(by == guard && reason.starts_with(words), "{target}: {by} {reason}");
        }
        for target in ["www.example.net", "https://www.example.net/*", "*.example.com"] {
            assert_eq!(found(target), None, "{target}");
        }
    }
}
