//! Answers of a registry to a pull. The first octet selects how the registry is reached, the answers follow. The password goes to
//! the registry and to the token service that it names, and never in the clear; a token goes to the registry alone; and no error
//! reveals either, or is longer than a screen.

use std::path::Path;
use std::sync::LazyLock;

use data_encoding::BASE64;
use image::{Bounds, Login, Owners, PullRequest, Reference, Store, Transport, pull};

use crate::platform::Platform;
use crate::registry::{RecordedConnection, Registry};
use crate::strict::Reading;
use crate::{octets, scratch, strict};

static PLATFORM: LazyLock<Platform> = LazyLock::new(Platform::new);
/// How many characters a screen has.
const SCREEN: usize = 80 * 25;

/// Pulls an image from a registry that answers with the input.
pub fn registry(input: &[u8]) {
    let Some((way, answers)) = input.split_first() else { return };
    let (name, plain_http) = match way % 4 {
        0 | 1 => ("registry.example/it", false),
        2 => ("registry.example:81/it", true),
        _ => ("localhost:81/it", false),
    };
    let reference: Reference = name.parse().expect("a constant name");
    let password = || Login { username: "me".into(), password: PLATFORM.secret().to_owned().into() };
    let request = PullRequest {
        reference: &reference,
        login: (way % 4 != 1).then(password),
        transport: if plain_http { Transport::Plain } else { Transport::Tls },
        bounds: Bounds { octets: 1 << 20, entries: 1000 },
        owners: Owners::Caller,
    };
    let folder = scratch::folder();
    let store = Store::open(&folder.path().join("store")).expect("a store");
    let registry = Registry::of(answers);
    let pulled = pull(&store, &registry, &request, &mut |_| {});
    let connections = registry.connections();
    let place = reference.registry().expect("it names one");
    (0..connections.len()).for_each(|at| judge(&connections, at, place, plain_http));
    assert_eq!(names(folder.path()), ["store"]);
    let listed = store.list().expect("the store can be read");
    match pulled {
        Ok(image) => {
            assert_eq!(listed.len(), 1);
            let held = store.hold(&reference.name()).expect("what was pulled is there");
            assert_eq!(held.record.digest, image.record.digest);
            assert!(held.layers.iter().all(|layer| layer.is_dir()), "a layer is not there");
        }
        Err(error) => {
            assert!(listed.is_empty(), "an image came of it all the same: {error}");
            let told = error.to_string();
            PLATFORM.assert_hidden(answers, told.as_bytes());
            assert!(told.chars().count() <= SCREEN, "{} octets: {told:.200}", told.len());
            assert!(!told.contains('\n'), "{told}");
            for token in connections.iter().filter_map(bearer) {
                assert!(token.len() < 8 || !told.contains(&token), "{token} in {told}");
            }
        }
    }
}

/// Checks one of the requests that were sent.
fn judge(connections: &[RecordedConnection], at: usize, place: &str, plain_http: bool) {
    let one = &connections[at];
    let sent = one.sent();
    let authority = authority(one);
    let here = one.host == "localhost" || one.host.starts_with("127.");
    if !sent.is_empty() {
        let reading = strict::end_of_request(&sent, &authority);
        assert_eq!(reading, Reading::Ends(sent.len()), "{}", String::from_utf8_lossy(&sent));
        assert!(sent.starts_with(b"GET /"));
    }
    if !plain_http && place == "registry.example" {
        assert!(one.secure, "TLS was left for {authority}");
    }
    let is_registry = |one: &RecordedConnection| self::authority(one) == place;
    if bearer(one).is_some() {
        assert!(is_registry(one), "a token goes to {authority}");
    }
    let basic = BASE64.encode(format!("me:{}", PLATFORM.secret()).as_bytes());
    if octets::contains(&sent, basic.as_bytes()) {
        assert!(one.secure || here || plain_http, "a password in the clear goes to {authority}");
        let names = |earlier: &RecordedConnection| {
            let answer = earlier.answer.to_ascii_lowercase();
            is_registry(earlier)
                && answer.get(9..12) == Some(b"401")
                && octets::contains(&answer, one.host.as_bytes())
        };
        assert!(is_registry(one) || connections[..at].iter().any(names), "a password goes to {authority}");
    }
    // A fuzzer learns the secret from the comparisons here, and makes a token of it.
    let answers = connections.iter().flat_map(|it| it.answer.iter().copied());
    PLATFORM.assert_hidden(&answers.chain(basic.bytes()).collect::<Vec<u8>>(), &sent);
}

fn authority(one: &RecordedConnection) -> String {
    let usual = if one.secure { 443 } else { 80 };
    if one.port == usual { one.host.clone() } else { format!("{}:{}", one.host, one.port) }
}

/// Returns the token in a request.
fn bearer(one: &RecordedConnection) -> Option<String> {
    let sent = one.sent();
    let text = String::from_utf8_lossy(&sent);
    text.lines().find_map(|line| line.strip_prefix("authorization: Bearer ").map(str::to_owned))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the directory").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
