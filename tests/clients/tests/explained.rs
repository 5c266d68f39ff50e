//! The shape of `policy explain --json`, which programs read: one object, its fields and what may stand in them.

use lockgate_clients::{Canary, Need, Site};
use serde_json::{Value, json};

const POLICY: &str = r#"
egress.default = "open-internet"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/v1/*"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
[[egress.deny]]
host = "www.example.org"
[[egress.deny]]
url = "https://api.example.com/*"
methods = ["POST"]
"#;

#[test]
fn where_no_injection_covers_a_request_its_credential_is_not_said_to_be_put_in() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let provider = |inject: &str| {
        let uris = "authorized_uris = [\"https://protocols.example/*\"]";
        format!("[[provider]]\nid = \"one\"\n{uris}\nenv = \"ONE_TOKEN\"\n{inject}\n")
    };
    let part = "inject = { basic = \"me:{{access_token}}\", at = \"https://protocols.example/v1/*\" }";
    let exposed = "[env.variable.ONE_TOKEN]\nexpose = true\n";
    let (put_in, placed) =
        ("; its credential is put in", "; no `inject` covers it: its credential goes where");
    for (policy, path, says) in [
        (provider(part), "v1/x", put_in),
        (provider(part), "v2/x", placed),
        (provider(""), "v1/x", placed),
        (provider(&format!("{part}\n{exposed}")), "v2/x", "; no `inject` covers it: the command places"),
    ] {
        let policy = site.file("explained.toml", &policy).to_string_lossy().into_owned();
        let target = format!("https://protocols.example/{path}");
        let ended = site.lockgate(&["policy", "explain", "--policy", &policy, &target]);
        assert!(ended.code == 0 && ended.stdout.contains(says), "{says}: {ended}");
        assert_eq!(ended.stdout.contains(put_in), says == put_in, "{ended}");
    }
}

#[test]
fn one_object_says_what_is_asked_and_what_becomes_of_it_on_each_way() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    site.keep("one", "access_token", Canary::draw().text());
    let policy = site.file("explained.toml", POLICY).to_string_lossy().into_owned();
    let explain = |words: &[&str]| {
        let ended = site.lockgate(&[&["policy", "explain", "--json", "--policy", &policy], words].concat());
        assert_eq!(ended.stdout.lines().count(), 1, "{ended}");
        let told: Value = serde_json::from_str(&ended.stdout).expect("one object");
        let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&told), ["asked", "verdict", "ways"], "{ended}");
        for way in told["ways"].as_array().expect("a list") {
            assert_eq!(keys(way), ["guard", "hint", "reason", "rule", "verdict", "way"], "{ended}");
            assert!(way["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{ended}");
            assert!(way["verdict"] == "allow" || way["verdict"] == "deny", "{ended}");
            assert_eq!(way["guard"].is_string(), way["verdict"] == "deny", "{ended}");
            assert!(
                [&way["rule"], &way["hint"]].into_iter().all(|it| it.is_null() || it.is_string()),
                "{ended}"
            );
        }
        assert_eq!(ended.code, i32::from(told["verdict"] == "deny"), "{ended}");
        told
    };
    let ways = |told: &Value| {
        let ways = told["ways"].as_array().into_iter().flatten();
        ways.map(|way| (way["way"].clone(), way["verdict"].clone())).collect::<Vec<_>>()
    };
    let each = |verdict: &str, ways: &[&str]| {
        ways.iter().map(|way| (json!(way), json!(verdict))).collect::<Vec<_>>()
    };
    let planes = ["dns", "through the proxy", "CONNECT to the proxy", "redirected"];

    let told = explain(&["https://protocols.example/v1/x"]);
    assert_eq!(told["asked"], "GET https://protocols.example/v1/x");
    assert_eq!(told["verdict"], "allow", "{told}");
    assert_eq!(ways(&told), each("allow", &[&planes[..], &["then"]].concat()));
    assert!(told["ways"][1]["rule"].as_str().is_some_and(|rule| rule.contains("one")), "{told}");

    let told = explain(&["https://www.example.org/x"]);
    assert_eq!(told["verdict"], "deny", "{told}");
    assert_eq!(ways(&told), each("deny", &planes));
    assert_eq!(told["ways"][1]["guard"], "deny_rule", "{told}");

    let told = explain(&["--method", "POST", "https://api.example.com/v1/x"]);
    assert_eq!(told["asked"], "POST https://api.example.com/v1/x");
    assert_eq!(told["verdict"], "deny", "{told}");

    let told = explain(&["http://127.1/"]);
    assert_eq!(ways(&told), each("deny", &["on every plane"]));
    assert_eq!(told["ways"][0]["guard"], "host_form", "{told}");

    // An address needs no resolver, so each plane tells what its guard of addresses decides.
    let told = explain(&["http://10.0.0.1/"]);
    assert_eq!(told["verdict"], "deny", "{told}");
    assert_eq!(ways(&told), each("deny", &planes[1..]));
    let hint = format!("lockgate policy allow --policy {policy} 10.0.0.1:80");
    for way in told["ways"].as_array().into_iter().flatten() {
        assert_eq!((&way["guard"], &way["hint"]), (&json!("address_blocked"), &json!(hint)), "{told}");
    }
}
