//! A registry that requires a password, which goes to it and nowhere else.

use lockgate_images::{
    Bench, Deed, Needs, PASSWORD, Protection, Registry, Relay, USER, ready, refused, told,
};

use crate::pulled::small;

/// Starts a registry that requires a password, and has one image.
fn protected() -> (Registry, String) {
    let open = Registry::open();
    open.push("team/app", "1", &small("secret"));
    let registry = open.again(Protection::Password);
    let name = format!("{}/team/app:1", registry.address());
    (registry, name)
}

#[test]
fn without_a_credential_the_flag_for_it_is_named() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let ((_registry, name), bench) = (protected(), Bench::new());
    let ended = bench.pull(&name);
    refused(&bench, &ended, "");
    assert!(ended.stderr.contains("--credential"), "{ended}");
    assert_eq!(ended.stderr.matches("failed to").count(), 1, "one error is enough: {ended}");
}

#[test]
fn with_a_credential_it_is_pulled_and_the_password_is_nowhere() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let ((_registry, name), bench) = (protected(), Bench::new());
    bench.keep_credential(USER, PASSWORD);
    let ended = bench.pull_with_credential(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(bench.list().len(), 1);
    assert!(!told(&ended, PASSWORD), "{ended}");
    assert_eq!(bench.holding(PASSWORD), [""; 0].map(std::path::PathBuf::from));
    // The control: the search finds what is there.
    assert!(!bench.holding("team/app").is_empty());
}

#[test]
fn a_wrong_password_is_told_so_and_not_shown() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    const WRONG: &str = "wr0ng-and-2-donkeys";
    let ((_registry, name), bench) = (protected(), Bench::new());
    bench.keep_credential(USER, WRONG);
    let ended = bench.pull_with_credential(&name);
    refused(&bench, &ended, WRONG);
    assert!(ended.stderr.contains("it refuses the credential"), "{ended}");
    assert_eq!(bench.holding(WRONG), [""; 0].map(std::path::PathBuf::from));
}

#[test]
fn a_credential_that_is_not_there_or_not_whole_is_named() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let ((_registry, name), bench) = (protected(), Bench::new());
    let ended = bench.pull_with_credential(&name);
    refused(&bench, &ended, "");
    assert!(ended.stderr.contains("registry"), "{ended}");

    let mut command = bench.command(&["creds", "set", "registry", "--from-env", "TOKEN"]);
    let set = lockgate_conformance::Live::start(command.env("TOKEN", PASSWORD)).wait();
    assert_eq!(set.code, 0, "{set}");
    let ended = bench.pull_with_credential(&name);
    refused(&bench, &ended, PASSWORD);
    assert!(ended.stderr.contains("username"), "{ended}");
}

#[test]
fn a_registry_that_does_not_ask_is_not_told() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    registry.push("app", "latest", &small("open"));
    let relay = Relay::start(registry.address(), |_, _| Deed::Pass);
    bench.keep_credential(USER, PASSWORD);
    let ended = bench.pull_with_credential(&format!("{}/app", relay.address()));
    assert_eq!(ended.code, 0, "{ended}");
    let heads = relay.heads();
    assert!(heads.len() >= 3 && heads.iter().all(|head| head.field("authorization").is_none()), "{heads:?}");
}
