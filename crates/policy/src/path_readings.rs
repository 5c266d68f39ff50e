//! What servers may take a path for, read once for all the rules that are held against it.

use crate::path_levels::{Why, decoded, separated};

pub(crate) const HOST_AT_BEGINNING: Why = "some servers take what follows `//` at its beginning for a host";
const WIDE_BACKSLASH: Why = "some servers read a wide character in it as a backslash";
const WIDE_CONTROL: Why = "some servers read wide characters in it as a control octet";
const PARAMETERS_WITHOUT_END: Why =
    "a `/`, `?` or `#` is encoded behind a `;`, and servers differ in where such parameters end";

/// What servers may take a path for.
pub(crate) struct Readings {
    /// Why some server could take it for anything.
    pub(crate) doubt: Option<Why>,
    /// Whether to some servers a host stands at its beginning.
    pub(crate) has_host: bool,
    /// The readings, each of them once, without case and with repeated slashes collapsed. The first is the path fully decoded.
    pub(crate) all: Vec<String>,
}

impl Readings {
    /// Reads a path as lenient servers do: decoded; and as leniently as any does, without and with the streams of NTFS. Each of these also
    /// without a host at its beginning.
    pub(crate) fn of(path: &str) -> Self {
        let segments: Vec<String> = path.split('/').map(folded).collect();
        let folded = segments.join("/");
        let readings = lenient_too(separated(&folded));
        // As servers have them before they collapse slashes: each may begin with `//`.
        let beginnings = lenient_too(folded);
        let behind_host: Vec<&str> = beginnings.iter().filter_map(|text| behind_host(text)).collect();
        let mut all = Vec::new();
        let behind = behind_host.iter().flat_map(|rest| lenient_too(separated(rest)));
        for reading in readings.into_iter().chain(behind).map(collapsed) {
            if !all.contains(&reading) {
                all.push(reading);
            }
        }
        let doubt = doubt(&segments, &beginnings[0], &behind_host);
        Self { doubt, has_host: !behind_host.is_empty(), all }
    }
}

/// Returns why some server could take a path for anything: beyond [climbing](crate::path_levels): by a wide backslash or control octet, or
/// because it is not plain where parameters, or a host at its beginning, would end.
fn doubt(segments: &[String], folded: &str, behind_host: &[&str]) -> Option<Why> {
    // Some servers cut parameters before they decode, and some where only the `;` is decoded.
    let is_endless = |segment: &String| {
        segment.split_once(';').is_some_and(|(_, parameters)| separated(parameters).contains(['/', '?', '#']))
    };
    let has_hidden_slash = || segments.iter().any(|segment| separated(segment).contains('/'));
    let is_doubtful = |rest: &&str| rest.starts_with("//") || has_hidden_slash();
    if folded.contains('\\') {
        return Some(WIDE_BACKSLASH);
    }
    // Two decimal digits may follow a wide `%` in a name (`10％10月`): the lenient readings have it without what some read there.
    if folded.contains(|c: char| c.is_ascii_control() && !('\u{10}'..='\u{19}').contains(&c)) {
        return Some(WIDE_CONTROL);
    }
    if segments.iter().any(is_endless) {
        return Some(PARAMETERS_WITHOUT_END);
    }
    behind_host.iter().any(is_doubtful).then_some(HOST_AT_BEGINNING)
}

/// Returns a text fully decoded, without case and wide forms.
fn folded(text: &str) -> String {
    without_case(&decoded(text))
}

/// Returns a decoded path, and what it is to the most lenient servers, without and with streams.
fn lenient_too(decoded: String) -> [String; 3] {
    let (whole, cut) = (lenient(&decoded, |name| name), lenient(&decoded, without_stream));
    [decoded, whole, cut]
}

/// Folds the case of letters as any server may: those that share a small or a capital letter are one (`ſ` and `s`, `ı` and `i`, `ς` and
/// `σ`, `ẞ` and `ß`), and so are `İ` and `i`.
fn without_case(text: &str) -> String {
    let small = text.chars().flat_map(char::to_lowercase);
    let folded: String = small.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    // U+0130 in lower case, SpecialCasing.txt of Unicode.
    folded.replace("i\u{307}", "i")
}

fn collapsed(mut path: String) -> String {
    while path.contains("//") {
        path = path.replace("//", "/");
    }
    path
}

/// Returns the path that is left where a server takes what follows `//` for a host (RFC 3986 §4.2), as `java.net.URI`, `URL` of WHATWG and
/// `parse_url` of PHP do.
fn behind_host(path: &str) -> Option<&str> {
    let host = path.strip_prefix("//")?.trim_start_matches('/');
    Some(host.find('/').map_or("/", |end| &host[end..]))
}

