//! An upstream sends the credential back in every form and place, and the agent never sees it: over both versions of HTTP, on every plane,
//! across the edge of a chunk. S0.7, S0.35, S0.52, S0.53, S1.24; C10, C11.

use lockgate_clients::{Canary, Left, Need, Site};

const CURLS: &[Need] = &[Need::Program("curl")];
const POLICY: &str = "[[provider]]\nid = \"one\"\n\
    authorized_uris = [\"https://protocols.example/*\", \"http://protocols.example/*\"]\nenv = \"ONE_TOKEN\"\n\
    inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\nplaceholders = \"anywhere\"\n";
/// Every form of the world's `/echo-auth`.
const FORMS: [&str; 16] = [
    "plain",
    "base64",
    "hex",
    "percent",
    "json",
    "gzip",
    "deflate",
    "br",
    "chunks1",
    "slow",
    "trailer",
    "header",
    "www-authenticate",
    "set-cookie",
    "location",
    "early-hints",
];
/// The number of requests for all forms: a 401 is not retried with the credential that it refused.
const ASKED: usize = FORMS.len();
const MASK: &str = "****************";

/// Returns a site whose vault holds a credential that encodings change.
fn site() -> Option<(Site, Canary)> {
    let site = Site::for_test(CURLS)?;
    let canary = Canary::draw_rough();
    site.keep("one", "access_token", canary.text());
    Some((site, canary))
}

/// Checks that the upstream received the credential `times` times, and that nobody else saw it.
fn came_back_masked(site: &Site, canary: &Canary, left: &Left, times: usize) {
    let sent = format!("Bearer {}", canary.text());
    let requests = site.requests();
    let with = requests.iter().filter(|record| record.header("authorization") == Some(&sent)).count();
    assert_eq!(with, times, "{requests:?}");
    canary.is_not_in("what came back", &left.ended.stdout);
    canary.is_not_in("stderr", &left.ended.stderr);
    canary.is_not_in("the audit", format!("{:?}", left.audit()));
    canary.is_not_in("the sidecar's words", left.words());
}

/// Returns `request` for every form, each answer after a line with the form's name.
fn each(request: &str) -> String {
    let line = |form: &&str| format!("echo; echo \"== {form}\"; {request}as={form}'\n");
    FORMS.iter().map(line).collect()
}

/// Checks that every form was answered, and that the given forms show their masks.
fn all_came(left: &Left, shown: &[&str]) {
    for form in FORMS {
        let after = left.ended.stdout.split(&format!("== {form}\n")).nth(1).unwrap_or_default();
        let answer = after.split("\n== ").next().unwrap_or_default();
        assert!(answer.contains("HTTP/"), "{form} was not answered: {}", left.ended);
        if shown.contains(&form) {
            assert!(answer.contains(MASK), "{form} shows no mask: {answer}");
        }
    }
}

#[test]
fn over_http_1_through_a_tunnel() {
    // C10
    let Some((site, canary)) = site() else { return };
    let left =
        site.beside(POLICY).script(&each("via -i --http1.1 --raw 'https://protocols.example/echo-auth?"));
    came_back_masked(&site, &canary, &left, ASKED);
    // Trailers are not forwarded to HTTP/1.
    let shown: Vec<&str> = FORMS.into_iter().filter(|form| !["trailer"].contains(form)).collect();
    all_came(&left, &shown);
    // In pieces of one octet there is framing between the masks, so curl decodes the chunks here.
    let left = site
        .beside(POLICY)
        .script(&each("via -i --http1.1 --compressed 'https://protocols.example/echo-auth?"));
    came_back_masked(&site, &canary, &left, 2 * ASKED);
    assert!(!left.ended.stdout.to_lowercase().contains("content-encoding"), "{}", left.ended);
}

#[test]
fn over_http_2_through_a_tunnel() {
    // C10
    let Some((site, canary)) = site() else { return };
    let left = site.beside(POLICY).script(&each("via -i --http2 'https://protocols.example/echo-auth?"));
    came_back_masked(&site, &canary, &left, ASKED);
    all_came(&left, &FORMS);
    assert!(left.ended.stdout.contains("HTTP/2 200"), "{}", left.ended);
    assert!(
        site.requests().iter().all(|record| record.text("line").ends_with("HTTP/2.0")),
        "{:?}",
        site.requests()
    );
}

#[test]
fn in_the_clear_and_in_absolute_form() {
    // C10; S0.28
    let Some((site, canary)) = site() else { return };
    let left = site.beside(POLICY).script(&each("via -i 'http://protocols.example/echo-auth?"));
    came_back_masked(&site, &canary, &left, ASKED);
    let shown: Vec<&str> = FORMS.into_iter().filter(|form| !["trailer"].contains(form)).collect();
    all_came(&left, &shown);
}

#[test]
fn on_the_gateway() {
    // C10; S0.26
    let Some((site, canary)) = site() else { return };
    let request = "gate -i -H 'X-Provider: one' http://127.0.0.1:8080/proxy -H 'X-Target: https://protocols.example/echo-auth?";
    let left = site.beside(POLICY).script(&each(request));
    came_back_masked(&site, &canary, &left, ASKED);
    let shown: Vec<&str> = FORMS.into_iter().filter(|form| !["trailer"].contains(form)).collect();
    all_came(&left, &shown);
}

