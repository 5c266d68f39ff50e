//! Unmodified package managers: pip, npm and cargo fetch a package and use it, or fail in a second with the host's name. S4.21, S4.24;
//! REQUIREMENTS "host credential mounts" is another issue.

use std::time::Duration;

use lockgate_clients::{Ended, Need, Run, Site};

const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Checks for a refusal at once, after the client's own start-up time. A resolver's time limit is five seconds, a connection's ten.
fn refused(run: &Run<'_>, start: &str, attempt: &str, words: &[&str]) -> Ended {
    let going = run.attempt(start);
    assert!(going.code == 0, "{going}");
    let ended = run.attempt(attempt);
    ended.fails_within(going.took * 2 + Duration::from_secs(3), words);
    ended
}

#[test]
fn pip_installs_what_is_allowed() {
    for site in Site::for_everyone(&[Need::Program("python3"), Need::Program("pip")]) {
        let run = site.run().allow("pypi.example.org").flags(["--env", &format!("PIP_CERT={BUNDLE}")]);
        for (run, folder) in [(run.clone(), "one"), (run.bare(), "two")] {
            let ended = run.script(&format!(
                "/usr/bin/python3 -m pip install -q --no-cache-dir --disable-pip-version-check --target={folder} \
                 --index-url https://pypi.example.org/simple/ hello-world-pkg
                 PYTHONPATH={folder} /usr/bin/python3 -c 'import hello_world_pkg; print(hello_world_pkg.hello())'"
            ));
            ended.says("hello from the world");
        }
    }
}

#[test]
fn pip_works_by_the_preset() {
    let Some(site) = Site::for_test(&[Need::Program("python3"), Need::Program("pip")]) else { return };
    let run =
        site.run().flags(["--preset", "package-registries", "--env", &format!("PIP_CERT={BUNDLE}")]).bare();
    let ended = run.script(
        "/usr/bin/python3 -m pip install -q --isolated --cert /etc/ssl/certs/ca-certificates.crt --no-cache-dir \
         --disable-pip-version-check --target=one hello-world-pkg
         PYTHONPATH=one /usr/bin/python3 -c 'import hello_world_pkg; print(hello_world_pkg.hello())'",
    );
    ended.says("hello from the world");
}

#[test]
fn pip_is_refused_fast() {
    let Some(site) = Site::for_test(&[Need::Program("python3"), Need::Program("pip")]) else { return };
    let run = site.run().allow("api.example.com");
    let pip = "/usr/bin/python3 -m pip";
    let attempt = format!(
        "{pip} install --no-cache-dir --disable-pip-version-check --target=x \
         --index-url https://pypi.example.org/simple/ hello-world-pkg"
    );
    // pip does not print the cause; the product tells the person.
    for run in [run.clone(), run.bare()] {
        refused(&run, &format!("{pip} --version"), &attempt, &["denied pypi.example.org"]);
    }
    assert!(site.visits().is_empty(), "{:?}", site.visits());
}

#[test]
fn npm_installs_what_is_allowed() {
    for site in Site::for_everyone(&[Need::Program("npm"), Need::Program("node")]) {
        let run =
            site.run().allow("npm.example.org").flags(["--env", &format!("NODE_EXTRA_CA_CERTS={BUNDLE}")]);
        for (run, folder) in [(run.clone(), "one"), (run.bare(), "two")] {
            let ended = run.script(&format!(
                "mkdir {folder}; cd {folder}; echo '{{}}' > package.json
                 npm install --no-audit --no-fund --registry https://npm.example.org/ hello-world-pkg >&2
                 node -e 'console.log(require(\"hello-world-pkg\")())'"
            ));
            ended.says("hello from the world");
        }
    }
}

#[test]
fn npm_is_refused_fast() {
    let Some(site) = Site::for_test(&[Need::Program("npm"), Need::Program("node")]) else { return };
    let run = site.run().allow("api.example.com");
    let attempt = "npm install --no-audit --no-fund --registry https://npm.example.org/ hello-world-pkg";
    refused(&run, "npm config get registry", attempt, &["403"]);
    refused(&run.bare(), "npm config get registry", attempt, &["ENOTFOUND"]);
    assert!(site.visits().is_empty(), "{:?}", site.visits());
}

/// A crate with a dependency in the world's registry, as a script that leaves its folder as the working directory.
const CRATE: &str = "mkdir -p p/src p/.cargo; cd p; echo 'fn main() { println!(\"{}\", hello_world_pkg::hello()) }' > src/main.rs
printf '[registries.w]\\nindex = \"sparse+https://crates.example.org/index/\"\\n' > .cargo/config.toml
printf '[package]\\nname = \"p\"\\nedition = \"2021\"\\n[dependencies]\\nhello-world-pkg = { version = \"1\", registry = \"w\" }\\n[workspace]\\n' > Cargo.toml
";

#[test]
fn cargo_builds_what_is_allowed() {
    let Some(site) = Site::for_test(&[
        Need::Home(".rustup/toolchains"),
        Need::Home(".cargo/bin/cargo"),
        Need::Program("cc"),
    ]) else {
        return;
    };
    let run = site.run().allow("crates.example.org").flags(["--tool", "rustup"]);
    let ended = run.clone().bare().script(&format!("{CRATE} cargo fetch -q; cargo run -q --offline"));
    ended.says("hello from the world");
    // The second sandbox has a new home: it fetches again, by the proxy.
    run.script("cd p; rm -rf target Cargo.lock; cargo run -q").says("hello from the world");
}

#[test]
fn cargo_is_refused_fast() {
    let Some(site) = Site::for_test(&[Need::Home(".rustup/toolchains"), Need::Home(".cargo/bin/cargo")])
    else {
        return;
    };
    let run = site.run().allow("api.example.com").flags(["--tool", "rustup"]).bare();
    assert!(run.script(CRATE).code == 0);
    let ended = run.attempt("cd p; cargo fetch");
    // cargo retries once, half a second to a second and a half later.
    ended.fails_within(Duration::from_secs(4), &["resolve host"]);
    assert!(ended.stderr.contains("crates.example.org"), "{ended}");
    assert!(site.visits().is_empty(), "{:?}", site.visits());
}
