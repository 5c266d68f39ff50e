//! The files that programs keep in a home directory: git, npm, pip and gh work inside with the caller's own configuration and caches, and
//! the credentials in them are nowhere but where they were sent. S3.11, C13.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use lockgate_clients::{Agents, Canary, Ended, Held, Need, Run, Site, files_below, home_has};

const FORGE: &str = "[[provider]]\nid = \"forge\"\nauthorized_uris = [\"https://git.example.org/*\"]\n\
                     inject = { basic = \"x-access-token:{{access_token}}\" }\n";
const PACKAGES: &str = "[[provider]]\nid = \"packages\"\nauthorized_uris = [\"https://npm.example.org/*\"]\nencoded_slash = true\nplaceholders = \"anywhere\"\n";
const INDEX: &str = "[[provider]]\nid = \"index\"\nauthorized_uris = [\"https://pypi.example.org/*\"]\nplaceholders = \"anywhere\"\n";

const CRATES: &str = "[[provider]]\nid = \"crates-own\"\nauthorized_uris = [\"https://crates.example.org/*\"]\nplaceholders = \"anywhere\"\n";

/// Makes a caller's home with these files.
fn home(site: &Site, files: &[(&str, &str)]) -> PathBuf {
    let home = site.folder("home");
    let owner = fs::metadata(&home).expect("it was made");
    for (path, content) in files {
        let path = home.join(path);
        let parent = path.parent().expect("below the home");
        fs::create_dir_all(parent).expect("room");
        fs::write(&path, content).expect("room");
        for made in path.ancestors().take_while(|made| *made != home) {
            use std::os::unix::fs::{MetadataExt, chown};
            chown(made, Some(owner.uid()), Some(owner.gid())).expect("the folder's owner");
        }
    }
    home
}

/// Runs a script inside, with this home as the caller's.
fn script(run: &Run<'_>, home: &Path, text: &str) -> Ended {
    let mut command = run.command(&["/bin/sh", "-euc", text]);
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME");
    lockgate_clients::run_to_end(&mut command, std::time::Duration::from_secs(120))
}

#[test]
fn git_works_by_the_callers_configuration() {
    for site in Site::for_everyone(&[Need::Program("git")]) {
        let (held, canary) = (Held::by(&site, "forge"), Canary::draw());
        let theirs = canary.text();
        let config = format!(
            "[user]\n\tname = Ann Other\n\temail = ann@example.org\n[commit]\n\tgpgSign = true\n[alias]\n\tsay = log -1 --format=%an\n\
             [http]\n\tproxy = http://me:{theirs}@proxy.example.org:1\n\
             [http \"https://git.example.org/\"]\n\textraHeader = Authorization: Basic {}\n\
             [url \"https://me:{theirs}@git.example.org/\"]\n\tinsteadOf = forge:\n",
            data_encoding::BASE64.encode(format!("x-access-token:{theirs}").as_bytes())
        );
        let home = home(&site, &[(".gitconfig", &config)]);
        let run = site.run().policy(FORGE).flags(["--builtin-tool", "git"]).bare();
        let ended = script(
            &run,
            &home,
            "git clone -q forge:repo.git one; cat one/README; cd one; git commit -q --allow-empty -m x; git say
             git push -q origin HEAD:refs/heads/new; git config --global user.name Else; cat ~/.gitconfig",
        );
        ended.says("hello from the world");
        ended.says("Ann Other");
        ended.says("lgph_");
        let requests = site.requests();
        let brought = held.brought("git.example.org", "authorization", &held.basic("x-access-token"));
        assert!(brought > 2 && brought == requests.len(), "{requests:?}");
        held.is_nowhere(&ended);
        canary.is_not_in("what it said", format!("{ended}"));
        // The caller's own file is unchanged.
        assert_eq!(fs::read_to_string(home.join(".gitconfig")).expect("it was written"), config);
    }
}

