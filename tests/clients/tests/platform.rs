//! A sidecar whose credentials come from a platform: configured once for a run, asked lazily with a run token that goes nowhere else, asked
//! again when an upstream refuses. S0.23, S0.27, S0.41, S0.47, S1.10, S1.16, S1.20; C06, C13, C15, C16.

use std::fs;

use lockgate_clients::{Canary, Left, Need, Site};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("python3")];
const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
[[provider]]
id = "model"
authorized_uris = ["https://api.openai.com/*"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
"#;

/// A platform: it answers with the file `answer`, `STATUS BODY`, then with the file `then` after the next answer, and writes the requests
/// to the file `asked`.
const PLATFORM: &str = r#"import http.server, os, sys, time
folder = sys.argv[1]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *words): pass
    def answer(self):
        with open(folder + "/asked", "a") as asked:
            asked.write("%s %s %s\n" % (self.command, self.path, self.headers.get("authorization")))
        if self.headers.get("authorization") != "Bearer " + os.environ["TOKEN"]:
            status, body = "401", "who are you"
        elif self.command == "POST":
            status, body = "204", ""
        else:
            status, body = open(folder + "/answer").read().split(" ", 1)
            if os.path.exists(folder + "/then"): os.rename(folder + "/then", folder + "/answer")
        if body == "hang": time.sleep(30)
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())
    do_GET = do_POST = answer
