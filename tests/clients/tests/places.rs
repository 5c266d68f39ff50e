//! Where in a request a placeholder may stand, and the effect of one that stands elsewhere: it is replaced whole, or the request is
//! refused, or, in a body, it is forwarded as the worthless text it is. S0.49, S0.50, S0.52, S1.21; C07, C08, C09.

use lockgate_clients::{Canary, Left, Need, Site};
use lockgate_world::Record;

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("openssl"), Need::Program("python3")];
const POLICY: &str = "[[provider]]\nid = \"one\"\n\
    authorized_uris = [\"https://protocols.example/*\", \"http://protocols.example/*\"]\nenv = \"ONE_TOKEN\"\n\
    inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\n";
/// A provider that leaves the place to the agent.
const FREE: &str =
    "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/*\"]\nenv = \"ONE_TOKEN\"\n";
const AT: &str = "https://protocols.example";

fn site() -> Option<(Site, Canary)> {
    let site = Site::for_test(NEEDS)?;
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    Some((site, canary))
}

/// Returns the one request whose target contains `/at-NAME`.
fn request<'a>(requests: &'a [Record], name: &str) -> &'a Record {
    let found: Vec<&Record> =
        requests.iter().filter(|r| r.text("path").contains(&format!("/at-{name}"))).collect();
    let [one] = found.as_slice() else { panic!("not one request for {name}: {requests:#?}") };
    one
}

/// Checks that no request for `/at-NAME` arrived.
fn nothing(requests: &[Record], name: &str) {
    let found = requests.iter().find(|record| record.detail.to_string().contains(&format!("/at-{name}")));
    assert!(found.is_none(), "{name} arrived: {found:?}");
}

fn safe(canary: &Canary, left: &Left) {
    canary.is_not_in("stdout", &left.ended.stdout);
    canary.is_not_in("stderr", &left.ended.stderr);
    canary.is_not_in("the audit", format!("{:?}", left.audit()));
}

#[test]
fn it_is_redeemed_where_programs_put_their_keys() {
    // C08: over both versions
    let Some((site, canary)) = site() else { return };
    for version in ["--http1.1", "--http2"] {
        let before = site.requests().len();
        let script = format!(
            r#"v() {{ via {version} -f -o /dev/null "$@"; }}
            v -H "X-Key: $ONE_TOKEN" {AT}/at-header
            v -H "X-Key: a $ONE_TOKEN b $ONE_TOKEN" {AT}/at-twice
            v -H "Authorization: token $ONE_TOKEN" {AT}/at-scheme
            v -u "me:$ONE_TOKEN" {AT}/at-password
            v -u "$ONE_TOKEN:x-oauth-basic" {AT}/at-user
            v "{AT}/at-path/$ONE_TOKEN/end"
            v "{AT}/at-query?a=$ONE_TOKEN&b=2"
            v {AT}/at-nowhere"#
        );
        // A provider that does not name a place: the agent does.
        safe(&canary, &site.beside(FREE).script(&script));
        let requests = &site.requests()[before..];
        let text = canary.text();
        let key = |name: &str| request(requests, name).header("x-key").map(str::to_owned);
        assert_eq!(key("header").as_deref(), Some(text));
        assert_eq!(key("twice"), Some(format!("a {text} b {text}")));
        let authorization = |name: &str| request(requests, name).header("authorization").map(str::to_owned);
        assert_eq!(authorization("scheme"), Some(format!("token {text}")));
        for (name, words) in [("password", format!("me:{text}")), ("user", format!("{text}:x-oauth-basic"))] {
            let value = authorization(name).unwrap_or_default();
            assert!(value.starts_with("Basic ") && canary.found_in(&value).is_some(), "{words}: {value}");
            // The encoding of exactly these words, neither cut nor longer.
            assert_eq!(value.len(), 6 + words.len().div_ceil(3) * 4, "{value}");
        }
        assert_eq!(request(requests, "path").text("path"), format!("/at-path/{text}/end"));
        assert_eq!(request(requests, "query").text("path"), format!("/at-query?a={text}&b=2"));
        assert_eq!((authorization("header"), authorization("nowhere")), (None, None));
        assert!(!format!("{requests:?}").contains("lgph_"), "a placeholder went on: {requests:?}");
    }
}