#[test]
fn npm_installs_by_the_callers_configuration_and_cache() {
    for site in Site::for_everyone(&[Need::Program("npm"), Need::Program("node")]) {
        let (held, canary) = (Held::by(&site, "packages"), Canary::draw());
        let config = format!(
            "registry=https://npm.example.org/\n//npm.example.org/:_authToken={0}\n//other.example.org/:_authToken={0}\nfund=false\naudit=false\n",
            canary.text()
        );
        let home = home(&site, &[(".npmrc", &config), (".npm/_cacache/tmp/old", "kept")]);
        let run = site.run().policy(PACKAGES).flags(["--builtin-tool", "npm"]);
        let ended = script(
            &run,
            &home,
            "echo '{}' > package.json; npm install hello-world-pkg >&2; cat ~/.npmrc ~/.npm/_cacache/tmp/old
             ls ~/.npm/_cacache; node -e 'console.log(require(\"hello-world-pkg\")())'",
        );
        ended.says("hello from the world");
        ended.says("//npm.example.org/:_authToken=lgph_");
        ended.says("kept");
        ended.says("content-v2");
        assert!(ended.stderr.contains("`//other.example.org/:_authToken`"), "{ended}");
        let bearer = format!("Bearer {}", held.text());
        assert!(held.brought("npm.example.org", "authorization", &bearer) > 0, "{:?}", site.requests());
        held.is_nowhere(&ended);
        canary.is_not_in("what it said", format!("{ended}"));
        // The run's downloads are not in the caller's cache.
        assert_eq!(files_below(&home.join(".npm")).len(), 1, "{:?}", files_below(&home.join(".npm")));
    }
}

#[test]
fn pip_installs_by_the_callers_configuration() {
    let Some(site) = Site::for_test(&[Need::Program("python3"), Need::Program("pip")]) else { return };
    let (held, canary) = (Held::by(&site, "index"), Canary::draw());
    let config = format!("[global]\nindex-url = https://me:{}@pypi.example.org/simple/\n", canary.text());
    let home = home(&site, &[(".config/pip/pip.conf", &config), (".cache/pip/old", "kept")]);
    let run = site.run().policy(INDEX).flags(["--builtin-tool", "pip"]);
    let ended = script(
        &run,
        &home,
        "/usr/bin/python3 -m pip install -q --disable-pip-version-check --target=one hello-world-pkg; cat ~/.cache/pip/old
         PYTHONPATH=one /usr/bin/python3 -c 'import hello_world_pkg; print(hello_world_pkg.hello())'; cat ~/.config/pip/pip.conf",
    );
    ended.says("hello from the world");
    ended.says("me:lgph_");
    assert!(
        held.brought("pypi.example.org", "authorization", &held.basic("me")) > 0,
        "{:?}",
        site.requests()
    );
    held.is_nowhere(&ended);
    canary.is_not_in("what it said", format!("{ended}"));
    assert_eq!(files_below(&home.join(".cache")).len(), 1);
}

