//! A sidecar alone in the small internet, with every plane and a vault of the caller's, and a shell script beside it. It serves tests of
//! the gate, for which a sandbox would only take time.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::ended::{Ended, run_to_end};
use crate::needs::product;
use crate::shell::AWAIT;
use crate::site::Site;

const LIMIT: Duration = Duration::from_secs(120);

/// Starts the sidecar, waits until it listens, runs the script, and ends the sidecar. The script finds `$OUT/ca.pem`, `$OUT/gate.sock`,
/// `$sidecar`, its serving child `$serving`, the placeholders by their names, and `via`, `gate`, `await`.
const SCRIPT: &str = r#"
"$PRODUCT" sidecar --policy "$OUT/policy.toml" --forward 127.0.0.1:8081 --gateway 127.0.0.1:8080 \
    --gateway-socket "$OUT/gate.sock" --ca "$OUT/ca.pem" --env-file "$OUT/env" --audit "$OUT/audit.jsonl" 2>"$OUT/sidecar.err" & sidecar=$!
complaints=$OUT/sidecar.err
await 'grep -q "proxy at" "$OUT/sidecar.err"'
read -r serving < /proc/$sidecar/task/$sidecar/children
. "$OUT/env"
unset SSL_CERT_FILE
via() { curl -sS --max-time 20 --cacert "$OUT/ca.pem" -x http://127.0.0.1:8081 "$@"; }
gate() { curl -sS --max-time 40 "$@"; }
code() { key=$1; shift; printf '%s=%s\n' "$key" "$("$@" -o /dev/null -w '%{http_code}')"; }
proxy() { to=$1; by=$2; shift 2; gate -H "X-Provider: $by" -H "X-Target: $to" "$@" http://127.0.0.1:8080/proxy; }
script() {
:
"#;
const END: &str = r#"
}
script; code=$?
kill -0 $sidecar || { echo "the sidecar is gone" >&2; exit 8; }
kill $sidecar; wait $sidecar; exit $code
"#;

/// A sidecar that has not started.
pub struct Beside<'site> {
    site: &'site Site,
    policy: String,
    environment: Vec<(String, String)>,
    limit: Duration,
}

/// The script's result, and the folder where the sidecar left its files.
pub struct Left {
    /// How the script ended.
    pub ended: Ended,
    /// The folder of the sidecar's files.
    pub folder: PathBuf,
}

impl<'site> Beside<'site> {
    pub(crate) fn new(site: &'site Site, policy: &str) -> Self {
        Self { site, policy: policy.to_owned(), environment: Vec::new(), limit: LIMIT }
    }

    /// Sets a variable of the sidecar's environment; the script has it too.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets another time limit for the script.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs a script beside the sidecar. It fails by its own exit status, or when the sidecar has gone.
    ///
    /// # Panics
    /// When a file cannot be written, or the script fails.
    #[must_use]
    pub fn script(&self, text: &str) -> Left {
        let left = self.attempt(text);
        assert!(left.ended.code == 0, "{}\n--- sidecar\n{}", left.ended, left.words());
        left
    }

    /// Runs a script beside the sidecar, which may fail.
    ///
    /// # Panics
    /// When a file cannot be written.
    #[must_use]
    pub fn attempt(&self, text: &str) -> Left {
        let folder = self.site.folder("sidecar");
        self.site
            .file(&format!("{}/policy.toml", folder.file_name().unwrap_or_default().display()), &self.policy);
        let mut command: Command = self.site.world().command("/bin/sh");
        command.args(["-uc", &format!("{AWAIT}{SCRIPT}{text}{END}")]).current_dir(self.site.workspace());
        command.env("PRODUCT", product().expect("`ready` was asked first")).env("OUT", &folder);
        command.env("XDG_STATE_HOME", self.site.state()).envs(self.environment.iter().cloned());
        Left { ended: run_to_end(&mut command, self.limit), folder }
    }
}

impl Left {
    /// Returns the records of the sidecar's audit.
    ///
    /// # Panics
    /// When there is none, or a line is not a record.
    #[must_use]
    pub fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("audit.jsonl")).expect("an audit");
        text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
    }

    /// Returns how many audit records are denials by `guard`.
    #[must_use]
    pub fn denials(&self, guard: &str) -> usize {
        self.audit().iter().filter(|record| record["guard"] == guard).count()
    }

    /// Returns the sidecar's stderr.
    #[must_use]
    pub fn words(&self) -> String {
        fs::read_to_string(self.folder.join("sidecar.err")).unwrap_or_default()
    }

    /// Returns the script's output for `key`, from a line `key=…`.
    ///
    /// # Panics
    /// When there is no such line.
    #[must_use]
    pub fn said(&self, key: &str) -> &str {
        self.ended.said(key)
    }

    /// Returns the script's output, line by line.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.ended.stdout.lines()
    }
}
