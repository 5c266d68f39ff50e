//! A hostile client inside sends a hundred thousand requests, mutated from valid ones, to every plane of the sidecar, and reads every
//! answer. The credentials reach their services tens of thousands of times, and are in no answer and in nothing that is left. S0.7, S0.31,
//! S0.35, S0.52, S1.2; C10, C13, C14.
//!
//! Each run has a new seed; `LOCKGATE_TEST_SEED` repeats the requests of another.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockgate_clients::{Canary, Site, files_below, run_to_end};
use lockgate_needs::masked;
use lockgate_world::Record;
use serde_json::{Value, json};

const REQUESTS: u64 = 100_000;
const LIMIT: Duration = Duration::from_secs(160);
/// A provider with an injection, one that leaves the place to the agent, and a model.
/// Addresses are pinned because a hundred thousand lookups prove nothing here and take time.
const POLICY: &str = r#"
providers = ["anthropic"]
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*", "http://protocols.example/*"]
addresses = ["93.184.216.34"]
env = "ONE_TOKEN"
inject = { header = "authorization", value = "Bearer {{access_token}}" }
placeholders = "anywhere"
[[provider]]
id = "free"
authorized_uris = ["https://api.example.com/*", "http://api.example.com/*"]
addresses = ["93.184.216.34"]
env = "FREE_TOKEN"
placeholders = "anywhere"
"#;

#[derive(Clone, Copy, PartialEq)]
enum Plane {
    Gateway,
    Socket,
    Lines,
    Models,
    Forward,
    Tunnel,
    Redirected,
    /// A redirected connection to the service whose provider allows placeholders anywhere.
    Free,
    /// A redirected connection whose TLS is opened, with HTTP/1 in it; and one with HTTP/2, whose field blocks are as odd as the requests.
    Opened,
    Http2,
}

const PLANES: [Plane; 10] = [
    Plane::Gateway,
    Plane::Socket,
    Plane::Lines,
    Plane::Models,
    Plane::Forward,
    Plane::Tunnel,
    Plane::Redirected,
    Plane::Free,
    Plane::Opened,
    Plane::Http2,
];

impl Plane {
    /// The client's description of the plane.
    fn told(self) -> Value {
        let (name, at, opening) = match self {
            Self::Gateway => ("gateway", "sidecar:8080", ""),
            Self::Socket => ("socket", "unix:/run/lockgate.sock", ""),
            Self::Lines => ("lines", "unix:/run/lockgate.sock", ""),
            Self::Models => ("models", "sidecar:8080", ""),
            Self::Forward => ("forward", "sidecar:8081", ""),
            Self::Tunnel => (
                "tunnel",
                "sidecar:8081",
                "CONNECT protocols.example:80 HTTP/1.1\r\nHost: protocols.example:80\r\n\r\n",
            ),
            Self::Redirected => ("redirected", "protocols.example:80", ""),
            Self::Free => ("redirected-free", "api.example.com:80", ""),
            Self::Opened => ("opened", "127.0.0.1:9101", ""),
            Self::Http2 => ("http2", "127.0.0.1:9102", ""),
        };
        json!({ "name": name, "at": at, "opening": opening, "lines": self == Self::Lines })
    }
}

/// Placeholders for the client to replace: the variable's name, padded to the value's length.
const ONE: &str = "ONE_TOKEN................................";
const FREE: &str = "FREE_TOKEN...............................";
/// The forms of `/echo-auth`; those that cost the upstream much are rarer.
const FORMS: &str = "plain base64 hex percent json trailer header www-authenticate set-cookie location early-hints \
    plain base64 hex percent json trailer header www-authenticate set-cookie location early-hints \
    plain base64 hex percent json trailer header www-authenticate set-cookie location gzip deflate br chunks1";
const PATHS: &str = "/echo /echo /mirror /redirect?to=/echo /status?code=304 /early-hints /continue /big?bytes=60000 \
    /events?n=3&ms=0 /";
