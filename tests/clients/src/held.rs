//! A credential that a run may use and must not see: stored in the caller's vault as a person would store it, and searched for afterwards
//! in everything the run has left.

use std::fs;
use std::path::Path;
use std::time::Duration;

use data_encoding::BASE64;

use crate::canary::Canary;
use crate::ended::{Ended, run_to_end};
use crate::needs::product;
use crate::site::Site;

/// Reads the value from stdin: other users can read a command line.
const STORE: &str = r#"printf %s "$VALUE" | "$PRODUCT" creds set "$PROVIDER" --stdin"#;

/// One provider's credential.
pub struct Held<'site> {
    site: &'site Site,
    canary: Canary,
}

impl<'site> Held<'site> {
    /// Draws a credential and stores it.
    ///
    /// # Panics
    /// When the product does not accept it.
    #[must_use]
    pub fn by(site: &'site Site, provider: &str) -> Self {
        let canary = Canary::draw();
        let mut command = site.world().command("/bin/sh");
        command.args(["-euc", STORE]).current_dir(site.workspace()).env("XDG_STATE_HOME", site.state());
        command.env("VALUE", canary.text()).env("PROVIDER", provider);
        command.env("PRODUCT", product().expect("`ready` was asked first"));
        let ended = run_to_end(&mut command, Duration::from_secs(60));
        assert!(ended.code == 0, "{ended}");
        Self { site, canary }
    }

    /// Draws and stores a credential, the only one that `host` accepts.
    ///
    /// # Panics
    /// As [`Held::by`], or when the world's file of keys cannot be written.
    #[must_use]
    pub fn for_model(site: &'site Site, provider: &str, host: &str) -> Self {
        let held = Self::by(site, provider);
        site.world().expect_key(host, held.canary.text()).expect("room for a key");
        held
    }

    /// The credential itself.
    #[must_use]
    pub fn text(&self) -> &str {
        self.canary.text()
    }

    /// Returns a header value with the credential as the password of `user` (RFC 7617).
    #[must_use]
    pub fn basic(&self, user: &str) -> String {
        format!("Basic {}", BASE64.encode(format!("{user}:{}", self.text()).as_bytes()))
    }

    /// Returns how many requests brought `value` in the header `name` to `host`, and checks that no other request there had that header,
    /// and none anywhere a placeholder.
    ///
    /// # Panics
    /// When a request did.
    #[must_use]
    pub fn brought(&self, host: &str, name: &str, value: &str) -> usize {
        let requests = self.site.requests();
        for request in &requests {
            let heads = request.detail["headers"].to_string();
            assert!(!heads.contains("lgph_"), "a placeholder left the machine: {heads}");
            let given = request.header(name).filter(|_| request.text("host") == host);
            assert!(given.is_none_or(|given| given == value), "not the credential: {heads}");
        }
        let of_host = requests.iter().filter(|request| request.text("host") == host);
        of_host.filter(|request| request.header(name) == Some(value)).count()
    }

    /// Checks that the credential is in nothing that the run printed, left in the workspace, or recorded.
    ///
    /// # Panics
    /// When it is found.
    pub fn is_nowhere(&self, ended: &Ended) {
        self.canary.is_not_in("stdout", &ended.stdout);
        self.canary.is_not_in("stderr", &ended.stderr);
        let (left, recorded) = (self.beneath(&self.site.workspace()), self.beneath(&self.site.state()));
        assert!(recorded > 2, "an audit, a record and a vault are more than {recorded} files");
        assert!(left > 0 || ended.code != 0, "the run left nothing to look at");
    }

    /// Searches every file, and returns their number.
    fn beneath(&self, folder: &Path) -> usize {
        let mut files = 0;
        for entry in fs::read_dir(folder).expect("a folder of the caller's").flatten() {
            let (path, kind) = (entry.path(), entry.file_type().expect("a file of the caller's"));
            self.canary.is_not_in("a name", path.as_os_str().as_encoded_bytes());
            if kind.is_dir() {
                files += self.beneath(&path);
            } else if kind.is_file() {
                self.canary.is_not_in(&path.display().to_string(), fs::read(&path).expect("a readable file"));
                files += 1;
            }
        }
        files
    }
}
