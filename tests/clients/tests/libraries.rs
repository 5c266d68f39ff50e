//! The libraries of agents: Node's `fetch`, Python's `httpx` and `aiohttp`, and OpenSSL itself. The first and the third ignore proxy
//! variables. S0.28, S4.25; E08.

use std::path::PathBuf;
use std::time::Duration;

use lockgate_clients::{Ended, Need, Run, Site};

const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Prints the body, or the error, its cause and its duration, measured by the client itself.
const NODE: &str = "const begun = Date.now();
fetch(process.argv[1]).then((r) => r.text()).then(console.log, (e) => {
  console.log('refused:', e.message, e.cause && (e.cause.message || e.cause.code), 'ms=' + (Date.now() - begun));
  process.exit(3);
});";
const HTTPX: &str = "import httpx, sys, time
begun = time.monotonic()
try:
    print(httpx.get(sys.argv[1]).text)
except httpx.HTTPError as error:
    print('refused:', type(error).__name__, error, 'ms=%d' % ((time.monotonic() - begun) * 1000))
    sys.exit(3)";
const AIOHTTP: &str = "import aiohttp, asyncio, sys, time
async def main():
    begun = time.monotonic()
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(sys.argv[1]) as response:
                print(await response.text())
    except aiohttp.ClientError as error:
        print('refused:', type(error).__name__, error, 'ms=%d' % ((time.monotonic() - begun) * 1000))
        sys.exit(3)
asyncio.run(main())";

fn venv() -> PathBuf {
    std::env::var_os("LOCKGATE_TEST_VENV").expect("`Need::Venv` was asked for").into()
}

/// Checks the client's report of its refusal, which it timed itself: the interpreter's start does not count. A pause of the machine makes
/// one attempt slow, not three.
fn refused_fast(run: &Run<'_>, attempt: &str, words: &[&str]) -> Ended {
    let mut slow = Vec::new();
    while slow.len() < 3 {
        let ended = run.attempt(attempt);
        ended.fails_within(Duration::from_secs(60), words);
        let took = ended.stdout.split("ms=").nth(1).and_then(|rest| rest.split_whitespace().next());
        let took: u64 = took.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
        if took < 1000 {
            return ended;
        }
        slow.push((took, ended));
    }
    panic!("refused after so many ms: {slow:?}");
}

fn allowed(run: &Run<'_>, command: &str, marker: &str) {
    for scheme in ["http", "https"] {
        run.attempt(&format!("{command} {scheme}://api.example.com/{marker}"))
            .says(&format!("\"path\":\"/{marker}\""));
    }
}

#[test]
fn node_fetch() {
    for site in Site::for_everyone(&[Need::Program("node")]) {
        let script = site.workspace().join("fetch.js");
        std::fs::write(&script, NODE).expect("room for a script");
        let command = "node -e \"$(cat fetch.js)\"";
        let run =
            site.run().allow("api.example.com").flags(["--env", &format!("NODE_EXTRA_CA_CERTS={BUNDLE}")]);
        for run in [run.clone(), run.bare()] {
            allowed(&run, command, "node");
            let attempt = format!("{command} https://www.example.org/");
            let ended = refused_fast(&run, &attempt, &["ENOTFOUND www.example.org"]);
            assert!(ended.stderr.contains("denied www.example.org"), "{ended}");
        }
        let hosts =
            site.visits().into_iter().filter(|record| record.text("sni") == "www.example.org").count();
        assert_eq!(hosts, 0, "{:?}", site.visits());
    }
}

#[test]
fn python_httpx() {
    let Some(site) = Site::for_test(&[Need::Venv]) else { return };
    let run = site
        .run()
        .allow("api.example.com")
        .mount(&venv())
        .flags(["--env", &format!("SSL_CERT_FILE={BUNDLE}")]);
    std::fs::write(site.workspace().join("get.py"), HTTPX).expect("room for a script");
    let command = format!("{}/bin/python get.py", venv().display());
    for run in [run.clone(), run.clone().bare()] {
        allowed(&run, &command, "httpx");
    }
    let attempt = format!("{command} https://www.example.org/");
    refused_fast(&run, &attempt, &["403"]);
    refused_fast(&run.bare(), &attempt, &["ConnectError"]);
}

#[test]
fn python_aiohttp() {
    let Some(site) = Site::for_test(&[Need::Venv]) else { return };
    let run = site.run().allow("api.example.com").mount(&venv());
    std::fs::write(site.workspace().join("get.py"), AIOHTTP).expect("room for a script");
    let command = format!("{}/bin/python get.py", venv().display());
    for run in [run.clone(), run.bare()] {
        allowed(&run, &command, "aiohttp");
        refused_fast(&run, &format!("{command} https://www.example.org/"), &["www.example.org"]);
    }
}

#[test]
fn openssl_s_client() {
    for site in Site::for_everyone(&[Need::Program("openssl")]) {
        let run = site.run().allow("api.example.com").bare();
        let ask = "printf 'GET /openssl HTTP/1.1\\r\\nHost: api.example.com\\r\\nConnection: close\\r\\n\\r\\n' | \
                   openssl s_client -quiet -verify_return_error -verify_hostname api.example.com -connect api.example.com:443";
        run.script(&format!("{ask} -servername api.example.com")).says("\"path\":\"/openssl\"");
        // Another name, and no name: the answer is an alert, and nothing is forwarded.
        for name in ["-servername www.example.org", "-noservername"] {
            let ended = run.fastest(&format!("openssl s_client -connect api.example.com:443 {name}"));
            ended.fails_fast(&["alert access denied"]);
        }
        run.fastest("openssl s_client -connect www.example.org:443").fails_fast(&["www.example.org"]);
        let other =
            site.visits().into_iter().filter(|record| record.text("sni") == "www.example.org").count();
        assert_eq!(other, 0, "{:?}", site.visits());
        let connections = site.visits().into_iter().filter(|record| record.event == "connect").count();
        assert_eq!(connections, 1, "{:?}", site.visits());
    }
}