const METHODS: &str =
    "GET GET POST POST HEAD PUT DELETE OPTIONS PATCH TRACE CONNECT PROPFIND get GET{{access_token}}";
/// Fields that leave a request's framing unchanged.
const FIELDS: &str = "Accept-Encoding: gzip, br|Accept-Encoding: identity;q=0, zstd, *;q=0.1|Range: bytes=0-3|\
    Range: bytes=-9|If-Range: \"x\"|Expect: 100-continue|Expect: {{access_token}}|TE: trailers, deflate|\
    Trailer: X-Authorization|Connection: close|Connection: authorization, x-key|Upgrade: h2c|\
    X-Max-Response-Size: 1|X-Max-Response-Size: 20|X-Max-Response-Size: -1|X-Substitute-Body: true|\
    X-Proxy: http://192.0.2.1:3128|X-Provider: one|X-Provider: free|X-Provider: stranger|\
    X-Target: http://protocols.example/echo-auth?as=hex|X-Target: http://api.example.com/{{access_token}}|\
    Authorization: Bearer ONE_TOKEN................................|Authorization: Basic T05FX1RPS0VOOg==|\
    Authorization: {{access_token}}|X-Api-Key: FREE_TOKEN...............................|X-Api-Key: mine|\
    Proxy-Authorization: Bearer {{access_token}}|Cookie: a={{access_token}}|Content-Type: application/json|\
    Content-Type: application/x-www-form-urlencoded|Content-Type: multipart/form-data; boundary={{access_token}}|\
    Content-Encoding: gzip|Host: api.example.com|Referer: http://protocols.example/{{access_token}}|\
    User-Agent: FREE_TOKEN...............................|{{access_token}}: a name|\
    X-Forwarded-Host: www.example.org|Accept: text/event-stream";
/// Inserted into targets, values and bodies; none contains a line end.
const SNIPPETS: &str = "{{access_token}}|{{access_token}}|{{access_token}}{{access_token}}|{{nope}}|{{|}}|\
    {{{{access_token}}}}|{{access_token|{{ access_token }}|{{refresh_token}}|%7B%7Baccess_token%7D%7D|\
    ONE_TOKEN................................|FREE_TOKEN...............................|\
    ONE_TOKEN................................|FREE_TOKEN...............................|\
    lgph_000000000000000000000000000000000000|../|%2e%2e/|?|#|&as=hex|&as=gzip&status=500|&status=304|&ms=0&|\\|\
    \u{e9}\u{ff}|\t| |@|:0443|%00|%|\"|<b>|Bearer |http://api.example.com/";
/// Inserted anywhere, framing included.
const OCTETS: &str = "\r\n|\n|\r|\0|\r\n\r\n|:| |\u{ff}| HTTP/1.0\r\n|Content-Length: 5\r\n|Content-Length: 5, 5\r\n|\
    Transfer-Encoding: chunked\r\n|Transfer-Encoding: gzip, chunked\r\n|0\r\n\r\n|5;x=y\r\n|ffffffffffffffff\r\n|\
    {{access_token}}|ONE_TOKEN................................|\r\n X-Folded: {{access_token}}";

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % end.max(1)
    }

    fn one_of<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Returns a random item of a separated list.
    fn of(&mut self, list: &'static str, between: char) -> &'static str {
        let list: Vec<&str> = list.split(between).collect();
        self.one_of(&list)
    }

    fn insert(&mut self, into: &mut String, piece: &str) {
        let ends: Vec<usize> = into.char_indices().map(|(at, _)| at).chain([into.len()]).collect();
        into.insert_str(self.one_of(&ends), piece);
    }
}

/// A request before it is encoded; each character is one octet.
#[derive(Clone)]
struct Draft {
    method: String,
    target: String,
    fields: Vec<(String, String)>,
    body: String,
    chunked: bool,
    /// The request has at most one answer, and the connection can be kept.
    tame: bool,
}