#[test]
fn a_cookie_with_a_placeholder_is_a_place_like_any_header() {
    // C08, C18: replaced or refused, never left out in silence; other cookies are left out.
    let Some((site, canary)) = site() else { return };
    let text = canary.text();
    let own = POLICY
        .replace("header = \"authorization\", value = \"Bearer ", "header = \"cookie\", value = \"sid=");
    let sent = |policy: &str, script: &str| {
        let before = site.requests().len();
        let left = site.beside(policy).script(script);
        safe(&canary, &left);
        let cookies = |record: &Record| record.header("cookie").map(str::to_owned);
        (left, site.requests()[before..].iter().map(cookies).collect::<Vec<_>>())
    };
    for version in ["--http1.1", "--http2"] {
        let script = format!(
            r#"v() {{ key=$1; shift; code $key via {version} "$@" {AT}/at-$key; }}
            v alone -H "Cookie: sid=$ONE_TOKEN"
            v beside -H "Cookie: theme=dark; sid=$ONE_TOKEN; session=own"
            v without -H "Cookie: session=own"
            v mixed -H "Cookie: sid=OWNKEY$ONE_TOKEN""#
        );
        let (left, cookies) = sent(FREE, &script);
        assert_eq!(
            cookies,
            [Some(format!("sid={text}")), Some(format!("sid={text}")), None],
            "{}",
            left.ended
        );
        assert_eq!((left.said("mixed"), left.denials("pinned")), ("403", 1), "{}", left.ended);
        // The provider's own place, and that of one whose place is another.
        let (left, cookies) = sent(&own, &script);
        let filled = || Some(format!("sid={text}"));
        assert_eq!(cookies, [filled(), filled()], "{}", left.ended);
        assert_eq!(left.denials("pinned"), 2, "{}", left.ended);
        let (left, cookies) = sent(POLICY, &script);
        assert_eq!(cookies, [None], "{}", left.ended);
        assert_eq!(left.denials("credential_endpoint_mismatch"), 2, "{}", left.ended);
    }
    let (left, cookies) =
        sent(FREE, &format!("code gate proxy {AT}/at-gate one -H 'Cookie: sid={{{{access_token}}}}'"));
    assert_eq!(cookies, [Some(format!("sid={text}"))], "{}", left.ended);
}

#[test]
fn it_is_redeemed_in_the_form_that_the_provider_says() {
    // S0.49
    let Some((site, canary)) = site() else { return };
    for form in ["DeepL-Auth-Key M", "Token token=M", "Key id:M", "token=\"M\"", "Bearer  M"] {
        let template = form.replace('M', "{{access_token}}");
        let policy = POLICY.replace("\"Bearer {{access_token}}\"", &format!("'{template}'"));
        let before = site.requests().len();
        let value = form.replace('M', "'\"$ONE_TOKEN\"'");
        let left = site.beside(&policy).script(&format!(
            r#"code proxy via -H 'Authorization: {value}' {AT}/at-proxy
            code gate proxy {AT}/at-gate one -H 'Authorization: {template}'
            code own via -H 'Authorization: {value}, own' {AT}/at-own"#
        ));
        safe(&canary, &left);
        assert_eq!(
            [left.said("proxy"), left.said("gate"), left.said("own")],
            ["200", "200", "403"],
            "{form}"
        );
        for record in &site.requests()[before..] {
            assert_eq!(record.header("authorization"), Some(&*form.replace('M', canary.text())), "{form}");
        }
    }
}

#[test]
fn it_is_put_where_the_provider_says_once() {
    // C08: where it authenticates it is replaced; in what a service stores and shows it is refused.
    let Some((site, canary)) = site() else { return };
    // Said, and by default where a provider has an injection.
    let said = format!("{POLICY}placeholders = \"in-place\"\n");
    for (version, policy) in [("--http1.1", said.as_str()), ("--http2", &said), ("--http2", POLICY)] {
        let before = site.requests().len();
        let left = site.beside(policy).script(&format!(
            r#"v() {{ key=$1; shift; code $key via {version} "$@"; }}
            v nowhere {AT}/at-nowhere
            v scheme -H "Authorization: token $ONE_TOKEN" {AT}/at-scheme
            v password -u "me:$ONE_TOKEN" {AT}/at-password
            v header -H "X-Note: $ONE_TOKEN" {AT}/at-header
            v path "{AT}/at-path/$ONE_TOKEN/end"
            v query "{AT}/at-query?a=$ONE_TOKEN&b=2"
            v part -g -H "Authorization: Bearer $ONE_TOKEN" "{AT}/at-part?key[title]=$ONE_TOKEN"
            v cut -H "Authorization: Bearer $ONE_TOKEN" "{AT}/at-cut?token%00note=$ONE_TOKEN"
            v beside -H "Authorization: Bearer $ONE_TOKEN" -H "User-Agent: $ONE_TOKEN" {AT}/at-beside"#
        ));
        safe(&canary, &left);
        let requests = &site.requests()[before..];
        let authorization = |name: &str| request(requests, name).header("authorization").map(str::to_owned);
        assert_eq!(authorization("nowhere"), Some(format!("Bearer {}", canary.text())));
        assert_eq!(authorization("scheme"), Some(format!("token {}", canary.text())));
        assert!(canary.found_in(authorization("password").unwrap_or_default()).is_some());
        for key in ["header", "path", "query", "part", "cut", "beside"] {
            assert_eq!(left.said(key), "403", "{key}: {}", left.ended);
        }
        assert_eq!(requests.len(), 3, "{requests:?}");
        assert_eq!(left.denials("credential_endpoint_mismatch"), 6, "{:?}", left.audit());
    }
}

