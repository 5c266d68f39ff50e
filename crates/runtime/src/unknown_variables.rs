//! Variables that would be ignored without a word: those of `LOCKGATE_*` that nothing reads, and settings that are not text.

use sandbox::Caller;

const PREFIX: &str = "LOCKGATE_";
/// What is read, without the prefix. S0.10
const READ: [&str; 11] =
    ["BACKEND", "SANDBOX", "IMAGE", "TIMEOUT", "MEMORY", "CPUS", "PIDS", "DISK", "LIMITS", "PRESETS", "ORG"];
/// What a sandbox's command has, for a run that was started inside one.
const SET_INSIDE: [&str; 2] = ["RUN_ID", "SOCKET"];

/// Settings of other names. One that is not text cannot be heeded, and must not be taken for one that is not set.
const SETTINGS: [&str; 16] = [
    "CONFIG_SECRET",
    "CONNECTION_ENCRYPTION_KEY",
    "DOCKER_HOST",
    "HOST_GID",
    "HOST_UID",
    "PI_IMAGE",
    "PLATFORM_API_URL",
    "PLATFORM_RUN_LIMITS",
    "PROXY_URL",
    "RUN_TOKEN",
    "SSL_CERT_FILE",
    "SYSTEM_PROVIDER_KEYS",
    "SYSTEM_PROXIES",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];

/// Returns the name of a setting that is not text, if there is one.
#[must_use]
pub fn unreadable_variable(caller: &Caller) -> Option<&str> {
    let unreadable = caller.environment.iter().filter(|(_, value)| value.to_str().is_none());
    let mut names = unreadable.filter_map(|(name, _)| name.to_str());
    names.find(|name| name.starts_with(PREFIX) || SETTINGS.contains(name))
}

/// Returns a sentence for each variable of that prefix that nothing reads.
#[must_use]
pub fn unknown_variables(caller: &Caller) -> Vec<String> {
    let names = caller.environment.iter().filter_map(|(name, _)| name.to_str()?.strip_prefix(PREFIX));
    let unknown = names.filter(|name| !is_known(name)).map(|name| {
        let meant = match policy::did_you_mean(name, READ).split('`').nth(1) {
            Some(near) => format!("; did you mean {PREFIX}{near}?"),
            None => String::new(),
        };
        format!("{PREFIX}{} is not a variable of Lockgate's{meant}", name.escape_debug())
    });
    unknown.collect()
}

/// Whether a variable is read or set by this program, its demonstration, or its tests, which name programs by `_BIN`; or by Kubernetes
/// for a service of this name.
fn is_known(name: &str) -> bool {
    READ.contains(&name)
        || SET_INSIDE.contains(&name)
        || name.starts_with("TEST_")
        || name.starts_with("DEMO_")
        || name.ends_with("_BIN")
        || name == "BIN"
        || name.starts_with("PORT")
        || name.starts_with("SERVICE_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_no_text_is_not_one_that_is_not_set() {
        use std::os::unix::ffi::OsStringExt;
        for (name, value, told) in [
            ("LOCKGATE_ORG", b"a\xff".to_vec(), true),
            ("CONNECTION_ENCRYPTION_KEY", b"\x80\x81".to_vec(), true),
            ("XDG_STATE_HOME", b"/tmp/\xff".to_vec(), true),
            ("XDG_STATE_HOME", b"/tmp".to_vec(), false),
            ("SOMEBODYS", b"\xff".to_vec(), false),
        ] {
            let environment = vec![(name.into(), std::ffi::OsString::from_vec(value))];
            let (home, directory) = (None, "/".into());
            let caller = Caller { uid: 0, gid: 0, superuser: false, home, directory, environment };
            assert_eq!(unreadable_variable(&caller), told.then_some(name), "{name}");
        }
    }

    #[test]
    fn a_slip_is_told_and_what_is_read_is_not() {
        let told = |name: &str| {
            let environment = vec![(name.into(), "x".into())];
            let (home, directory) = (None, "/".into());
            unknown_variables(&Caller { uid: 0, gid: 0, superuser: false, home, directory, environment })
        };
        let slip = "LOCKGATE_MEMROY is not a variable of Lockgate's; did you mean LOCKGATE_MEMORY?";
        assert_eq!(told("LOCKGATE_MEMROY"), [slip]);
        assert_eq!(told("LOCKGATE_NETWORK"), ["LOCKGATE_NETWORK is not a variable of Lockgate's"]);
        for known in [
            "LOCKGATE",
            "LOCKGATE_RUN_ID",
            "LOCKGATE_TEST_REQUIRE",
            "LOCKGATE_BIN",
            "LOCKGATE_PORT",
            "LOCKGATES_X",
        ] {
            assert_eq!(told(known), [""; 0], "{known}");
        }
    }

    #[test]
    fn every_variable_of_the_settings_is_known() {
        let words = include_str!("settings.rs").split('"').filter_map(|word| word.strip_prefix(PREFIX));
        let mut names: Vec<&str> = words.filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        names.dedup();
        let mut read = READ;
        read.sort_unstable();
        assert_eq!(names, read);
    }
}
