//! The list of promises agrees with the tests, and the page in docs with the list.
//! These tests start no run, so they hold on any machine.

use std::collections::BTreeSet;
use std::path::Path;

use lockgate_conformance::{Backend, PROMISES, table};

#[test]
fn every_promise_has_its_test_and_every_test_its_promise() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files: BTreeSet<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().trim_end_matches(".rs").to_owned())
        .filter(|name| {
            let of_none = [
                "all",
                "container",
                "container_veth",
                "docker",
                "image_config",
                "podman",
                "rootless",
                "searches",
                "subordinate_ids",
                "table",
                "veth",
            ];
            !of_none.contains(&name.as_str())
        })
        .collect();
    let promised: BTreeSet<String> = PROMISES.iter().map(|promise| promise.id.to_owned()).collect();
    assert_eq!(promised.len(), PROMISES.len(), "a promise is listed twice");
    assert_eq!(files, promised);
    let modules = std::fs::read_to_string(directory.join("all.rs")).unwrap();
    for id in promised {
        assert!(modules.contains(&format!("mod {id};")), "{id} is not a module of all.rs");
    }
}

#[test]
fn the_page_is_up_to_date() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    let text = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(
        text == table(),
        "docs/conformance.md is out of date: cargo run -p lockgate-conformance -- --write"
    );
}

// S2.1, S1.1
#[test]
fn a_stronger_backend_makes_every_promise_of_a_weaker_one_and_more() {
    let made = |backend: Backend| -> BTreeSet<&str> {
        PROMISES.iter().filter(|promise| promise.backends.contains(&backend)).map(|it| it.id).collect()
    };
    for (weaker, stronger) in [
        (Backend::Process, Backend::Linux),
        (Backend::Linux, Backend::Container),
        (Backend::Process, Backend::Docker),
        (Backend::Process, Backend::Podman),
    ] {
        let (less, more) = (made(weaker), made(stronger));
        let missing: Vec<_> = less.difference(&more).collect();
        assert!(missing.is_empty() && less.len() < more.len(), "{weaker:?}, {stronger:?}: {missing:?}");
    }
    // The three layers: the run's own network, the credential that only the sidecar has, and the permitted destinations.
    for layer in ["default_deny", "siblings", "canary", "private_addresses", "denied_host"] {
        assert!(made(Backend::Docker).contains(layer) && made(Backend::Linux).contains(layer), "{layer}");
    }
}
