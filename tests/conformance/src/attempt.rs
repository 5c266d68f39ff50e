//! Attempts made inside a sandbox, written as lines of shell: one after another, or all at the same time. `Run` carries them out.

use std::path::Path;

/// One attempt.
#[derive(Clone, Copy, Debug)]
pub enum Attempt<'a> {
    /// The probe with these arguments.
    Probe(&'a [&'a str]),
    /// A plain HTTP URL, requested from the run's explicit proxy, which the run's environment names.
    Proxy(&'a str),
    /// A tunnel to `HOST:PORT`, requested from the same proxy.
    Tunnel(&'a str),
}

impl<'a> Attempt<'a> {
    /// Flattens a table of attempts into one list.
    #[must_use]
    pub fn all(probes: &[&'a [&'a str]], urls: &[&'a str], targets: &[&'a str]) -> Vec<Self> {
        let probes = probes.iter().map(|words| Self::Probe(words));
        let asked = urls.iter().map(|url| Self::Proxy(url)).chain(targets.iter().map(|it| Self::Tunnel(it)));
        probes.chain(asked).collect()
    }

    /// Returns a shell command that prints one report.
    pub(crate) fn line(&self, probe: &Path) -> String {
        let probe = probe.to_string_lossy();
        let ask = |variable: &str, word: &str, target: &str| {
            let (probe, target) = (quoted(&probe), quoted(target));
            format!(
                "(at=${{{variable}#http://}}; at=${{at%/}}; exec {probe} {word} \"${{at%:*}}\" \"${{at##*:}}\" {target})"
            )
        };
        match self {
            Self::Probe(words) => {
                let words = std::iter::once(&*probe).chain(words.iter().copied());
                words.map(quoted).collect::<Vec<_>>().join(" ")
            }
            Self::Proxy(url) => ask("HTTP_PROXY", "http-proxy", url),
            Self::Tunnel(target) => ask("HTTPS_PROXY", "http-connect", target),
        }
    }
}

/// Returns shell text that runs the lines concurrently and prints their output in order.
pub(crate) fn at_once(lines: &[String]) -> String {
    let begin = lines.iter().enumerate().map(|(number, line)| format!("{line} > \"$said/{number}\" &\n"));
    let tell = (0..lines.len()).map(|number| format!("cat \"$said/{number}\"\n"));
    format!(
        "said=$(mktemp -d)\n{}wait\n{}rm -r \"$said\"",
        begin.collect::<String>(),
        tell.collect::<String>()
    )
}

/// Returns shell text that stops a harmful command outside a sandbox: `linux` runs have at least their own PIDs and mounts.
pub(crate) fn only_inside() -> String {
    let stop = |kind| {
        let outside = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
        let outside = quoted(&outside.to_string_lossy());
        format!(
            "here=$(readlink /proc/self/ns/{kind}); case $here in {outside}|'') here=;; {kind}:*) ;; *) here=;; esac\n\
             [ -n \"$here\" ] || {{ echo 'this is no sandbox at all' >&2; exit 125; }}\n"
        )
    };
    ["pid", "mnt"].map(stop).concat()
}

/// Quotes a word for a shell, in single quotes.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use lockgate_needs::{met, succeeds};

    use super::*;

    fn said(line: &str) -> String {
        let output = Command::new("sh").args(["-c", line]).output().expect("a shell");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn words_survive_a_shell() {
        let line = Attempt::Probe(&["%s|", "it's", "a b", r"\r\n", "$HOME"]).line(Path::new("printf"));
        assert_eq!(said(&line), r"it's|a b|\r\n|$HOME|");
    }

    #[test]
    fn the_proxy_is_where_the_environment_says() {
        let url = Attempt::Proxy("http://it's/").line(Path::new("echo"));
        assert_eq!(
            said(&format!("HTTP_PROXY=http://[::1]:80/; {url}")),
            "http-proxy [::1] 80 http://it's/\n"
        );
        let target = Attempt::Tunnel("a: 1").line(Path::new("echo"));
        assert_eq!(said(&format!("HTTPS_PROXY=http://b:8; {target}")), "http-connect b 8 a: 1\n");
    }

    #[test]
    fn what_is_said_at_once_comes_in_order() {
        let lines = ["sleep 0.2; echo first", "echo second"].map(|line| format!("({line})"));
        assert_eq!(said(&at_once(&lines)), "first\nsecond\n");
    }

    #[test]
    fn outside_nothing_goes_on() {
        let line = format!("{}echo went on", only_inside());
        assert_eq!(said(&line), "");
        // The control.
        const APART: [&str; 6] = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"];
        let apart =
            succeeds(Command::new("unshare").args(APART).arg("true"), "no namespaces can be made here");
        if met(apart).is_none() {
            return;
        }
        let output = Command::new("unshare").args(APART).args(["sh", "-c", &line]).output().unwrap();
        assert!(output.status.success() && output.stdout == b"went on\n", "{output:?}");
    }
}