#[test]
fn elsewhere_in_a_head_it_refuses_the_request() {
    // C08, C09: over both versions
    let Some((site, canary)) = site() else { return };
    for version in ["--http1.1", "--http2"] {
        let left = site.beside(POLICY).script(&format!(
            r#"v() {{ key=$1; shift; code $key via {version} "$@"; }}
            stranger=lgph_000000000000000000000000000000000000
            v name -H "$ONE_TOKEN: x" {AT}/at-name
            v method -X "$ONE_TOKEN" {AT}/at-method
            v host -H "Host: $ONE_TOKEN" {AT}/at-host
            v stranger -H "X-Key: $stranger" {AT}/at-stranger
            v both -H "X-Key: $ONE_TOKEN" -H "X-Other: $stranger" {AT}/at-both
            v basic -u "me:$stranger" {AT}/at-basic
            v path "{AT}/at-path/$stranger"
            v query "{AT}/at-query?x=$stranger"
            v own -H "Authorization: Bearer mine" {AT}/at-own"#
        ));
        safe(&canary, &left);
        for key in ["name", "method", "host", "stranger", "both", "basic", "path", "query", "own"] {
            assert!(["400", "403"].contains(&left.said(key)), "{key}: {}", left.ended);
            nothing(&site.requests(), key);
        }
        assert_eq!(left.said("stranger"), "400", "{}", left.ended);
        assert!(site.world().received_by("web") == 0, "{:?}", site.visits());
    }
}

#[test]
fn written_in_another_way_it_is_whole_or_nothing() {
    // C08: percent-encoded in a path and a query; as another text of base64.
    let Some((site, canary)) = site() else { return };
    let left = site.beside(FREE).script(&format!(
        r#"digits=${{ONE_TOKEN#lgph_}}
        code path via "{AT}/at-path/lgph%5F$digits"
        code letter via "{AT}/at-letter/%6Cgph_$digits"
        code query via "{AT}/at-query?x=lgph%5F$digits"
        code every via "{AT}/at-every/$(printf %s "$ONE_TOKEN" | od -An -tx1 -v | tr -d '\n' | tr ' ' '%')"
        code unpadded via -H "Authorization: Basic $(printf 'me:%s' "$ONE_TOKEN" | base64 -w0 | tr -d =)" "{AT}/at-unpadded"
        code broken via -H "Authorization: Basic $(printf 'me:%s' "$ONE_TOKEN" | base64 -w0)!" "{AT}/at-broken""#
    ));
    safe(&canary, &left);
    for key in ["path", "letter", "query", "every", "unpadded", "broken"] {
        let arrived = site.requests().into_iter().find(|r| r.text("path").contains(&format!("/at-{key}")));
        match arrived {
            None => assert!(["400", "403"].contains(&left.said(key)), "{key}: {}", left.ended),
            Some(record) => {
                let whole = format!("{} {:?}", record.text("path"), record.header("authorization"));
                let parts = [canary.text(), &canary.text()[..12], &canary.text()[28..]];
                let redeemed = parts.iter().all(|part| whole.contains(part));
                let half = whole.contains("lgph_") && canary.found_in(record.text("path")).is_some();
                assert!(redeemed && !half, "{key} is half replaced: {record:?}");
            }
        }
    }
}

/// Sends octets over TLS by OpenSSL, in segments a moment apart.
const SEGMENTS: &str = r#"import os, socket, ssl, sys, time
raw = socket.create_connection(("127.0.0.1", 8081))
raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
raw.sendall(b"CONNECT protocols.example:443 HTTP/1.1\r\nHost: protocols.example:443\r\n\r\n")
assert b" 200 " in raw.recv(4096)
link = ssl.create_default_context(cafile=os.environ["OUT"] + "/ca.pem").wrap_socket(raw, server_hostname="protocols.example")
head = sys.argv[1].encode().decode("unicode_escape").encode("latin-1")
size = int(sys.argv[2])
for at in range(0, len(head), size):
    link.sendall(head[at:at + size])
    time.sleep(0.002)
