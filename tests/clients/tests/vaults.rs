//! The vault's key: made once, by whoever is first, and never in the place of one that was lost. S1.18, S1.48

use std::fs;
use std::time::Duration;

use lockgate_clients::{Canary, Site, product, run_to_end};

#[test]
fn of_many_who_are_first_one_makes_the_key() {
    let Some(site) = Site::for_test(&[]) else { return };
    let value = site.file("value", Canary::draw().text());
    let script = r#"for i in 1 2 3 4 5 6 7 8 9 10 11 12; do "$PRODUCT" creds set p$i --from-file "$1" || echo failed $i & done; wait
        for i in 1 2 3 4 5 6 7 8 9 10 11 12; do "$PRODUCT" creds show p$i >/dev/null || echo closed $i; done"#;
    let mut command = site.world().command("/bin/sh");
    command.args(["-uc", script, "sh"]).arg(value).current_dir(site.workspace());
    command.env("PRODUCT", product().expect("`Site` asked first")).env("XDG_STATE_HOME", site.state());
    let ended = run_to_end(&mut command, Duration::from_secs(60));
    assert!(ended.code == 0 && ended.stdout.is_empty(), "{ended}");
}

#[test]
fn a_key_that_is_gone_is_told_of_and_no_other_takes_its_place() {
    let Some(site) = Site::for_test(&[]) else { return };
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    let key = site.state().join("lockgate/keys/vault.key");
    let kept = fs::read(&key).expect("the vault's key");
    fs::remove_file(&key).expect("ours");
    for words in [&["creds", "ls"][..], &["creds", "show", "one"], &["keys", "rotate"]] {
        let ended = site.lockgate(words);
        assert!(ended.code != 0 && ended.stderr.contains("vault.key is gone"), "{words:?}: {ended}");
    }
    let ended = site.store("two", "access_token", Canary::draw().text());
    assert!(ended.code != 0 && ended.stderr.contains("CONNECTION_ENCRYPTION_KEY"), "{ended}");
    assert!(!key.exists(), "a new key took its place");
    // What needs no credential goes on.
    let ended = site.run().script("echo on");
    assert!(ended.code == 0 && ended.stdout == "on\n", "{ended}");
    fs::write(&key, kept).expect("room");
    assert_eq!(site.lockgate(&["creds", "show", "one"]).code, 0);
}
