//! The vault's key: made once, by the first process, and never to replace a lost one. S1.18, S1.48

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use lockgate_clients::{Canary, Need, Site, product, run_to_end};

#[test]
fn of_many_who_are_first_one_makes_the_key() {
    let Some(site) = Site::for_test(&[]) else { return };
    let value = site.file("value", Canary::draw().text());
    let script = r#"for i in 1 2 3 4 5 6 7 8 9 10 11 12; do "$PRODUCT" creds set p$i --from-file "$VALUE" || echo failed $i & done; wait
        for i in 1 2 3 4 5 6 7 8 9 10 11 12; do "$PRODUCT" creds show p$i >/dev/null || echo closed $i; done"#;
    let ended = site.shell().with("VALUE", value).run(script);
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
        assert!(ended.code != 0 && ended.stderr.contains("vault.key is not there"), "{words:?}: {ended}");
    }
    let ended = site.store("two", "access_token", Canary::draw().text());
    assert!(ended.code != 0 && ended.stderr.contains("CONNECTION_ENCRYPTION_KEY"), "{ended}");
    assert!(ended.stderr.contains("creds rm"), "{ended}");
    assert!(!key.exists(), "a new key took its place");
    // A run without credentials still works.
    let ended = site.run().script("echo on");
    assert!(ended.code == 0 && ended.stdout == "on\n", "{ended}");
    // A key that others may read is refused, until its mode is set as the message says.
    fs::write(&key, kept).expect("room");
    let may = |mode| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("ours");
    may(0o644);
    let ended = site.lockgate(&["creds", "show", "one"]);
    let says = |text: &str| ended.stderr.contains(text);
    assert!(ended.code != 0 && says("mode 0644") && says("chmod 600") && says("vault.key"), "{ended}");
    may(0o600);
    assert_eq!(site.lockgate(&["creds", "show", "one"]).code, 0);
}

#[test]
fn what_another_key_sealed_is_told_and_can_be_replaced() {
    let Some(site) = Site::for_test(&[]) else { return };
    let sealed =
        "export CONNECTION_ENCRYPTION_KEY=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    let set = |name: &str| format!("echo value-{name} | \"$PRODUCT\" creds set {name} --stdin");
    let told = |script: String, code: i32, words: &[&str]| {
        let ended = site.shell().run(&script);
        assert_eq!(ended.code, code, "{script}: {ended}");
        words.iter().for_each(|word| assert!(ended.stderr.contains(word), "`{word}` of {script}: {ended}"));
    };
    told(format!("{sealed}; {}; {}", set("one"), set("two")), 0, &["stored"]);
    // There never was a key in the file.
    told(set("one"), 125, &["sealed with a key that is not here", "CONNECTION_ENCRYPTION_KEY", "creds rm"]);
    // Another key, which opens nothing here, replaces nothing.
    let other = sealed.replace("0011", "ff11");
    told(format!("{other}; {}", set("one")), 125, &["no key ", "`lockgate creds rm one`"]);
    // Nor is anything put beside what it does not open.
    told(
        format!("{other}; {}", set("three")),
        125,
        &["store `three`", "no key ", "CONNECTION_ENCRYPTION_KEY"],
    );
    let key = |export: &str| export.rsplit('=').next().expect("a key").to_owned();
    told(format!("{other},{}; {}", key(sealed), set("three")), 0, &["stored"]);
    told(format!("{other}; {}", set("one")), 0, &["stored", "could not be decrypted", "was replaced"]);
    told(format!("{other}; \"$PRODUCT\" creds show one"), 0, &[]);
    told(format!("{other}; \"$PRODUCT\" creds show two"), 125, &["no key "]);
}

#[test]
fn a_new_key_takes_the_place_of_the_old_one_as_the_page_says() {
    let Some(site) = Site::for_test(&[]) else { return };
    site.keep("one", "access_token", Canary::draw().text());
    let key = site.state().join("lockgate/keys/vault.key");
    let old = fs::read_to_string(&key).expect("the vault's key");
    // A variable that was never set is no key.
    let unset = format!("CONNECTION_ENCRYPTION_KEY=,{old} \"$PRODUCT\" keys rotate");
    let ended = site.shell().run(&unset);
    assert!(ended.code == 125 && ended.stderr.contains("key 1 of those given is empty"), "{ended}");
    let page = include_str!("../../../docs/providers.md");
    let mut blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let commands = blocks.find(|block| block.contains("keys rotate")).expect("the commands");
    // Interrupted: by now only the new key decrypts, and it must not be drawn anew.
    let begun = site.shell().run(&commands.replace("&& mv", "&& false && mv"));
    assert!(begun.code == 1 && begun.stdout.contains("1 rewrapped, 0 already up to date"), "{begun}");
    let new = fs::read_to_string(key.with_extension("key.new")).expect("the new key");
    site.shell().run(commands).says("0 rewrapped, 1 already up to date");
    assert_ne!(new, old);
    assert_eq!(fs::read_to_string(&key).expect("the vault's key"), new);
    assert_eq!(site.lockgate(&["creds", "show", "one"]).code, 0);
}