link.settimeout(5)
answer = b""
try:
    while piece := link.recv(4096):
        answer += piece
except OSError:
    pass
print(sys.argv[3] + "=" + (answer[9:12].decode() or "none"))
"#;

#[test]
fn split_over_segments_and_in_trailers() {
    // C08
    let Some((site, canary)) = site() else { return };
    let script = site.file("segments.py", SEGMENTS);
    let left = site.beside(POLICY).script(&format!(
        r#"say() {{ /usr/bin/python3 {} "$1" $2 $3; }}
        say "GET /at-segments HTTP/1.1\r\nHost: protocols.example\r\nAuthorization: token $ONE_TOKEN\r\nConnection: close\r\n\r\n" 7 segments
        say "POST /at-trailer HTTP/1.1\r\nHost: protocols.example\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\na\r\n0\r\nX-Key: $ONE_TOKEN\r\n\r\n" 4096 trailer
        say "POST /at-chunks HTTP/1.1\r\nHost: protocols.example\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nlgph_\r\n24\r\n${{ONE_TOKEN#lgph_}}\r\n0\r\n\r\n" 4096 chunks"#,
        script.display()
    ));
    safe(&canary, &left);
    let requests = site.requests();
    assert_eq!(left.said("segments"), "200", "{}", left.ended);
    assert_eq!(
        request(&requests, "segments").header("authorization"),
        Some(format!("token {}", canary.text()).as_str())
    );
    // Neither a credential nor its placeholder is ever forwarded in a trailer.
    assert_ne!(left.said("trailer"), "200", "{}", left.ended);
    let trailers = requests.iter().filter(|record| record.detail["trailers"].to_string().contains("x-key"));
    assert_eq!(trailers.count(), 0, "{requests:?}");
    // In a body it is text, forwarded unchanged.
    assert_eq!(left.said("chunks"), "200", "{}", left.ended);
    let body = request(&requests, "chunks").text("body");
    assert!(body.starts_with("lgph_") && body.len() == 41, "{body}");
}

#[test]
fn a_trailer_of_http_2_carries_none() {
    // C08: a trailer is no place for a key, neither a placeholder nor one of the agent's own.
    let Some((site, canary)) = site() else { return };
    let Some(client) = site.h2_client() else { return };
    let run = site.run().policy(POLICY).bare();
    for (name, value) in [("x-key", "$ONE_TOKEN"), ("authorization", "Bearer the-agents-own")] {
        let request = format!(
            r#"{{\"host\":\"protocols.example\",\"method\":\"POST\",\"path\":\"/echo\",\"data\":[\"a\"],\"trailers\":{{\"{name}\":\"{value}\"}}}}"#
        );
        let client = client.display();
        let ended = run.script(&format!(
            "WORLD_CA=/.lockgate-etc/authority.pem {client} protocols.example:443 \"{request}\" && exit 9; true"
        ));
        assert_eq!(ended.code, 0, "it was answered: {ended}");
        canary.is_not_in("the answer", format!("{ended}"));
        let audit = site.lockgate(&["audit", "show", "latest", "--json"]);
        let refused = "\"outcome\":\"failed\",\"guard\":\"http_framing\",\"reason\":\"a placeholder, a key or a cookie stands in a trailer;";
        assert_eq!(audit.stdout.matches(refused).count(), 1, "{name}: {audit}");
        let with = site.requests().into_iter().find(|r| r.detail["trailers"].to_string().contains(name));
        assert!(with.is_none(), "a key went on in a trailer: {with:?}");
    }
}

#[test]
fn a_trailer_of_http_2_is_one_that_the_provider_takes() {
    let Some((site, _)) = site() else { return };
    let Some(client) = site.h2_client() else { return };
    let run = site.run().policy(&format!("{POLICY}headers = [\"x-may\"]\n")).bare();
    let ended = run.script(&format!(
        r#"WORLD_CA=/.lockgate-etc/authority.pem {} protocols.example:443 '{{"host":"protocols.example","method":"POST","path":"/at-trailers","data":["a"],"trailers":{{"x-may":"1","x-other":"2"}}}}'"#,
        client.display()
    ));
    let requests = site.requests();
    let trailers = request(&requests, "trailers").detail["trailers"].to_string();
    assert!(trailers.contains("x-may") && !trailers.contains("x-other"), "{trailers} {ended}");
}

