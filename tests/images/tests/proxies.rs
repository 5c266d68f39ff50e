//! A registry that is reached through a proxy of the environment, as in offices.

use lockgate_conformance::{Ended, Live};
use lockgate_images::{Bench, Certificate, ForwardProxy, Needs, Protection, Registry, ready, refused};

use crate::pulled::small;

/// A name that only the proxy can find.
const NAME: &str = "registry.office.test";
const USER: &str = "ann";
/// The password as written in an address, and decoded.
const WRITTEN: &str = "p%40ss:w0rd";
const PASSWORD: &str = "p@ss:w0rd";

fn pull(bench: &Bench, name: &str, variables: &[(&str, &str)]) -> Ended {
    let mut command = bench.command(&["image", "pull", name]);
    Live::start(command.envs(variables.iter().copied())).wait()
}

#[test]
fn a_registry_behind_a_proxy_is_reached_by_each_variable_that_names_one() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let certificate = Certificate::of(NAME);
    let open = Registry::open();
    open.push("app", "1", &small("x"));
    let registry = open.again(Protection::Tls(&certificate));
    let name = format!("{NAME}:{}/app:1", registry.address().port());
    for variable in ["PROXY_URL", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        let proxy = ForwardProxy::start(USER, PASSWORD);
        let bench = Bench::new().trusting(&certificate);
        let url = format!("http://{USER}:{WRITTEN}@{}", proxy.address());
        let ended = pull(&bench, &name, &[(variable, &url)]);
        assert_eq!(ended.code, 0, "{variable}: {ended}");
        assert_eq!(bench.list()[0]["name"], name.as_str());
        let asked = format!("CONNECT {NAME}:{} HTTP/1.1", registry.address().port());
        let heads = proxy.heads();
        assert!(!heads.is_empty() && heads.iter().all(|head| head.line == asked), "{heads:?}");
        assert!(bench.holding(PASSWORD).is_empty() && bench.holding(WRITTEN).is_empty());
    }
}

#[test]
fn a_proxy_that_refuses_is_named_and_its_password_is_not() {
    if !ready(&[Needs::Names]) {
        return;
    }
    let proxy = ForwardProxy::start(USER, "another");
    let bench = Bench::new();
    let url = format!("{USER}:{WRITTEN}@{}", proxy.address());
    let ended = pull(&bench, &format!("{NAME}:5000/app"), &[("HTTPS_PROXY", &url)]);
    refused(&bench, &ended, PASSWORD);
    assert!(ended.stderr.contains("proxy HTTPS_PROXY: it refused user and password"), "{ended}");
    assert!(!ended.stderr.contains(WRITTEN), "{ended}");
    // A proxy address that cannot be parsed is refused before anything is sent.
    let ended = pull(&bench, &format!("{NAME}:5000/app"), &[("PROXY_URL", "gopher://ann:s3cret@proxy")]);
    refused(&bench, &ended, "s3cret");
    assert!(ended.stderr.contains("PROXY_URL") && ended.stderr.contains("its scheme is not"), "{ended}");
}

#[test]
fn no_proxy_and_this_machine_go_past_it() {
    if !ready(&[Needs::Names, Needs::Registry]) {
        return;
    }
    let certificate = Certificate::of(NAME);
    let open = Registry::open();
    open.push("app", "1", &small("x"));
    let registry = open.again(Protection::Tls(&certificate));
    let proxy = ForwardProxy::start(USER, PASSWORD);
    let url = format!("http://{USER}:{WRITTEN}@{}", proxy.address());
    let here = format!("{}/app:1", open.address());
    let ended = pull(&Bench::new(), &here, &[("HTTP_PROXY", &url), ("HTTPS_PROXY", &url)]);
    assert_eq!(ended.code, 0, "{ended}");
    let named = format!("{NAME}:{}/app:1", registry.address().port());
    for direct in ["office.test", ".office.test", "*"] {
        let bench = Bench::new().with_names(&[NAME]).trusting(&certificate);
        let ended = pull(&bench, &named, &[("HTTPS_PROXY", &url), ("NO_PROXY", direct)]);
        assert_eq!(ended.code, 0, "{direct}: {ended}");
    }
    assert_eq!(proxy.heads().len(), 0);
}