server = http.server.ThreadingHTTPServer(("127.0.0.1", 9100), Handler)
open(folder + "/ready", "w").close()
server.serve_forever()
"#;
/// Begins a script: answers on one line, the platform, `gives VALUE`, `then_gives VALUE`, `configure BEARER`, `one KEY`, `model KEY`.
const TOOLS: &str = r#"
gate() { curl -sS --max-time 40 "$@" | tr -d '\n'; }
rm -f "$HERE/ready"; /usr/bin/python3 "$HERE/platform.py" "$HERE" & platform=$!
await '[ -e "$HERE/ready" ]'; rm "$HERE/ready"; : > "$HERE/asked"
gives() { printf '200 {"fields":{"access_token":"%s"}}' "$1" > "$HERE/answer.new"; mv "$HERE/answer.new" "$HERE/answer"; }
then_gives() { printf '200 {"fields":{"access_token":"%s"}}' "$1" > "$HERE/then"; }
configure() { gate -w ' %{http_code}' -H "Authorization: Bearer $1" --data "{\"runToken\":\"$TOKEN\",\"platformApiUrl\":\"http://127.0.0.1:9100\"}" http://127.0.0.1:8080/configure; echo; }
one() { key=$1; shift; printf '%s=%s\n' $key "$(proxy https://protocols.example/echo one -w ' %{http_code}' "$@")"; }
model() { key=$1; shift; printf '%s=%s\n' $key "$(proxy https://api.openai.com/v1/models model -w ' %{http_code}' "$@" | tr -d '\n')"; }
"#;

struct Set {
    site: Site,
    token: Canary,
    secret: Canary,
    value: Canary,
    here: std::path::PathBuf,
}

impl Set {
    fn up() -> Option<Self> {
        let site = Site::for_test(NEEDS)?;
        let here = site.folder("platform");
        fs::write(here.join("platform.py"), PLATFORM).expect("room for a script");
        Some(Self { site, token: Canary::draw(), secret: Canary::draw(), value: Canary::draw(), here })
    }

    /// Runs a script with a platform; the sidecar waits to be configured.
    fn script(&self, text: &str) -> Left {
        let beside = self.site.beside(POLICY).with("CONFIG_SECRET", self.secret.text());
        let beside = beside.with("TOKEN", self.token.text()).with("VALUE", self.value.text());
        let keys = self.site.world().folder().join("keys.json");
        let beside = beside.with("HERE", &self.here.to_string_lossy()).with("KEYS", &keys.to_string_lossy());
        let left = beside.script(&format!("{TOOLS}{text}\nkill $platform"));
        for (name, secret) in [("token", &self.token), ("secret", &self.secret), ("value", &self.value)] {
            secret.is_not_in(&format!("stdout ({name})"), &left.ended.stdout);
            secret.is_not_in(&format!("stderr ({name})"), &left.ended.stderr);
            secret.is_not_in(&format!("the audit ({name})"), format!("{:?}", left.audit()));
            secret.is_not_in(&format!("the sidecar's words ({name})"), left.words());
        }
        // C15: neither reaches any upstream.
        let seen = format!("{:?}", self.site.visits());
        self.token.is_not_in("a visit", &seen);
        self.secret.is_not_in("a visit", &seen);
        left
    }

    /// Returns the requests to the platform, in lines.
    fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.here.join("asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn it_is_told_once_whose_it_is() {
    // S0.41, C15
    let Some(set) = Set::up() else { return };
    let left = set.script(
        r#"gives "$VALUE"
        one before
        echo "wrong=$(configure wrong)"; echo "short=$(configure "${CONFIG_SECRET%?}")"; echo "long=$(configure "${CONFIG_SECRET}x")"
        echo "none=$(gate -w ' %{http_code}' -X POST http://127.0.0.1:8080/configure)"
        echo "basic=$(gate -w ' %{http_code}' -u "a:$CONFIG_SECRET" -X POST http://127.0.0.1:8080/configure)"
        echo "get=$(gate -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $CONFIG_SECRET" http://127.0.0.1:8080/configure)"
        for body in '' '{}' '{"runToken":"","platformApiUrl":"http://127.0.0.1:9100"}' '{"runToken":"a\r\nb: c","platformApiUrl":"http://127.0.0.1:9100"}' '{"runToken":"x","platformApiUrl":"http://127.0.0.1:0"}' '{"runToken":"x","platformApiUrl":"http://127.0.0.1:9100","proxyUrl":"http://127.0.0.1:1"}' '{"runToken":"x"}' '{"runToken":"x","platformApiUrl":"https://127.0.0.1:9100"}' '{"runToken":"x","platformApiUrl":"http://platform:9100"}' not-json; do
            n=$((${n:-0}+1)); echo "bad$n=$(gate -w ' %{http_code}' -H "Authorization: Bearer $CONFIG_SECRET" --data "$body" http://127.0.0.1:8080/configure)"
        done
        echo "forward=$(gate -x http://127.0.0.1:8081 -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $CONFIG_SECRET" --data x http://sidecar:8080/configure)"
        one still
        echo "right=$(configure "$CONFIG_SECRET")"
        one after; one again
        echo "second=$(configure "$CONFIG_SECRET")"; echo "other=$(configure wrong)""#,
    );
    for key in ["before", "still"] {
        assert!(
            left.said(key).ends_with("502") && left.said(key).contains("Credential fetch failed"),
            "{}",
            left.ended
        );
    }
    for key in ["wrong", "short", "long", "none", "basic"] {
        assert!(
            left.said(key).ends_with(" 403") && left.said(key).contains("Unauthorized"),
            "{key}: {}",
            left.ended
        );
    }
    assert_ne!(left.said("get"), "200", "{}", left.ended);
    for n in 1..=10 {
        assert!(left.said(&format!("bad{n}")).ends_with(" 400"), "{n}: {}", left.ended);
    }
    assert_eq!(left.said("forward"), "403", "{}", left.ended);
    assert!(left.said("right").ends_with(" 200"), "{}", left.ended);
    for key in ["after", "again"] {
        assert!(left.said(key).ends_with(" 200"), "{key}: {}", left.ended);
    }
    for key in ["second", "other"] {
        assert!(
            left.said(key).ends_with(" 403") && left.said(key).contains("Already configured"),
            "{}",
            left.ended
        );
    }
    // S0.23, S0.47: asked at the first need, and at each (C16), for it does not announce changes.
    let asked = format!("GET /internal/credentials/one Bearer {}", set.token.text());
    assert_eq!(set.asked(), [asked.clone(), asked]);
    let sent = format!("Bearer {}", set.value.text());
    let requests = set.site.requests();
    assert!(
        requests.len() == 2 && requests.iter().all(|r| r.header("authorization") == Some(&sent)),
        "{requests:?}"
    );
}

#[test]
fn the_environment_may_tell_it_as_well() {
    // S0.23: `RUN_TOKEN` and `PLATFORM_API_URL`; a platform is not asked for anything undeclared.
    let Some(set) = Set::up() else { return };
    let with_its_line = format!("{}\n", set.token.text());
    let beside = set.site.beside(POLICY).with("RUN_TOKEN", &with_its_line).with("TOKEN", set.token.text());
    let beside = beside.with("PLATFORM_API_URL", "http://127.0.0.1:9100").with("VALUE", set.value.text());
    // It has its run: nobody names it another.
    let beside = beside.with("CONFIG_SECRET", "x");
    let left = beside.with("HERE", &set.here.to_string_lossy()).script(&format!(
        r#"{TOOLS} gives "$VALUE"; one first; printf '404 none' > "$HERE/answer"; one none
        echo "other=$(proxy https://protocols.example/x stranger -o /dev/null -w '%{{http_code}}')"
        echo "configure=$(configure x)"; kill $platform"#
    ));
    assert!(left.said("first").ends_with(" 200"), "{}", left.ended);
    assert_eq!(left.said("other"), "403", "{}", left.ended);
    assert!(left.said("configure").contains("Already configured"), "{}", left.ended);
    // No vault is used here, so the message proposes none.
    assert!(left.said("none").contains("the platform that this sidecar asks"), "{}", left.ended);
    assert!(!left.said("none").contains("lockgate creds"), "{}", left.ended);
    let asked = format!("GET /internal/credentials/one Bearer {}", set.token.text());
    assert_eq!(set.asked(), [asked.clone(), asked]);
    set.token.is_not_in("a visit", format!("{:?}", set.site.visits()));
}

#[test]
fn a_platform_that_does_not_help_is_a_502() {
    // `Credential fetch failed: …`; C06, C13: and the platform's text is not repeated.
    let Some(set) = Set::up() else { return };
    let mut script = "configure \"$CONFIG_SECRET\" >/dev/null\n".to_owned();
    let v = "$VALUE";
    let answers = [
        format!("404 none {v}"),
        format!("403 no {v}"),
        format!("500 broken {v}"),
        format!("200 not json {v}"),
        format!("200 {{\\\"fields\\\":{{\\\"access_token\\\":\\\"{v}\\\\nX: y\\\"}}}}"),
        format!("200 {{\\\"fields\\\":{{\\\"access_token\\\":\\\"{v}\\\\u0000\\\"}}}}"),
        "200 {\\\"fields\\\":{\\\"access_token\\\":\\\"\\\"}}".to_owned(),
        format!("200 {{\\\"fields\\\":{{\\\"bad name\\\":\\\"{v}\\\"}}}}"),
        format!("200 {{\\\"access_token\\\":\\\"{v}\\\"}}"),
        "200 hang".to_owned(),
    ];
    for (n, answer) in answers.iter().enumerate() {
        // No failure is cached.
        script += &format!("printf '%s' \"{answer}\" > \"$HERE/answer\"; one bad{n}\n");
    }
    script += "kill $platform; wait $platform; one gone; /usr/bin/python3 \"$HERE/platform.py\" \"$HERE\" & platform=$!\n\
               await '[ -e \"$HERE/ready\" ]'; gives \"$VALUE\"; one back";
    let left = set.script(&script);
    for (n, answer) in answers.iter().enumerate() {
        let said = left.said(&format!("bad{n}"));
        let fits = said.ends_with("502") && said.contains("Credential fetch failed");
        assert!(fits, "{answer}: {said}");
    }
    assert!(left.said("gone").contains("Credential fetch failed"), "{}", left.ended);
    assert!(left.said("back").ends_with(" 200") && set.site.requests().len() == 1, "{}", left.ended);
    // A credential without the named field exists, and is of no use.
    let left = set.script(
        "configure \"$CONFIG_SECRET\" >/dev/null; printf '200 {\"fields\":{\"other\":\"%s\"}}' \"$VALUE\" > \"$HERE/answer\"; one other",
    );
    assert!(
        left.said("other").ends_with(" 400") && left.said("other").contains("has no field `access_token`"),
        "{}",
        left.ended
    );
    assert_eq!(set.site.requests().len(), 1, "{:?}", set.site.requests());
}

/// Waits for the report that follows the answer.
const TOLD: &str = r#"await 'grep -q POST "$HERE/asked"'"#;
/// Sets the key that the world's model API accepts.
const ACCEPTS: &str = r#"accepts() { printf '{"api.openai.com":"%s"}' "$1" > "$KEYS.new"; mv "$KEYS.new" "$KEYS"; }
configure "$CONFIG_SECRET" >/dev/null
"#;

#[test]
fn a_401_asks_anew_and_tries_once_more() {
    // "An upstream 401 refreshes the credential and retries once." C16
    let Some(set) = Set::up() else { return };
    let left = set.script(&format!(
        r#"{ACCEPTS} gives first; accepts first; model good
        then_gives "$VALUE"; accepts "$VALUE"; model renewed; model kept
        model body -X GET -H 'X-Substitute-Body: true' -H 'Content-Type: application/json' --data '{{"a":"b"}}'"#
    ));
    for key in ["good", "renewed", "kept", "body"] {
        assert!(left.said(key).ends_with(" 200"), "{key}: {}", left.ended);
    }
    let keys: Vec<String> = set
        .site
        .requests()
        .iter()
        .map(|r| r.header("authorization").unwrap_or_default().to_owned())
        .collect();
    let new = format!("Bearer {}", set.value.text());
    assert_eq!(keys, ["Bearer first", "Bearer first", &new, &new, &new]);
    // Four requests, and one more to learn of the new credential, which is then used.
    assert_eq!(set.asked().iter().filter(|line| line.starts_with("GET")).count(), 5, "{:?}", set.asked());
}

#[test]
fn a_401_to_a_small_body_is_tried_once_more_with_it() {
    // "An upstream 401 refreshes the credential and retries once." C16
    let Some(set) = Set::up() else { return };
    let left = set.script(&format!(
        r#"{ACCEPTS} accepts "$VALUE"; head -c 65536 /dev/zero | tr '\0' x > most
        post() {{ key=$1; shift; gives first; then_gives "$VALUE"; model $key -X POST -H 'Content-Type: text/plain' "$@"; }}
        post sized --data-binary '{{"a":"b"}}'
        post chunked -H 'Transfer-Encoding: chunked' --data-binary @most
        post empty -H 'Content-Length: 0'
        gives first; then_gives "$VALUE"; code stream via --http2 -X POST --data-binary @most https://api.openai.com/v1/models"#
    ));
    let requests = set.site.requests();
    let [sized, sized_again, chunked, chunked_again, empty, empty_again, stream, stream_again] =
        requests.as_slice()
    else {
        panic!("{requests:?} {}", left.ended)
    };
    let new = format!("Bearer {}", set.value.text());
    for (first, again) in
        [(sized, sized_again), (chunked, chunked_again), (empty, empty_again), (stream, stream_again)]
    {
        assert_eq!(first.header("authorization"), Some("Bearer first"));
        assert_eq!(again.header("authorization"), Some(new.as_str()));
        assert_eq!(first.text("body"), again.text("body"));
        assert_eq!(first.text("method"), again.text("method"));
    }
    assert_eq!(sized_again.text("body"), r#"{"a":"b"}"#);
    for key in ["sized", "chunked", "empty", "stream"] {
        assert!(!left.said(key).ends_with(" 401"), "{key}: {}", left.ended);
    }
    // Each was requested twice, and none was reported as refused.
    assert_eq!(set.asked().len(), 8, "{:?}", set.asked());
}

#[test]
fn a_credential_in_a_body_is_not_sent_beside_another() {
    let Some(set) = Set::up() else { return };
    let left = set.script(&format!(
        r#"{ACCEPTS} accepts "$VALUE"; gives first; then_gives "$VALUE"
        model filled -X POST -H 'X-Substitute-Body: true' -H 'Content-Type: text/plain' --data '<{{{{access_token}}}}>'"#
    ));
    assert!(left.said("filled").ends_with(" 401"), "{}", left.ended);
    let requests = set.site.requests();
    assert!(requests.len() == 1 && requests[0].text("body") == "<first>", "{requests:?}");
}

#[test]
fn what_a_platform_takes_back_is_not_used_once_more() {
    // C16, where no upstream says so: the old key is still accepted, and the platform has another, or none.
    let Some(set) = Set::up() else { return };
    let left = set.script(
        r#"configure "$CONFIG_SECRET" >/dev/null; gives first; one first; gives "$VALUE"; one second
        printf '404 none' > "$HERE/answer"; one third"#,
    );
    assert!(left.said("first").ends_with(" 200") && left.said("second").ends_with(" 200"), "{}", left.ended);
    assert!(left.said("third").ends_with(" 502"), "{}", left.ended);
    let keys: Vec<String> =
        set.site.requests().iter().filter_map(|r| r.header("authorization").map(str::to_owned)).collect();
    assert_eq!(keys, ["Bearer first".to_owned(), format!("Bearer {}", set.value.text())]);
}

#[test]
fn a_401_to_a_body_that_has_gone_by_is_told_as_well() {
    // "An upstream 401 … then the failure is reported to the platform": such a request cannot be sent again.
    let Some(set) = Set::up() else { return };
    for size in [2, 65_537] {
        let before = set.site.requests().len();
        let left = set.script(&format!(
            "{ACCEPTS} gives \"$VALUE\"; accepts another; head -c {size} /dev/zero > body\n\
             model same -X POST -H 'Content-Type: text/plain' --data-binary @body; {TOLD}"
        ));
        assert!(left.said("same").ends_with(" 401"), "{}", left.ended);
        assert_eq!(set.site.requests().len() - before, 1, "{}", left.ended);
    }
    // The same if there is a new credential by now: it counts from the next request on.
    let left = set.script(&format!(
        "{ACCEPTS} gives first; then_gives \"$VALUE\"; accepts \"$VALUE\"; head -c 65537 /dev/zero > body\n\
         model large -X POST -H 'Content-Type: text/plain' --data-binary @body; model next"
    ));
    assert!(left.said("large").ends_with(" 401") && left.said("next").ends_with(" 200"), "{}", left.ended);
}

#[test]
fn a_401_that_stays_is_told_to_the_platform() {
    // S0.47
    // "… then the failure is reported to the platform": with the same credential, and with a new one that is refused too.
    let Some(set) = Set::up() else { return };
    let left = set.script(&format!("{ACCEPTS} gives \"$VALUE\"; accepts another; model same; {TOLD}"));
    assert!(left.said("same").ends_with(" 401"), "{}", left.ended);
    let refused = |asked: &[String]| {
        asked.iter().filter(|line| line.starts_with("POST /internal/credentials/model/")).count()
    };
    assert_eq!(refused(&set.asked()), 1, "{:?}", set.asked());
    assert!(set.site.requests().len() <= 2, "{:?}", set.site.requests());
    let left = set.script(&format!(
        "{ACCEPTS} gives before; accepts before; model good; accepts another; gives \"$VALUE\"; model changed; {TOLD}"
    ));
    assert!(left.said("good").ends_with(" 200") && left.said("changed").ends_with(" 401"), "{}", left.ended);
    assert_eq!(refused(&set.asked()), 1, "{:?}", set.asked());
}