/// Returns the most lenient reading of a decoded path: cut where a query or a fragment would begin, without control octets, segment
/// parameters and the dots and blanks that some servers drop at a segment's end. `named` is what a name is taken for.
fn lenient(decoded: &str, named: fn(&str) -> &str) -> String {
    let path =
        decoded.split(['?', '#']).next().unwrap_or_default().replace(|c: char| c.is_ascii_control(), "");
    let name = |segment: &str| {
        let name = segment.split(';').next().unwrap_or_default();
        named(name).trim_end_matches([' ', '.']).to_owned()
    };
    path.split('/').map(name).collect::<Vec<_>>().join("/")
}

/// Cuts a name at the type of a stream: to NTFS `name::$DATA` is the file `name`, and `name:$I30:$INDEX_ALLOCATION` the folder.
fn without_stream(name: &str) -> &str {
    name.find(":$").map_or(name, |at| name[..at].trim_end_matches(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_lenient_reading_drops_what_some_reader_drops() {
        for (path, reading) in [
            ("/", "/"),
            ("/Exact", "/exact"),
            ("/exact;a=b", "/exact"),
            ("/a;v=1/b;c", "/a/b"),
            ("/;/a", "/a"),
            ("//a///b/", "/a/b/"),
            ("/exact%3fx", "/exact"),
            ("/exact%2523x", "/exact"),
            ("/exact%20", "/exact"),
            ("/a./b. .", "/a/b"),
            ("/a%3bv/b", "/a/b"),
            ("/%c5%bfettings", "/settings"),
            ("/adm%C4%B1n", "/admin"),
            ("/stra%C3%9Fe", "/strasse"),
            ("/stra%E1%BA%9Ee", "/strasse"),
            ("/ADM%c4%b0N", "/admin"),
            ("/%CE%91%CE%A3", "/\u{3b1}\u{3c3}"),
            ("/%e2%84%aaey", "/key"),
            ("/a::$INDEX_ALLOCATION/b", "/a/b"),
            ("/a:$i30:$INDEX_ALLOCATION/b::%24DATA", "/a/b"),
            ("/a:b/c:", "/a:b/c:"),
            ("/a%ef%bc%8fb", "/a/b"),
            ("/%EF%BD%81b%ef%bc%9bc", "/ab"),
            ("/a%c2%a0/b%c2%a0", "/a/b"),
            ("/a%e2%88%95b%C2%A5c%E2%80%A6", "/a/b/c"),
            ("/%EF%BC%8561", "/a"),
            ("/a%EF%BC%8510b", "/ab"),
        ] {
            let [.., most_lenient] = lenient_too(separated(&folded(path)));
            let most_lenient = collapsed(most_lenient);
            assert!(most_lenient == reading && Readings::of(path).all.contains(&most_lenient), "{path}");
        }
    }

    #[test]
    fn no_host_begins_at_a_backslash_of_code_pages() {
        for sign in ["%C2%A5", "%EF%BF%A5", "%E2%82%A9", "%EF%BF%A6", "%E2%88%96"] {
            for path in [format!("/{sign}100"), format!("/{sign}{sign}x/y"), format!("/;{sign}x")] {
                assert!(!Readings::of(&path).has_host, "{path}");
            }
            let priced = Readings::of(&format!("/{sign}100"));
            assert!(priced.doubt.is_none() && priced.all == ["/100"], "{sign}");
            // Where a host would end is in doubt there as ever.
            assert_eq!(Readings::of(&format!("//x{sign}y/z")).doubt, Some(HOST_AT_BEGINNING), "{sign}");
        }
        for path in ["//x", "/%EF%BC%8Fx", "/%E2%81%84x", "/%E2%88%95x", "/;/x", "/%2Fx"] {
            assert!(Readings::of(path).has_host, "{path}");
        }
    }

    #[test]
    fn a_wide_backslash_or_control_octet_is_doubtful() {
        for (path, doubt) in [
            ("/%EF%BC%BCa", Some(WIDE_BACKSLASH)),
            ("/a%EF%BC%855Cb", Some(WIDE_BACKSLASH)),
            ("/a%EF%BC%8500", Some(WIDE_CONTROL)),
            ("/%EF%BC%850d%EF%BC%850a", Some(WIDE_CONTROL)),
            ("/%EF%BC%857Fa", Some(WIDE_CONTROL)),
            ("/%EF%BC%851Fa", Some(WIDE_CONTROL)),
            ("/10%EF%BC%8510%E6%9C%88", None),
            ("/%EF%BC%8520", None),
            ("/%C2%B2%E5%90%8D", None),
        ] {
            assert_eq!(Readings::of(path).doubt, doubt, "{path}");
        }
    }
}