impl Draft {
    fn new(method: &str, target: String, fields: &[(&str, &str)]) -> Self {
        let fields = fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Self { method: method.into(), target, fields, body: String::new(), chunked: false, tame: true }
    }

    /// Returns a valid request.
    fn valid(plane: Plane, random: &mut Random) -> Self {
        let method = random.one_of(&["GET", "GET", "POST"]);
        let one = match plane {
            Plane::Tunnel | Plane::Redirected | Plane::Opened | Plane::Http2 => true,
            Plane::Free => false,
            _ => random.below(3) > 0,
        };
        let scheme = random.one_of(&["http", "http", "http", "https"]);
        let host = if one { "protocols.example" } else { "api.example.com" };
        let mut path = random.of(PATHS, ' ').to_owned();
        if one && random.below(10) > 0 {
            path = format!("/echo-auth?as={}", random.of(FORMS, ' '));
            if random.below(3) == 0 {
                let status = random.one_of(&[201, 204, 304, 401, 403, 404, 429, 503]);
                write!(path, "&status={status}").expect("a string");
            }
        }
        let template = random.one_of(&["/{{access_token}}", "/echo?key={{access_token}}"]);
        let own = random.one_of(&[format!("/{FREE}"), format!("/echo?key={FREE}"), "/echo".to_owned()]);
        let mut draft = match plane {
            Plane::Gateway | Plane::Socket if random.below(12) == 0 => {
                let (method, path) = random.one_of(&[
                    ("GET", "/health"),
                    ("GET", "/run-history?limit=2"),
                    ("POST", "/configure"),
                    ("GET", "/nowhere"),
                ]);
                Self::new(method, path.into(), &[("Host", "sidecar:8080")])
            }
            Plane::Gateway | Plane::Socket | Plane::Lines => {
                if !one && random.below(2) == 0 {
                    template.clone_into(&mut path);
                }
                let mut draft = Self::new(method, "/proxy".into(), &[("Host", "sidecar:8080")]);
                draft.fields.push(("X-Provider".into(), if one { "one" } else { "free" }.into()));
                draft.fields.push(("X-Target".into(), format!("{scheme}://{host}{path}")));
                if !one {
                    draft.fields.push(("X-Key".into(), "<{{access_token}}>".into()));
                }
                draft
            }
            Plane::Models => {
                let path =
                    random.one_of(&["/llm/v1/messages", "/llm/v1/messages/count_tokens", "/llm/v1/models"]);
                let mut draft =
                    Self::new("POST", path.into(), &[("Host", "sidecar:8080"), ("X-Api-Key", "mine")]);
                draft.fields.push(("Content-Type".into(), "application/json".into()));
                let asked = json!({"model": "anthropic/claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
                draft.body = asked.to_string();
                return draft;
            }
            Plane::Forward => {
                let path = if one { path } else { own };
                Self::new(method, format!("http://{host}{path}"), &[("Host", host)])
            }
            Plane::Tunnel | Plane::Redirected | Plane::Opened | Plane::Http2 => {
                Self::new(method, path, &[("Host", host)])
            }
            Plane::Free => Self::new(method, own, &[("Host", host)]),
        };
        if !draft.target.starts_with("/proxy") && random.below(3) == 0 {
            let named = [
                ("Authorization", "Bearer "),
                ("Authorization", "token "),
                ("X-Api-Key", ""),
                ("X-Any", "<"),
            ];
            let (name, value) = random.one_of(&named);
            draft.fields.push((name.into(), format!("{value}{}", if one { ONE } else { FREE })));
        }
        if method == "POST" {
            draft.body = random
                .one_of(&["", "words", "a={{access_token}}&b=c", "{\"a\":\"{{access_token}}\"}"])
                .into();
            draft.fields.push(("X-Substitute-Body".into(), "true".into()));
        }
        if random.below(200) == 0 && plane != Plane::Lines {
            let target = draft.fields.iter_mut().find(|(name, _)| name == "X-Target");
            *target.map_or(&mut draft.target, |(_, value)| value) =
                "http://protocols.example/ws/echo-auth".into();
            for (name, value) in
                [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]
            {
                draft.fields.push((name.into(), value.into()));
            }
            draft.fields.push(("Sec-WebSocket-Key".into(), "dGhlIHNhbXBsZSBub25jZQ==".into()));
            draft.tame = false;
        }
        draft
    }

    /// Changes it so that it remains one request.
    fn change(&mut self, random: &mut Random) {
        let (at, snippet) = (random.below(self.fields.len()), random.of(SNIPPETS, '|'));
        match random.below(11) {
            0 => self.method = random.of(METHODS, ' ').into(),
            1..=3 => {
                let field = random.of(FIELDS, '|');
                let (name, value) = field.split_once(": ").expect("a field");
                self.fields.push((name.into(), value.into()));
            }
            4 => self.fields.truncate(at.max(1)),
            5 => self.fields.extend(self.fields.get(at).cloned()),
            6 => self.fields.get_mut(at).into_iter().for_each(|(_, value)| *value = snippet.into()),
            7 => self.fields.get_mut(at).into_iter().for_each(|(_, value)| random.insert(value, snippet)),
            8 => self.chunked = !self.chunked,
            9 => random.insert(&mut self.target, snippet),
            _ => random.insert(&mut self.body, snippet),
        }
    }

    fn octets(&self, plane: Plane) -> String {
        if plane == Plane::Lines { self.line() } else { self.request() }
    }

    fn request(&self) -> String {
        let Self { method, target, body, .. } = self;
        let fields: String = self.fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("{method} {target} HTTP/1.1\r\n{fields}");
        if !self.chunked {
            return format!("{head}Content-Length: {}\r\n\r\n{body}", body.chars().count());
        }
        let pieces: Vec<char> = body.chars().collect();
        let chunk = |piece: &[char]| format!("{:x}\r\n{}\r\n", piece.len(), piece.iter().collect::<String>());
        let chunks: String = pieces.chunks(40).map(chunk).collect();
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
    }

    /// Returns the JSON form of a request to `/proxy`.
    fn line(&self) -> String {
        let mut wish = json!({ "method": self.method, "headers": {} });
        for (name, value) in &self.fields {
            match name.as_str() {
                "X-Provider" => wish["capability"] = json!(value),
                "X-Target" => wish["url"] = json!(value),
                _ => wish["headers"][name] = json!(value),
            }
        }
        if !self.body.is_empty() {
            wish["body"] = json!(self.body);
        }
        // UTF-8, with one character per octet like all texts here.
        format!("{wish}\n").bytes().map(char::from).collect()
    }
}

/// Changes octets anywhere, and appends other requests.
fn distorted(octets: &str, plane: Plane, random: &mut Random) -> String {
    let mut octets: Vec<char> = octets.chars().collect();
    for _ in 0..random.below(3) {
        octets.extend(Draft::valid(plane, random).octets(plane).chars());
    }
    for _ in 0..random.below(3) {
        let from = random.below(octets.len());
        let to = (from + 1 + random.below(24)).min(octets.len());
        match random.below(6) {
            0 => octets[from] = char::from(octets[from] as u8 ^ 1 << random.below(8)),
            1 => drop(octets.drain(from..to)),
            2 => octets.extend_from_within(from..to),
            3 => octets.truncate(from.max(1)),
            _ => drop(octets.splice(from..from, random.of(OCTETS, '|').chars())),
        }
    }
    octets.into_iter().collect()
}

/// Returns the client's input file.
fn requests(seed: u64, count: u64) -> String {
    let mut random = Random(seed);
    let mut file = format!("{}\n", PLANES.map(Plane::told).into_iter().collect::<Value>());
    for _ in 0..count {
        let to = random.below(PLANES.len());
        let mut draft = Draft::valid(PLANES[to], &mut random);
        for _ in 0..random.below(4) {
            draft.change(&mut random);
        }
        let mut send = draft.octets(PLANES[to]);
        let wild = !draft.tame || random.below(5) == 0;
        if wild {
            send = distorted(&send, PLANES[to], &mut random);
        }
        let line = json!({ "to": to, "method": draft.method, "wild": wild, "send": send });
        writeln!(file, "{line}").expect("a string");
    }
    file
}

/// Returns the client's count on a plane, over all keys with a prefix.
fn counted(told: &Value, plane: Plane, key: &str) -> u64 {
    let name = plane.told()["name"].as_str().expect("a name").to_owned();
    let counts = told["detail"][&name]["counts"].as_object().unwrap_or_else(|| panic!("no {name}: {told}"));
    counts.iter().filter(|(of, _)| of.starts_with(key)).filter_map(|(_, times)| times.as_u64()).sum()
}

/// Returns the lines of a JSON file that contain `word`, one by one: all of them would not fit in memory.
fn rows(path: &Path, word: &str) -> impl Iterator<Item = Value> {
    let lines = BufReader::new(File::open(path).expect("a file of the run's")).lines();
    let lines = lines.map(|line| line.expect("text")).filter(move |line| line.contains(word));
    lines.map(|line| serde_json::from_str(&line).expect("JSON"))
}

#[test]
fn a_hundred_thousand_requests_tell_nothing() {
    let Some(site) = Site::for_test(&[]) else { return };
    let (Some(probe), Some(relay)) = (site.probe(), site.tls_relay()) else { return };
    let mut drawn = [0; 8];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut drawn)).expect("random octets");
    let named = std::env::var("LOCKGATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = named.unwrap_or_else(|| u64::from_ne_bytes(drawn));
    println!("LOCKGATE_TEST_SEED={seed}");
    // Encodings change the first; the second may stand in a path.
    let (rough, plain) = (Canary::draw_rough(), Canary::draw());
    let canaries = [&rough, &plain];
    site.keep("one", "access_token", rough.text());
    site.keep("free", "access_token", plain.text());
    site.keep("anthropic", "access_token", plain.text());
    let work = site.workspace();
    fs::write(work.join("requests"), requests(seed, REQUESTS)).expect("room");
    fs::write(work.join("few"), requests(seed, 500)).expect("room");

    // The controls: what upstreams do send is found in answers, and a planted value is found in files.
    let said = masked("see the header\n");
    fs::write(work.join("planted"), plain.text()).expect("room");
    let holds = |path: &PathBuf| plain.found_in(fs::read(path).expect("a file")).is_some();
    assert_eq!(
        files_below(&work).iter().filter(|path| holds(path)).count(),
        1,
        "what is planted is not found"
    );
    let (probe, relay) = (probe.display(), relay.display());
    let [first, second] = canaries.map(Canary::masked);
    let script = format!(
        "set +e; WORLD_CA=$NODE_EXTRA_CA_CERTS {relay} protocols.example > relay & relay=$!
        until grep -q ready relay; do kill -0 $relay || exit 9; sleep 0.02; done
        {probe} fuzz-requests {said} few > control; {probe} walk-for {second} \"$PWD/planted\" >> control
        rm planted; {probe} fuzz-requests {first},{second} requests > answers; rm requests; kill $relay; rm relay
        for it in {first} {second}; do {probe} walk-for $it everyone \"$PWD\" /tmp /home /root /run /dev /etc; done"
    );
    let run = site.run().policy(POLICY);
    let ended = run_to_end(&mut run.command(&["/bin/sh", "-uc", &script]), LIMIT);
    let read = |name: &str| fs::read_to_string(work.join(name)).unwrap_or_default();
    let (control, answers) = (read("control"), read("answers"));
    assert_eq!(control.matches("\"outcome\":\"done\"").count(), 2, "{control}: {ended}");
    assert_eq!(ended.stdout.matches("\"outcome\":\"absent\"").count(), 2, "{ended}");
    assert!(ended.code == 0 && !ended.stderr.contains("panicked"), "{ended}");

    // It is in no answer, every request was answered in time, and none by a fault of the sidecar.
    let told: Value = serde_json::from_str(&answers).unwrap_or_else(|_| panic!("no answers: {ended}"));
    assert_eq!(told["outcome"], "absent", "a credential was told: {answers}");
    let all = |key| PLANES.map(|plane| counted(&told, plane, key)).iter().sum::<u64>();
    println!(
        "{}",
        ["sent", "upstream", "own", "masked"].map(|key| format!("{key}: {}", all(key))).join(", ")
    );
    assert_eq!((all("sent"), all("missed"), all("own 500"), all("packed")), (REQUESTS, 0, 0, 0), "{answers}");
    // It was not all refusals: on every plane upstreams answered with values that were masked.
    for plane in PLANES {
        let [sent, upstream, masked] = ["sent", "upstream", "masked"].map(|key| counted(&told, plane, key));
        let enough = sent > REQUESTS / 12 && upstream > sent / 4 && masked > sent / 4;
        assert!(enough, "{sent} sent, {upstream} answered, {masked} masked: {answers}");
    }
    let (mut reached, mut with) = (0, [0; 2]);
    for record in rows(&site.world().folder().join("records.jsonl"), "\"event\":\"request\"") {
        let record: Record = serde_json::from_value(record).expect("a record");
        reached += 1;
        let bearer = record.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        with[0] += u64::from(bearer == Some(rough.text()));
        with[1] += u64::from(record.detail.to_string().contains(plain.text()));
    }
    println!("{reached} requests reached upstreams, {with:?} with a credential");
    assert!(with.iter().all(|with| *with > REQUESTS / 10), "{with:?} of {reached}");

    // It is in nothing that is left.
    let shown = site.lockgate(&["audit", "show", "latest", "--json"]);
    let record = site.lockgate(&["runs", "show", "latest", "--json"]);
    let verified = site.lockgate(&["audit", "verify", "latest"]);
    let left = [site.state(), site.outside(), work.clone()].map(|folder| files_below(&folder)).concat();
    let audits: Vec<&PathBuf> =
        left.iter().filter(|path| path.parent().is_some_and(|folder| folder.ends_with("audit"))).collect();
    let [audit] = audits.as_slice() else { panic!("{left:?}") };
    for canary in canaries {
        for (what, said) in [("the run", &ended), ("audit show", &shown), ("runs show", &record)] {
            canary.is_not_in(what, &said.stdout);
            canary.is_not_in(what, &said.stderr);
        }
        for file in &left {
            canary.is_not_in(&file.display().to_string(), fs::read(file).expect("a file that is left"));
        }
    }

    // The audit verifies, and has a record for each answer where every request has one: the gateway answers some by itself.
    let (mut records, mut dialled, mut forward, mut transparent) = (0, 0, 0, 0);
    for record in rows(audit, "") {
        records += 1;
        dialled += u64::from(record["address"].is_string());
        forward += u64::from(record["plane"] == "forward");
        transparent += u64::from(record["plane"] == "transparent");
    }
    println!("{records} records, {dialled} of them dialled");
    let holds = format!("valid: {records} records");
    assert!(verified.code == 0 && verified.stdout.contains(&holds), "{records}: {verified}");
    let answered = |planes: &[Plane]| -> u64 {
        let of = |plane: &Plane| counted(&told, *plane, "upstream") + counted(&told, *plane, "own");
        planes.iter().map(of).sum()
    };
    assert!(forward >= answered(&[Plane::Forward, Plane::Tunnel]), "{forward} records: {answers}");
    assert!(
        transparent >= answered(&[Plane::Redirected, Plane::Free, Plane::Opened]),
        "{transparent} records: {answers}"
    );
    // Whatever reached an upstream was recorded as dialled; the other dialled requests were cut off on the way.
    assert!(dialled >= reached && dialled - reached < REQUESTS / 100, "{dialled} dialled, {reached} reached");
}