#[test]
fn in_a_run_that_knows_of_no_proxy() {
    // C10
    for site in Site::for_everyone(CURLS) {
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        let run = site.run().policy(POLICY).bare();
        let line = |(form, version): (&str, &str)| {
            format!(
                "echo; echo '== {form}'; curl -sSi {version} --max-time 20 'https://protocols.example/echo-auth?as={form}'\n"
            )
        };
        let script: String =
            FORMS.into_iter().flat_map(|form| [(form, "--http2"), (form, "--http1.1")]).map(line).collect();
        let ended = run.script(&script);
        assert!(ended.code == 0 && ended.stdout.matches(MASK).count() > 20, "{ended}");
        canary.is_not_in("what came back", &ended.stdout);
        canary.is_not_in("stderr", &ended.stderr);
        let sent = format!("Bearer {}", canary.text());
        let got = site.requests().iter().filter(|r| r.header("authorization") == Some(&sent)).count();
        assert_eq!(got, 2 * ASKED);
    }
}

#[test]
fn what_an_address_line_escapes_is_masked_as_well() {
    // C10: a `Location` in which only the necessary characters are escaped, as `encodeURI` and browsers do.
    let Some(site) = Site::for_test(CURLS) else { return };
    let canary = Canary::draw();
    let value = format!("{} {}", &canary.text()[..20], &canary.text()[20..]);
    site.keep("one", "access_token", &value);
    let left = site.beside(POLICY).script("via -i 'https://protocols.example/echo-auth?as=location'");
    assert!(left.ended.stdout.contains("HTTP/2 302"), "{}", left.ended);
    canary.is_not_in("the answer", &left.ended.stdout);
}

#[test]
fn an_error_page_is_no_way_out() {
    // C10: services repeat the key that they refuse.
    let Some((site, canary)) = site() else { return };
    let mut script = String::new();
    for status in [400, 403, 404, 429, 500, 503] {
        for form in ["plain", "json", "base64", "gzip"] {
            script += &format!("via -i 'https://protocols.example/echo-auth?as={form}&status={status}'\n");
        }
    }
    let left = site.beside(POLICY).script(&script);
    came_back_masked(&site, &canary, &left, 24);
    for status in [400, 403, 404, 429, 500, 503] {
        assert_eq!(
            left.ended.stdout.matches(&format!("\nHTTP/2 {status}")).count()
                + usize::from(left.ended.stdout.starts_with(&format!("HTTP/2 {status}"))),
            4,
            "{status}: {}",
            left.ended
        );
    }
}

#[test]
fn what_an_earlier_run_stored_is_masked_before_this_one_has_used_its_credentials() {
    // S0.52: the upstream's own words, at a path that a rule opens beside the credentials of two providers.
    let Some(site) = Site::for_test(CURLS) else { return };
    let canaries = [Canary::draw(), Canary::draw()];
    let mut policy = "[egress]\nallow = [{ url = \"https://protocols.example/mirror\" }]\n".to_owned();
    for (canary, id) in canaries.iter().zip(["one", "two"]) {
        site.keep(id, "access_token", canary.text());
        policy += &format!(
            "[[provider]]\nid = \"{id}\"\nauthorized_uris = [\"https://protocols.example/{id}/*\"]\n\
             inject = {{ header = \"authorization\", value = \"Bearer {{{{access_token}}}}\" }}\n"
        );
    }
    let ask = |canary: &Canary| {
        let body = canary.text();
        format!("via -i -H 'Content-Type: text/plain' --data '{body}' https://protocols.example/mirror\n")
    };
    for canary in &canaries {
        let left = site.beside(&policy).script(&ask(canary));
        canary.is_not_in("the first answer", &left.ended.stdout);
        assert!(left.ended.stdout.contains(MASK), "{}", left.ended);
    }
    let sent = site.requests();
    assert!(sent.len() == 2 && sent.iter().all(|it| it.header("authorization").is_none()), "{sent:?}");
}

#[test]
fn no_part_of_it_is_left_at_a_cut() {
    // C11, S0.53: the upstream mirrors a body in which the credential crosses the limit, at every offset.
    let Some(site) = Site::for_test(CURLS) else { return };
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    let mut script = String::new();
    let limits = [50_000_usize, 1000];
    for limit in limits {
        for before in (limit - 40)..=(limit + 1) {
            let size =
                if limit == 50_000 { String::new() } else { format!("-H 'X-Max-Response-Size: {limit}'") };
            // The credential enters the body by its template, and comes back verbatim.
            script += &format!(
                "{{ head -c {before} /dev/zero | tr '\\0' 'x'; printf '{{{{access_token}}}}'; head -c 200 /dev/zero | tr '\\0' 'y'; }} > body\n\
                 proxy https://protocols.example/mirror one -i {size} -H 'X-Substitute-Body: true' -H 'Content-Type: text/plain' -H 'Expect:' --data-binary @body > answer\n\
                 grep -qi '^x-truncated: true' answer || {{ cat answer; exit 7; }}\n\
                 grep -qi '^content-length: {limit}' answer || {{ head -20 answer; exit 6; }}\n\
                 tail -c 60 answer; echo\n"
            );
        }
    }
    // A provider without an injection: the agent places the credential.
    let policy = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/*\"]\n";
    let left = site.beside(policy).script(&script);
    canary.is_not_in("the answers", &left.ended.stdout);
    // Not even the shortest prefix, which `is_not_in` would not count as a leak.
    for line in left.lines() {
        assert!(line.trim_start_matches('x').trim_start_matches('*').is_empty(), "{line}");
    }
    assert_eq!(left.lines().count(), 2 * 42);
    assert!(left.lines().any(|line| line.ends_with('*')), "{}", left.ended);
    let bodies = site.requests().iter().filter(|record| record.text("body").contains(canary.text())).count();
    assert_eq!(bodies, 2 * 42, "the credential was not in every body");
}