#[test]
fn cargo_fetches_by_the_callers_configuration_and_into_its_cache() {
    let needs = [Need::Home(".rustup/toolchains"), Need::Home(".cargo/bin/cargo")];
    let Some(site) = Site::for_test(&needs) else { return };
    let (held, canary) = (Held::by(&site, "crates-own"), Canary::draw());
    let config = "[registries.w]\nindex = \"sparse+https://crates.example.org/index/\"\n[build]\nrustc-wrapper = \"none\"\n";
    let token = format!("[registries.w]\ntoken = \"{}\"\n", canary.text());
    let home = home(
        &site,
        &[
            (".cargo/config.toml", config),
            (".cargo/credentials.toml", &token),
            (".cargo/registry/cache/old", "kept"),
        ],
    );
    let (rustup, programs) = (home_has(".rustup").expect("asked"), home_has(".cargo/bin").expect("asked"));
    let run = site.run().policy(CRATES).mount(&rustup).mount(&programs).flags(["--builtin-tool", "cargo"]);
    let run = run.flags(["--env".into(), format!("RUSTUP_HOME={}", rustup.display())]);
    let ended = script(
        &run,
        &home,
        &format!(
            "PATH={}:$PATH; mkdir -p p/src; cd p; echo 'fn main() {{}}' > src/main.rs
             printf '[package]\\nname = \"p\"\\n[dependencies]\\nhello-world-pkg = {{ version = \"1\", registry = \"w\" }}\\n[workspace]\\n' > Cargo.toml
             cargo fetch; cat ~/.cargo/credentials.toml ~/.cargo/registry/cache/old; ls ~/.cargo/registry/cache/*",
            programs.display()
        ),
    );
    for said in ["token = \"lgph_", "kept", "hello-world-pkg-1"] {
        ended.says(said);
    }
    held.is_nowhere(&ended);
    canary.is_not_in("what it said", format!("{ended}"));
    assert_eq!(files_below(&home.join(".cargo/registry")).len(), 1);
}

#[test]
fn gh_asks_by_the_callers_configuration() {
    let Some(site) = Site::for_test(&[Need::Program("gh")]) else { return };
    let (held, canary) = (Held::by(&site, "github"), Canary::draw());
    let hosts =
        format!("github.com:\n    user: me\n    oauth_token: {}\n    git_protocol: https\n", canary.text());
    let home = home(
        &site,
        &[(".config/gh/hosts.yml", &hosts), (".config/gh/config.yml", "# x\naliases:\n    me: api user\n")],
    );
    let run = site.run().flags(["--provider", "github", "--builtin-tool", "gh"]);
    let ended =
        script(&run, &home, "unset GH_TOKEN GITHUB_TOKEN; gh me > answer; cat ~/.config/gh/hosts.yml");
    ended.says("lgph_");
    assert!(site.requests().iter().any(|r| r.text("path") == "/user"), "{:?}", site.requests());
    held.is_nowhere(&ended);
    canary.is_not_in("what it said", format!("{ended}"));
}

/// Runs an agent whose only key is in its files.
fn agent(site: &Site, name: &str, provider: &str, home: &Path, command: &str) -> Option<Ended> {
    let agents = Agents::with(&[name])?;
    let run = site.run().flags(["--provider", provider, "--builtin-tool", name]).bare();
    let task =
        format!("LOCKGATE-TASK file={}/written content=kiwi command=cat written", site.workspace().display());
    let text = format!(
        "unset ANTHROPIC_API_KEY OPENAI_API_KEY CODEX_API_KEY; PATH='{}':$PATH; agent='{}'; prompt='{task}'\n\
         {command} </dev/null",
        agents.programs().display(),
        agents.program(name).display()
    );
    Some(script(&agents.shown_to(run), home, &text))
}

#[test]
fn codex_works_by_the_callers_configuration() {
    let Some(site) = Site::for_test(&[]) else { return };
    let (held, canary) = (Held::for_model(&site, "openai", "api.openai.com"), Canary::draw());
    let config = "openai_base_url = \"https://api.openai.com/v1\"\n[analytics]\nenabled = false\n[features]\nplugins = false\n";
    let auth = format!("{{\"OPENAI_API_KEY\": \"{}\"}}", canary.text());
    let home = home(&site, &[(".codex/config.toml", config), (".codex/auth.json", &auth)]);
    let command = "\"$agent\" exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \"$prompt\"; cat ~/.codex/auth.json";
    let Some(ended) = agent(&site, "codex", "openai", &home, command) else { return };
    ended.says("lgph_");
    assert!(site.workspace().join("written").is_file(), "{ended}");
    let bearer = format!("Bearer {}", held.text());
    assert!(held.brought("api.openai.com", "authorization", &bearer) > 1, "{:?}", site.requests());
    held.is_nowhere(&ended);
    canary.is_not_in("what it said", format!("{ended}"));
}

#[test]
fn claude_works_by_the_callers_configuration() {
    let Some(site) = Site::for_test(&[]) else { return };
    let (held, canary) = (Held::for_model(&site, "anthropic", "api.anthropic.com"), Canary::draw());
    let settings = format!(
        "{{\"env\": {{\"ANTHROPIC_API_KEY\": \"{}\", \"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC\": \"1\"}}, \
           \"permissions\": {{\"allow\": [\"Write\", \"Bash\", \"Edit\", \"Read\"]}}}}",
        canary.text()
    );
    let home = home(&site, &[(".claude/settings.json", &settings), (".claude/CLAUDE.md", "Be brief.\n")]);
    let command = "\"$agent\" -p \"$prompt\"; cat ~/.claude/settings.json";
    let Some(ended) = agent(&site, "claude", "anthropic", &home, command) else { return };
    ended.says("lgph_");
    assert!(site.workspace().join("written").is_file(), "{ended}");
    let memory = site.requests().iter().any(|request| request.text("body").contains("Be brief."));
    assert!(memory, "{:?}", site.requests());
    assert!(held.brought("api.anthropic.com", "x-api-key", held.text()) > 1, "{:?}", site.requests());
    held.is_nowhere(&ended);
    canary.is_not_in("what it said", format!("{ended}"));
}

/// Starts an agent at a terminal, for a caller with an empty home, does these steps there, and hangs up. Its environment is
/// left in the workspace.
fn at_terminal(site: &Site, name: &str, provider: &str, steps: &[&str]) -> Option<Ended> {
    let agents = Agents::with(&[name])?;
    let run = agents.shown_to(site.run().flags(["--provider", provider, "--builtin-tool", name]));
    let text = format!(
        "env >given; PATH='{}':$PATH; exec '{}'",
        agents.programs().display(),
        agents.program(name).display()
    );
    let ended = run.at_terminal(&home(site, &[]), &text, &[steps, &["signal 1"]].concat());
    // 128 + SIGHUP: it did all the steps, and was not killed for being late.
    ended.says("\nended=129 \n");
    Some(ended)
}

#[test]
fn claude_starts_at_a_terminal_without_a_login() {
    for site in Site::for_everyone(&[Need::Program("python3")]) {
        let held = Held::for_model(&site, "anthropic", "api.anthropic.com");
        // Whether the folder is trusted; then a line for the model.
        let steps = [
            "wait Esc",
            "sleep 1",
            r"type \x1b[B",
            "wait Yes",
            r"type \r",
            "wait effort",
            "type hello",
            "wait hello",
            r"type \r",
            "wait world",
        ];
        let Some(ended) = at_terminal(&site, "claude", "anthropic", &steps) else { return };
        for never in ["denied", "Select", "Not logged in"] {
            assert!(!ended.stdout.contains(never), "{never}: {ended}");
        }
        assert!(held.brought("api.anthropic.com", "x-api-key", held.text()) > 0, "{:?}", site.requests());
        held.is_nowhere(&ended);
    }
}

#[test]
fn codex_starts_at_a_terminal_without_a_login() {
    for site in Site::for_everyone(&[Need::Program("python3")]) {
        let held = Held::for_model(&site, "openai", "api.openai.com");
        let Some(ended) = at_terminal(&site, "codex", "openai", &["wait Ask Codex"]) else {
            return;
        };
        assert!(!ended.stdout.contains("Sign in"), "{ended}");
        held.is_nowhere(&ended);
    }
}

/// Every file that a tool may copy in, with a secret in each possible place. The last ones cannot be parsed.
fn everything(secret: &str) -> Vec<(&'static str, String)> {
    let pair = data_encoding::BASE64.encode(format!("me:{secret}").as_bytes());
    vec![
        (
            ".gitconfig",
            format!(
                "[a]\n\tb = c\n[github]\n\ttoken = {secret}\n[http]\n\textraHeader = Authorization: Basic {pair}\n[url \"https://{secret}@h.example/\"]\n\tinsteadOf = h:\n[alias]\n\tx = !curl -H 'Private-Token: {secret}' h\n# {secret}\n"
            ),
        ),
        (
            ".config/git/config",
            format!("[credential]\n\thelper = !echo password={secret}\n[core]\n\taskPass = {secret}\n"),
        ),
        (".config/git/ignore", format!("https://me:{secret}@h.example/\n")),
        (".git-credentials", format!("https://me:{secret}@h.example\n")),
        (".config/git/credentials", format!("https://{secret}:@h.example\n")),
        (
            ".claude/settings.json",
            format!(
                "{{\"env\": {{\"ANTHROPIC_API_KEY\": \"{secret}\", \"X\": \"{secret}\"}}, \"apiKeyHelper\": \"echo {secret}\", \"{secret}\": 1}}"
            ),
        ),
        (".claude/.credentials.json", format!("{{\"claudeAiOauth\": {{\"accessToken\": \"{secret}\"}}}}")),
        (".claude/CLAUDE.md", format!("Use ghp_{secret}.\n")),
        (".claude/commands/a/b.md", format!("curl https://me:{secret}@h.example/\n")),
        (
            ".codex/config.toml",
            format!(
                "# {secret}\n[model_providers.x]\nbase_url = \"https://me:{secret}@h.example/\"\nhttp_headers = {{ Authorization = \"Bearer {secret}\" }}\n[mcp_servers.y]\nargs = [\"--api-key\", \"{secret}\"]\nenv = {{ Y_TOKEN = \"{secret}\" }}\n"
            ),
        ),
        (".codex/auth.json", format!("{{\"OPENAI_API_KEY\": \"{secret}\"}}")),
        (
            ".pi/agent/auth.json",
            format!("{{\"anthropic\": {{\"type\": \"api_key\", \"key\": \"{secret}\"}}}}"),
        ),
        (".pi/agent/models.json", format!("{{\"providers\": {{\"x\": {{\"apiKey\": \"{secret}\"}}}}}}")),
        (
            ".npmrc",
            format!(
                "//h.example/:_authToken={secret}\n//h.example/:_password={pair}\n_auth={pair}\n; {secret}\n"
            ),
        ),
        (
            ".config/pip/pip.conf",
            format!(
                "[global]\nindex-url = https://{secret}@h.example/simple\npassword = {secret}\n# {secret}\n"
            ),
        ),
        (".config/uv/uv.toml", format!("[[index]]\nurl = \"https://me:{secret}@h.example/simple\"\n")),
        (
            ".cargo/config.toml",
            format!(
                "[registry]\ntoken = \"{secret}\"\n[registries.r]\nindex = \"sparse+https://me:{secret}@h.example/\"\n"
            ),
        ),
        (".cargo/credentials.toml", format!("[registries.r]\ntoken = \"{secret}\"\n")),
        (".config/gh/hosts.yml", format!("h.example:\n    oauth_token: {secret}\n# {secret}\n")),
        (".config/gh/config.yml", format!("a: |\n  {secret}\n")),
        (".pip/pip.conf", format!("{secret}\n")),
        (".pi/agent/settings.json", format!("{{\"a\": {secret}}}")),
    ]
}

#[test]
fn a_secret_in_any_of_the_files_is_nowhere() {
    for site in Site::for_everyone(&[Need::Program("sh")]) {
        let Some(probe) = site.probe() else { return };
        let canary = Canary::draw();
        let files = everything(canary.text());
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, content)| (*path, content.as_str())).collect();
        let home = home(&site, &files);
        symlink(home.join(".npmrc"), home.join(".codex/AGENTS.md")).expect("room");
        let tools = ["claude", "codex", "pi", "git", "uv", "pip", "npm", "cargo", "gh"];
        let run = site.run().flags(tools.iter().flat_map(|tool| ["--builtin-tool", tool]));
        let (masked, probe) = (canary.masked(), probe.display().to_string());
        let text = format!(
            "cd ~; find . -type f | sort; cat .gitconfig; env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
             {probe} walk-for {masked} everyone \"$HOME\" /tmp /run /dev /var /etc || true"
        );
        let ended = script(&run, &home, &text);
        ended.says("\"outcome\":\"absent\"");
        // The control: settings without credentials are there.
        ended.says("./.gitconfig");
        ended.says("./.npmrc");
        ended.says("insteadof");
        canary.is_not_in("stdout", &ended.stdout);
        canary.is_not_in("stderr", &ended.stderr);
        for said in [
            "`~/.pip/pip.conf` does not enter",
            "`~/.codex/AGENTS.md` does not enter: it is, or leads through, a symbolic link",
            "`lockgate creds set anthropic`",
            "`~/.cargo/credentials.toml`: left out `registries.r.token`",
        ] {
            assert!(ended.stderr.contains(said), "{said}: {ended}");
        }
        let mut looked = 0;
        for file in files_below(&site.state()).into_iter().chain(files_below(&site.workspace())) {
            canary.is_not_in(&file.display().to_string(), fs::read(&file).unwrap_or_default());
            looked += 1;
        }
        assert!(looked > 2, "{looked} files");
    }
}

#[test]
fn an_unknown_tool_and_a_backend_without_files_are_refused() {
    let Some(site) = Site::for_test(&[]) else { return };
    let home = home(&site, &[]);
    let unknown = script(&site.run().flags(["--builtin-tool", "nonesuch"]), &home, "true");
    assert!(unknown.code == 2 && unknown.stderr.contains("claude, codex, pi, git"), "{unknown}");
    let process = site.run().flags(["--builtin-tool", "git", "--backend", "process"]);
    let process = script(&process, &home, "true");
    assert!(process.code == 2 && process.stderr.contains("`builtin_tools`"), "{process}");
    let nothing = script(&site.run().flags(["--builtin-tool", "git"]), &home, "ls -A ~; echo empty");
    nothing.says("empty");
}
