//! Real clients work in the world with nothing configured but an address: git over HTTPS and SSH, pip, npm, cargo.
//! A client that is not installed is named and skipped.
#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::process::{Command, Output, Stdio};

use lockgate_needs::{met, missing, succeeds};
use lockgate_world::World;

fn has(program: &str) -> bool {
    met(succeeds(Command::new(program).arg("--version"), &format!("{program} is not installed"))).is_some()
}

/// Runs a script in an empty folder and home inside the world.
fn script(world: &World, text: &str) -> Output {
    let home = world.folder().join("work");
    std::fs::create_dir_all(&home).unwrap();
    let mut command = world.command("sh");
    command.args(["-euc", text]).env("WORK", &home).env("CA", world.ca_directory()).current_dir(&home);
    command.env_remove("SSH_AUTH_SOCK").stdin(Stdio::null()).output().unwrap()
}

fn expect(output: &Output, words: &str) {
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(words), "{said}\n{complaint}");
}

#[test]
fn git_over_https() {
    let Some(world) = World::for_test().filter(|_| has("git")) else { return };
    let text = "HOME=$WORK; export HOME; git clone -q https://git.example.org/repo.git a; cat a/README; cd a; \
                git -c user.name=a -c user.email=a@b commit -q --allow-empty -m two; git push -q origin HEAD:refs/heads/two";
    expect(&script(&world, text), "hello from the world");
    let paths: Vec<String> =
        world.records_of("web").iter().map(|record| record.text("path").to_owned()).collect();
    assert!(paths.iter().any(|path| path == "/repo.git/git-receive-pack"), "{paths:?}");
}

#[test]
fn git_over_ssh() {
    let Some(world) = World::for_test().filter(|_| has("git")) else { return };
    let text = "HOME=$WORK; export HOME; \
                GIT_SSH_COMMAND=\"ssh -F /dev/null -i $CA/ssh_key -o UserKnownHostsFile=$CA/known_hosts -o BatchMode=yes\"; \
                export GIT_SSH_COMMAND; git clone -q ssh://git@ssh.example.org/repo.git a; cat a/README; \
                $GIT_SSH_COMMAND git@ssh.example.org anything";
    let output = script(&world, text);
    if let Some(absent) = world.records_of("ssh").iter().find(|record| record.event == "absent") {
        return missing(&format!("no SSH server: {}", absent.detail));
    }
    expect(&output, "hello from the world\nhello from ssh.example.org");
    let records = world.records_of("ssh");
    assert!(records.iter().any(|record| record.event == "login" && record.peer.starts_with("192.168.77.2:")));
    assert!(records.iter().any(|record| record.event == "connect" && record.local == "93.184.216.40:22"));
}

#[test]
fn pip_from_a_named_index_and_from_its_own() {
    let Some(world) = World::for_test().filter(|_| has("python3")) else { return };
    let text = "python3 -m pip install -q --no-cache-dir --target=one --index-url https://pypi.example.org/simple/ \
                hello-world-pkg; python3 -m pip install -q --no-cache-dir --isolated --target=two hello-world-pkg; \
                PYTHONPATH=two python3 -c 'import hello_world_pkg; print(hello_world_pkg.hello())'";
    expect(&script(&world, text), "hello from the world");
}

#[test]
fn npm_from_a_named_registry() {
    let Some(world) = World::for_test().filter(|_| has("npm")) else { return };
    let text = "HOME=$WORK; NODE_EXTRA_CA_CERTS=$WORLD_CA; export HOME NODE_EXTRA_CA_CERTS; echo '{}' > package.json; \
                npm install --no-audit --no-fund --registry https://npm.example.org/ hello-world-pkg >&2; \
                node -e 'console.log(require(\"hello-world-pkg\")())'";
    expect(&script(&world, text), "hello from the world");
}

#[test]
fn cargo_from_a_sparse_registry() {
    let Some(world) = World::for_test().filter(|_| has("cargo")) else { return };
    let text = "CARGO_HOME=$WORK/cargo; export CARGO_HOME; unset CARGO_TARGET_DIR RUSTFLAGS CARGO_BUILD_TARGET; \
                mkdir -p p/src p/.cargo; cd p; echo 'fn main() { println!(\"{}\", hello_world_pkg::hello()) }' > src/main.rs; \
                printf '[registries.w]\\nindex = \"sparse+https://crates.example.org/index/\"\\n' > .cargo/config.toml; \
                printf '[package]\\nname = \"p\"\\nedition = \"2021\"\\n[dependencies]\\nhello-world-pkg = { version = \"1\", \
                registry = \"w\" }\\n[workspace]\\n' > Cargo.toml; cargo run -q";
    expect(&script(&world, text), "hello from the world");
}
