//! `{{name}}` on the gateway: in the target, in headers and, on request, in bodies; once, whole, or not at all. S0.26, S0.49, S0.50, S1.19,
//! S1.21; C06, C07, C08, C09.

use lockgate_clients::{Canary, Left, Need, Site};
use lockgate_world::Record;

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("gzip")];
/// A provider that leaves the place of its credential to the agent, and one that does not.
const POLICY: &str = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/at/*\"]\n\
    [[provider]]\nid = \"two\"\nauthorized_uris = [\"https://protocols.example/in/*\"]\n\
    inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\nplaceholders = \"anywhere\"\n";
const AT: &str = "https://protocols.example/at";

fn last(site: &Site) -> Record {
    site.requests().pop().expect("a request")
}

fn safe(canary: &Canary, left: &Left) {
    canary.is_not_in("stdout", &left.ended.stdout);
    canary.is_not_in("stderr", &left.ended.stderr);
    canary.is_not_in("the audit", format!("{:?}", left.audit()));
}

#[test]
fn they_are_filled_where_they_may_stand() {
    // S0.49
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    site.keep("one", "id", "seven");
    let left = site.beside(POLICY).script(&format!(
        r#"p() {{ t=$1; shift; proxy "{AT}$t" one -f -o /dev/null "$@"; }}
        p '/{{{{id}}}}?key={{{{access_token}}}}' -H 'X-Id: <{{{{id}}}}>'
        p /body -H 'X-Substitute-Body: true' -H 'Content-Type: application/json' --data-binary '{{"a":"{{{{access_token}}}}","b":"{{{{id}}}}"}}'
        p /form -H 'X-Substitute-Body: true' --data 'a={{{{access_token}}}}&b={{{{id}}}}'
        p /parts -H 'X-Substitute-Body: true' -F 'a={{{{access_token}}}}' -F 'b={{{{id}}}}'
        p /kept --data 'a={{{{access_token}}}}'"#
    ));
    safe(&canary, &left);
    let text = canary.text();
    let requests = site.requests();
    let [target, json, form, parts, kept] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(target.text("path"), format!("/at/seven?key={text}"));
    assert_eq!(target.header("x-id"), Some("<seven>"));
    assert_eq!(json.text("body"), format!(r#"{{"a":"{text}","b":"seven"}}"#));
    assert_eq!(form.text("body"), format!("a={text}&b=seven"));
    assert!(parts.text("body").contains(text) && !parts.text("body").contains("{{"), "{parts:?}");
    // Without the request, bodies are forwarded unchanged.
    assert_eq!(kept.text("body"), "a={{access_token}}");
    for record in &requests {
        let control = ["x-provider", "x-target", "x-substitute-body", "x-max-response-size", "x-proxy"];
        assert!(control.iter().all(|name| record.header(name).is_none()), "{record:?}");
    }
}

#[test]
fn what_was_put_in_is_not_read_again() {
    // C07
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canary = Canary::draw();
    site.keep("one", "access_token", "a{{other}}b{{access_token}}c");
    site.keep("one", "other", canary.text());
    site.keep("two", "access_token", "a{{other}}b{{access_token}}c");
    site.keep("two", "other", canary.text());
    let left = site.beside(POLICY).script(&format!(
        r#"p() {{ t=$1; shift; proxy "{AT}$t" one -f -o /dev/null "$@"; }}
        p '/query?key={{{{access_token}}}}' -H 'X-Key: {{{{access_token}}}}'
        proxy https://protocols.example/in/injected two -f -o /dev/null
        p /body -H 'X-Substitute-Body: true' -H 'Content-Type: text/plain' --data-binary '<{{{{access_token}}}}>'"#
    ));
    safe(&canary, &left);
    let requests = site.requests();
    canary.is_not_in("a request", format!("{requests:?}"));
    let [target, injected, body] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(target.header("x-key"), Some("a{{other}}b{{access_token}}c"));
    assert_eq!(target.text("path"), "/at/query?key=a%7B%7Bother%7D%7Db%7B%7Baccess_token%7D%7Dc");
    assert_eq!(injected.header("authorization"), Some("Bearer a{{other}}b{{access_token}}c"));
    assert_eq!(body.text("body"), "<a{{other}}b{{access_token}}c>");
}

/// A name that no field has: the longest has 64 characters.
const LONG: &str = "a_name_of_more_than_sixty_four_characters_is_no_name_of_any_field_at_all";

#[test]
fn what_cannot_be_filled_is_not_sent() {
    // C09, S0.50, and the texts that existing clients know.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    let left = site.beside(POLICY).script(&format!(
        r#"p() {{ t=$1; shift; proxy "{AT}$t" one -w '\n%{{http_code}}\n' "$@" | tr -d '\n'; echo; }}
        p '/{{{{nope}}}}'
        p '/?a={{{{nope}}}}&b={{{{access_token}}}}'
        p / -H 'X-Key: {{{{access_token}}}} {{{{nope}}}} {{{{never}}}}'
        p / -H 'X-Substitute-Body: true' --data 'a={{{{access_token}}}}&b={{{{nope}}}}'
        p / -H "X-Key: $(printf '{{{{nope}}}}\351')"
        p / -H 'X-Key: {{{{{LONG}}}}}'"#
    ));
    safe(&canary, &left);
    let mut lines: Vec<&str> = left.lines().collect();
    let long = lines.pop().unwrap_or_default();
    assert!(long.contains("Unresolved placeholders in header") && long.ends_with("400"), "{}", left.ended);
    let places = ["URL", "URL", "header", "body", "header"];
    assert_eq!(lines.len(), places.len(), "{}", left.ended);
    for (line, place) in lines.iter().zip(places) {
        let words = format!("Unresolved placeholders in {place}: {{{{nope}}}}");
        assert!(line.contains(&words) && line.ends_with("400"), "{place}: {line}");
    }
    assert!(lines[2].contains("{{nope}}, {{never}}"), "{}", lines[2]);
    assert_eq!(site.world().received_by("web"), 0, "{:?}", site.visits());
    assert_eq!(left.denials("placeholder_unresolved"), 6, "{:?}", left.audit());
}

#[test]
fn a_disguised_one_is_refused_or_stays_what_it_is() {
    // C08: spaced or cut across chunks it is text; escaped, in a packed body, as a name, a method or a host it is refused.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    let left = site.beside(POLICY).script(&format!(
        r#"p() {{ key=$1; t=$2; shift 2; code $key proxy "$t" one "$@"; }}
        s='X-Substitute-Body: true'
        p escaped {AT}/escaped -H "$s" -H 'Content-Type: application/json' --data-binary '{{"a":"\u007b{{access_token}}}}","b":"{{{{access_token}}}}"}}'
        p percent '{AT}/percent/%7B%7Baccess_token%7D%7D'
        p field {AT}/field -H 'X-Key: %7B%7Baccess_token%7D%7D'
        p form {AT}/form -H "$s" --data 'a=%7B%7Baccess_token%7D%7D&b={{{{access_token}}}}'
        p other '{AT}/other?q=%7B%7Bname%7D%7D'
        printf 'a={{{{access_token}}}}' | gzip -n > packed
        p packed {AT}/packed -H "$s" -H 'Content-Encoding: gzip' --data-binary @packed
        p spaced {AT}/spaced -H "$s" --data 'a={{{{ access_token }}}}{{access_token}}'
        printf 'a={{{{access_token}}}}' > whole
        p chunked {AT}/chunked -H "$s" -H 'Content-Type: text/plain' -H 'Transfer-Encoding: chunked' --data-binary @whole
        p host 'https://{{{{access_token}}}}/at/x'
        p subdomain 'https://{{{{access_token}}}}.protocols.example/at/x'
        p port 'https://protocols.example:{{{{access_token}}}}/at/x'
        p scheme '{{{{access_token}}}}://protocols.example/at/x'
        p user 'https://{{{{access_token}}}}@protocols.example/at/x'
        p method {AT}/method -X '{{{{access_token}}}}'
        p name {AT}/name -H '{{{{access_token}}}}: x'
        p provider {AT}/provider -H 'X-Provider: {{{{access_token}}}}'"#
    ));
    safe(&canary, &left);
    let requests = site.requests();
    let body = |name: &str| {
        let found = requests.iter().find(|record| record.text("path") == format!("/at/{name}"));
        found.unwrap_or_else(|| panic!("{name} is not there: {requests:?}")).text("body").to_owned()
    };
    for key in ["escaped", "packed", "percent", "field", "form"] {
        assert_eq!(left.said(key), "400", "{key}: {}", left.ended);
    }
    assert_eq!(body("other?q=%7B%7Bname%7D%7D"), "");
    assert_eq!(body("spaced"), "a={{ access_token }}{access_token}");
    assert_eq!(body("chunked"), format!("a={}", canary.text()));
    for key in ["host", "subdomain", "port", "scheme", "user", "method", "name"] {
        assert!(["400", "403"].contains(&left.said(key)), "{key}: {}", left.ended);
    }
    assert_eq!(requests.len(), 3 + usize::from(left.said("provider") == "200"), "{requests:?}");
    let names = site.world().records_of("resolver");
    canary.is_not_in("a question", format!("{names:?}"));
}

#[test]
fn a_value_that_would_change_its_place_is_refused() {
    // C06: when it is loaded, and when it is used.
    let Some(site) = Site::for_test(NEEDS) else { return };
    for bad in ["a\rb", "a\nb", "a\r\nX-Evil: 1", "a\0b", ""] {
        let ended = site.store("one", "access_token", bad);
        assert!(ended.code != 0, "{bad:?} was taken: {ended}");
    }
    for (value, in_path) in [
        ("a/b", false),
        ("a\\b", false),
        ("..", false),
        ("a..b", false),
        ("a?b", false),
        ("a#b", false),
        ("a%2fb", false),
        ("a b&c=d", true),
    ] {
        site.keep("one", "access_token", value);
        let before = site.requests().len();
        let left = site.beside(POLICY).script(&format!(
            "code path proxy '{AT}/p/{{{{access_token}}}}/end' one\ncode query proxy '{AT}/q?x={{{{access_token}}}}' one"
        ));
        assert_eq!(left.said("path"), if in_path { "200" } else { "400" }, "{value}: {}", left.ended);
        assert_eq!(left.said("query"), "200", "{value}: {}", left.ended);
        let query = last(&site);
        let told = query.text("path").strip_prefix("/at/q?x=").unwrap_or_default().to_owned();
        assert!(!told.contains(['&', '#', ' ', '/', '?']) && !told.is_empty(), "{value}: {query:?}");
        assert_eq!(site.requests().len() - before, 1 + usize::from(in_path), "{value}");
    }
}

#[test]
fn a_name_that_no_field_has_is_that_before_it_stands_in_a_wrong_place() {
    // S0.50: of a provider that names the place of its credential itself.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canary = Canary::draw();
    site.keep("two", "access_token", canary.text());
    let policy = POLICY.replace("placeholders = \"anywhere\"\n", "");
    let left = site.beside(&policy).script(
        r#"p() { key=$1; t=$2; shift 2; printf '%s=%s\n' $key "$(proxy "https://protocols.example/in$t" two -w ' %{http_code}' "$@" | tr -d '\n')"; }
        p nope '/{{nope}}'
        p query '/?a={{nope}}'
        p header / -H 'X-Key: {{nope}}'
        p both '/{{access_token}}/{{nope}}'
        p path '/{{access_token}}'
        p own / -H 'Authorization: Bearer {{access_token}}'"#,
    );
    safe(&canary, &left);
    for key in ["nope", "query", "header", "both"] {
        let said = left.said(key);
        assert!(said.ends_with(" 400") && said.contains("placeholder_unresolved"), "{key}: {}", left.ended);
    }
    assert!(left.said("path").ends_with(" 403"), "{}", left.ended);
    assert_eq!(
        (left.denials("placeholder_unresolved"), left.denials("credential_endpoint_mismatch")),
        (4, 1)
    );
    // The control: where it may stand it is filled.
    assert!(left.said("own").ends_with(" 200"), "{}", left.ended);
    let requests = site.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(requests[0].header("authorization"), Some(format!("Bearer {}", canary.text()).as_str()));
}

#[test]
fn a_body_is_no_place_for_one_where_the_provider_says_where_it_goes() {
    // S0.26, S0.50: on request the body is read; a template in it is refused as in a path.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canary = Canary::draw();
    site.keep("two", "access_token", canary.text());
    let policy = POLICY.replace("placeholders = \"anywhere\"\n", "");
    let left = site.beside(&policy).script(
        r#"p() { key=$1; shift; printf '%s=%s\n' $key "$(proxy https://protocols.example/in/body two -w ' %{http_code}' -H 'X-Substitute-Body: true' "$@" | tr -d '\n')"; }
        p nope --data 'a={{nope}}'
        p both --data 'a={{access_token}}&b={{nope}}'
        p known --data 'a={{access_token}}'
        head -c 5242881 /dev/zero > large
        p large -H 'Content-Type: text/plain' --data-binary @large
        p plain --data 'a={b}'
        p none"#,
    );
    safe(&canary, &left);
    for key in ["nope", "both"] {
        let said = left.said(key);
        assert!(said.contains("Unresolved placeholders in body: {{nope}}"), "{key}: {}", left.ended);
        assert!(said.ends_with(" 400") && said.contains("placeholder_unresolved"), "{key}: {}", left.ended);
    }
    let known = left.said("known");
    assert!(known.ends_with(" 403") && known.contains("credential_endpoint_mismatch"), "{}", left.ended);
    assert!(left.said("large").ends_with(" 413"), "{}", left.ended);
    assert_eq!(
        (left.denials("placeholder_unresolved"), left.denials("credential_endpoint_mismatch")),
        (2, 1)
    );
    // The control: without a template, or without a body, the request is like any other.
    assert!(left.said("plain").ends_with(" 200") && left.said("none").ends_with(" 200"), "{}", left.ended);
    let requests = site.requests();
    let [plain, none] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!((plain.text("body"), none.text("body")), ("a={b}", ""));
    assert_eq!(plain.header("authorization"), Some(format!("Bearer {}", canary.text()).as_str()));
}