#[test]
fn an_own_key_is_seen_in_what_servers_read_as_its_place() {
    // C09
    let Some((site, canary)) = site() else { return };
    let socket = "--http1.1 -m 3 -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
                  -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='";
    let left = site.beside(POLICY).script(&format!(
        r#"code list via '{AT}/at-list?token%5B%5D=own'
        code brackets via -g '{AT}/at-brackets?token[]=own'
        code cut via '{AT}/at-cut?token%00=own'
        code dot via '{AT}/at-dot?access.token=own'
        code open via -g '{AT}/at-open?access[token=own'
        code forwarded via -H 'X-Forwarded-Authorization: Bearer own' {AT}/at-forwarded
        code under via -H 'X_Original_Authorization: own' {AT}/at-under
        code protocol via {socket} -H 'Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-own' {AT}/ws/at-protocol
        code ours via {socket} -H "Sec-WebSocket-Protocol: openai-insecure-api-key.$ONE_TOKEN" {AT}/ws/at-ours
        code beside via {socket} -H "Sec-WebSocket-Protocol: api-key.$ONE_TOKEN, chat.$ONE_TOKEN" {AT}/ws/at-beside
        code plain via -H "Sec-WebSocket-Protocol: api-key.$ONE_TOKEN" -H 'X-Own: own' \
            -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' {AT}/at-plain
        code behind via {socket} -H "Sec-WebSocket-Protocol: token.sk-own.token.$ONE_TOKEN" {AT}/ws/at-behind
        code page via '{AT}/at-page?page%5Bsize%5D=2'"#
    ));
    for own in ["list", "brackets", "cut", "dot", "open", "forwarded", "under", "protocol", "behind"] {
        assert_eq!(left.said(own), "403", "{own}: {}", left.ended);
        nothing(&site.requests(), own);
    }
    assert_eq!(left.denials("pinned"), 9, "{:?}", left.audit());
    // Where no WebSocket is asked for no server looks among sub-protocols, and the credential bound there would be left out.
    assert_eq!(left.said("plain"), "403", "{}", left.ended);
    nothing(&site.requests(), "plain");
    // A placeholder is no key of the agent's own, and is replaced where the key is alone.
    assert_eq!((left.said("beside"), left.said("page")), ("403", "200"), "{}", left.ended);
    nothing(&site.requests(), "beside");
    let requests = site.requests();
    let ours = request(&requests, "ours");
    let protocol = format!("openai-insecure-api-key.{}", canary.text());
    assert_eq!(ours.header("sec-websocket-protocol"), Some(&*protocol), "{ours:?}");
    assert_eq!(ours.header("authorization"), None, "{ours:?}");
    safe(&canary, &left);
}

#[test]
fn what_brings_no_key_gives_way_to_the_one_that_is_put_in() {
    // C09: a program whose variable is not set
    let Some((site, canary)) = site() else { return };
    for version in ["--http1.1", "--http2"] {
        let before = site.requests().len();
        let left = site.beside(POLICY).script(&format!(
            r#"v() {{ key=$1; shift; code $key via {version} "$@" {AT}/at-$key; }}
            v empty -H 'Authorization;'
            v bearer -H 'Authorization: Bearer '
            v other -H 'X-Api-Key;' -H 'Authorization: Basic'
            v own -H 'Authorization: Bearer' -H 'X-Api-Key: own'
            code gated proxy {AT}/at-gated one -H 'Authorization: Bearer '"#
        ));
        assert_eq!(left.said("own"), "403", "{}", left.ended);
        let requests = &site.requests()[before..];
        nothing(requests, "own");
        for key in ["empty", "bearer", "other", "gated"] {
            assert_eq!(left.said(key), "200", "{key}: {}", left.ended);
            let sent = request(requests, key);
            let ours = format!("Bearer {}", canary.text());
            assert_eq!(
                (sent.header("authorization"), sent.header("x-api-key")),
                (Some(&*ours), None),
                "{sent:?}"
            );
        }
        safe(&canary, &left);
    }
    let query =
        POLICY.replace("header = \"authorization\", value = \"Bearer ", "query = \"key\", value = \"");
    let left = site.beside(&query).script(&format!(
        "code query via '{AT}/at-query?key=&a=1&key'; code alone proxy '{AT}/at-alone?key=' one"
    ));
    assert_eq!((left.said("query"), left.said("alone")), ("200", "200"), "{}", left.ended);
    let requests = site.requests();
    for (key, before) in [("query", "a=1&"), ("alone", "")] {
        let asked = format!("/at-{key}?{before}key={}", canary.text());
        assert_eq!(request(&requests, key).text("path"), asked);
    }
    safe(&canary, &left);
}