#[test]
fn of_two_variables_the_one_that_is_left_is_named() {
    let Some(site) = Site::for_test(&[]) else { return };
    let import = |variables: &str| site.shell().run(&format!("{variables} \"$PRODUCT\" creds import-env"));
    let ended = import("GITHUB_TOKEN=first-12345 GH_TOKEN=second-12345");
    assert!(ended.code == 0 && !format!("{ended}").contains("-12345"), "{ended}");
    let told = &ended.stderr;
    assert!(told.contains("github: taken from GITHUB_TOKEN; another value is in GH_TOKEN"), "{ended}");
    let ended = import("GITHUB_TOKEN=first-12345 GH_TOKEN=first-12345");
    assert!(ended.code == 0 && !ended.stderr.contains("GH_TOKEN"), "{ended}");
    // A placeholder, as a run has it in its environment, is nobody's key.
    let ended = import(&format!("GITHUB_TOKEN=lgph_{}", "a".repeat(36)));
    assert!(ended.code == 2 && ended.stderr.contains("GITHUB_TOKEN: the value is a placeholder"), "{ended}");
}

#[test]
fn a_value_that_no_header_takes_is_refused_when_it_is_set() {
    let Some(site) = Site::for_test(&[]) else { return };
    for value in ["key\u{1}", "a\u{1b}[Ab", "a\tb", "key\u{7f}"] {
        let ended = site.store("one", "access_token", value);
        assert!(ended.code == 2 && ended.stderr.contains("control character"), "{value:?}: {ended}");
    }
    assert_ne!(site.lockgate(&["creds", "show", "one"]).code, 0);
}

/// Prompts for a value on a terminal, types `said`, and prints how it ended, whether the terminal echoes input, and whether
/// the product ended the line of the question itself.
const ASK: &str = r#"
import fcntl, os, pty, subprocess, sys, termios, time
said = sys.argv[1].encode().decode("unicode_escape").encode()
ours, theirs = pty.openpty()
def begin():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
child = subprocess.Popen(sys.argv[2:], bufsize=0, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=begin)
asked = child.stderr.read(1)
while termios.tcgetattr(theirs)[3] & termios.ECHO: time.sleep(0.01)
os.write(ours, said)
told = child.communicate(timeout=20)[1]
shows = bool(termios.tcgetattr(theirs)[3] & termios.ECHO and termios.tcgetattr(theirs)[3] & termios.ISIG)
print("ended=%d shows=%s apart=%s" % (child.returncode, shows, b": \n" in told))
"#;

#[test]
fn a_key_that_ends_it_leaves_the_terminal_as_it_was() {
    let Some(site) = Site::for_test(&[Need::Program("python3")]) else { return };
    for (said, ended) in [
        ("half\\x03", "ended=-2 shows=True apart=True"),
        ("\\x1c", "ended=-2 shows=True apart=True"),
        ("\\x04", "ended=2 shows=True apart=True"),
        ("half\\x1a\\n", "ended=2 shows=True apart=False"),
        ("whole\\n", "ended=0 shows=True apart=False"),
    ] {
        let mut command = site.world().command("python3");
        command
            .args(["-c", ASK, said])
            .arg(product().expect("`Site` asked first"))
            .args(["creds", "set", "one"]);
        command.current_dir(site.workspace()).env("XDG_STATE_HOME", site.state());
        let seen = run_to_end(&mut command, Duration::from_secs(30));
        assert_eq!(seen.stdout, format!("{ended}\n"), "{said}: {seen}");
    }
    let kept = site.lockgate(&["creds", "show", "one"]);
    assert!(kept.stdout.contains("5 octets"), "what was typed whole is what is kept: {kept}");
}
