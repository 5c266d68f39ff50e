//! Header fields by which proxies say which host they were asked for. Some servers choose the site by them, as by `Host`. Where only some
//! of a host's requests are allowed, or a credential is bound to it, one that names another host is left out. It is not refused as such a
//! `Host` is: development servers tell their own name to every host that they forward to.

use policy::{Asked, Authority, Carriage, Grant, Plane, Policy, Target, View};

use super::draft::Sending;
use super::key_names::may_be_same;

const HOSTS: [&str; 6] = [
    "x-forwarded-host",
    "x-forwarded-server",
    "x-host",
    "x-original-host",
    "x-real-host",
    "x-http-host-override",
];
/// The field that has the host as a parameter (RFC 7239 §5.3).
const FORWARDED: &str = "forwarded";

/// Leaves out the fields that name another host, where it matters.
pub(super) fn leave_out_other(sending: &mut Sending, policy: &Policy, grant: &Grant, target: &Target) {
    let is_other = |name: &str, value: &[u8]| names_other(name, value, target);
    if sending.fields.iter().any(|(name, value)| is_other(name, value))
        && (grant.is_bound() || !is_allowed_whole(policy, target))
    {
        sending.fields.keep_each(|name, value| !is_other(name, value));
    }
}

/// Whether a connection to the host may carry any request.
fn is_allowed_whole(policy: &Policy, target: &Target) -> bool {
    let asked = Asked::connection(Plane::Forward, target.host().clone(), target.port(), View::Opaque);
    policy.decide(&asked).is_ok_and(|grant| matches!(grant.carriage(), Carriage::Any | Carriage::Tls))
}

fn names_other(name: &str, value: &[u8], target: &Target) -> bool {
    let is_other = |text: &str| {
        !Authority::parse(text.trim()).is_ok_and(|named| {
            named.host == *target.host() && named.port.is_none_or(|port| port == target.port())
        })
    };
    let value = String::from_utf8_lossy(value);
    if HOSTS.iter().any(|known| may_be_same(known, name)) {
        return value.split(',').any(is_other);
    }
    may_be_same(FORWARDED, name)
        && value.split([',', ';']).filter_map(|pair| pair.split_once('=')).any(|(parameter, host)| {
            parameter.trim().eq_ignore_ascii_case("host") && is_other(host.trim().trim_matches('"'))
        })
}

#[cfg(test)]
mod tests {
    use policy::Method;

    use super::*;
    use crate::http::Fields;

    #[test]
    fn another_host_is_not_named_where_only_some_requests_are_allowed() {
        let config = toml::from_str(
            "[egress]\nallow = [{ url = \"https://a.example/open/*\" }, { host = \"whole.example\" }, { host = \"most.example\" }]\n\
             deny = [{ url = \"https://most.example/admin/*\" }]\n\
             [[provider]]\nid = \"one\"\nauthorized_uris = [\"https://bound.example/*\"]\n",
        );
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        let policy = layers.compile().unwrap().policy;
        let passes = |host: &str, name: &str, value: &str| {
            let target = Target::parse(&format!("https://{host}/open/x")).unwrap();
            let method = Method::parse("GET").unwrap();
            let grant = policy.decide(&Asked::request(Plane::Forward, method.clone(), &target)).unwrap();
            let fields = Fields::from_iter([(name, value.as_bytes())]);
            let mut sending = Sending::new(method, &target, fields);
            leave_out_other(&mut sending, &policy, &grant, &target);
            !sending.fields.is_empty()
        };
        let hosts = [
            "x-forwarded-host",
            "x-forwarded-server",
            "x-host",
            "x-original-host",
            "x-real-host",
            "x-http-host-override",
            "X_Forwarded_Host",
            "X.Host",
        ];
        let hosts = hosts.into_iter().map(|name| (name, ""));
        for (name, before) in
            hosts.chain([("forwarded", "for=10.0.0.1;HOST="), ("Forwarded", "proto=https, host=")])
        {
            for host in ["a.example", "most.example", "bound.example"] {
                let told = |value: &str| passes(host, name, &format!("{before}{value}"));
                assert!(
                    !told("other.example") && !told("localhost:3000") && !told(&format!("{host}:80")),
                    "{name} {host}"
                );
                assert!(!told(&format!("{host}, host=other.example")), "{name} {host}");
                assert!(
                    told(host) && told(&host.to_uppercase()) && told(&format!("{host}:443")),
                    "{name} {host}"
                );
            }
            assert!(passes("whole.example", name, &format!("{before}other.example")), "{name}");
        }
        assert!(!passes("a.example", "forwarded", "host=\"other.example:443\""));
        assert!(passes("a.example", "forwarded", "host=\"a.example:443\""));
        assert!(passes("a.example", "forwarded", "for=other.example;proto=https"));
        assert!(passes("a.example", "x-forwarded-for", "10.0.0.1"));
    }
}
