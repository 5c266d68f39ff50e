//! The hosts file. It is searched as it is: some have a hundred thousand names and more, of hosts that are not to be reached.

use std::collections::HashSet;
use std::net::IpAddr;

use memchr::memmem::Finder;
use memchr::{memchr, memrchr};

/// Returns the addresses that a hosts file, in small letters, states for a name, IPv4 first. If it states any, no server is asked: one that
/// states one family would otherwise get the other from there.
pub(super) fn stated(hosts: &[u8], name: &str) -> Vec<IpAddr> {
    let name = name.to_ascii_lowercase();
    let of_line = |line: &[u8]| -> Option<IpAddr> {
        let line = line.split(|octet| *octet == b'#').next().unwrap_or_default();
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let address = words.next()?;
        let is_name = |word: &[u8]| word.strip_suffix(b".").unwrap_or(word) == name.as_bytes();
        words.any(is_name).then(|| std::str::from_utf8(address).ok()?.parse().ok())?
    };
    // Most lines do not have the name: only those that do are read, and once.
    let (finder, mut at) = (Finder::new(&name), 0);
    let mut found: Vec<IpAddr> = Vec::new();
    while let Some(hit) = finder.find(&hosts[at..]).map(|hit| at + hit) {
        let start = memrchr(b'\n', &hosts[..hit]).map_or(0, |end| end + 1);
        at = memchr(b'\n', &hosts[hit..]).map_or(hosts.len(), |end| hit + end);
        found.extend(of_line(&hosts[start..at]));
    }
    found.sort_by_key(IpAddr::is_ipv6);
    let mut seen = HashSet::new();
    found.retain(|address| seen.insert(*address));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, name: &str) -> Vec<String> {
        stated(text.to_ascii_lowercase().as_bytes(), name).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_stated_in_one_family_is_all_of_a_name() {
        let text = "93.184.216.34 one.example\nfd00::1 two.example\n93.184.216.35 two.example\n";
        assert_eq!(of(text, "one.example"), ["93.184.216.34"], "and no server is asked for the other");
        assert_eq!(of(text, "two.example"), ["93.184.216.35", "fd00::1"]);
        assert!(of(text, "three.example").is_empty() && of(text, "example").is_empty());
    }

    #[test]
    fn a_long_line_is_read_once() {
        use std::fmt::Write;

        let mut text = String::from("10.0.0.1");
        (0..20_000).for_each(|number| write!(text, " m{number}.ads.test").unwrap());
        text.push_str("\n10.0.0.2 ads.test");
        let began = std::time::Instant::now();
        assert_eq!(of(&text, "ads.test"), ["10.0.0.2"]);
        assert_eq!(of(&text, "m7.ads.test"), ["10.0.0.1"]);
        // Once per name in it takes a minute and more without optimisation.
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn lines_are_read_as_the_c_library_reads_them() {
        let text = "\t10.0.0.1\tone.example One.Alias # two.example\r\n#10.0.0.2 one.example\n10.0.0.3\nx one.example\n\
                    10.0.0.4 dot.example.\nfe80::1%lo one.example";
        assert_eq!(of(text, "one.example"), ["10.0.0.1"]);
        assert_eq!(of(text, "one.alias"), ["10.0.0.1"]);
        assert_eq!(of(text, "dot.example"), ["10.0.0.4"]);
        assert_eq!(of("10.0.0.5 one.example one.example\n10.0.0.5 one.example", "One.Example"), ["10.0.0.5"]);
        assert!(of(text, "two.example").is_empty() && of(text, "10.0.0.3").is_empty());
    }
}
