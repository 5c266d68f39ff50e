//! Java reads no certificate bundle and no variable, only a key store of its own: where TLS is terminated it trusts the run's authority
//! without being asked, and the host's authorities still; where nothing is terminated its store is the host's. S4.65, S4.67; C18.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use lockgate_clients::{Canary, Ended, Need, Run, Site, run_to_end};

const NEEDS: &[Need] = &[Need::Program("javac"), Need::Program("keytool")];
/// A virtual machine starts slowly, and there are several.
const LIMIT: Duration = Duration::from_secs(240);
const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://protocols.example/*"]
env = "ONE_TOKEN"
inject = { header = "authorization", value = "Bearer {{access_token}}" }
[[egress.allow]]
host = "www.example.org"
[[egress.allow]]
host = "unknown-ca.tls.example"
"#;
const CREDENTIALED: &str = "https://protocols.example/echo-auth?as=plain";
const SPLICED: &str = "https://www.example.org/spliced";

/// The path of a distribution's store for all its runtimes.
const SHARED: &str = "/etc/ssl/certs/java/cacerts";
/// The world covers the store's folder, and copies no folder below it.
const IN_PLACE: &str = r#"mkdir -p /etc/ssl/certs/java; cp "$STORE" /etc/ssl/certs/java/cacerts; exec "$@""#;

/// Fetches each URI by both of Java's own clients, and prints the issuer of the certificate it was shown.
const FETCH: &str = r#"
import java.net.URI;
import java.net.http.*;
import javax.net.ssl.HttpsURLConnection;
import java.security.cert.X509Certificate;

class Fetch {
    interface Attempt { String make() throws Exception; }

    public static void main(String[] uris) {
        for (String text : uris) {
            URI uri = URI.create(text);
            say("client", uri, () -> {
                HttpRequest request = HttpRequest.newBuilder(uri).build();
                HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
                return answer.statusCode() + " " + issuer(answer.sslSession().get().getPeerCertificates()[0]) + " " + answer.body();
            });
            say("connection", uri, () -> {
                HttpsURLConnection connection = (HttpsURLConnection) uri.toURL().openConnection();
                connection.connect();
                String issuer = issuer(connection.getServerCertificates()[0]);
                String body = new String(connection.getInputStream().readAllBytes());
                return connection.getResponseCode() + " " + issuer + " " + body;
            });
        }
    }

    static void say(String client, URI uri, Attempt attempt) {
        try {
            System.out.println(client + " " + uri.getHost() + " " + attempt.make());
        } catch (Exception failure) {
            System.out.println(client + " " + uri.getHost() + " failed " + failure);
        }
    }

    static String issuer(java.security.cert.Certificate leaf) {
        return ((X509Certificate) leaf).getIssuerX500Principal().getName().replace(' ', '_');
    }
}
"#;

/// Returns every installed `java` with a compiler beside it, each once.
fn runtimes() -> Vec<PathBuf> {
    let installed = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten().map(|home| home.path());
    let programs = installed.map(|home| home.join("bin/java")).chain([PathBuf::from("/usr/bin/java")]);
    let found = programs.filter_map(|program| fs::canonicalize(program).ok());
    let found: BTreeSet<PathBuf> = found.filter(|java| java.with_file_name("javac").is_file()).collect();
    assert!(!found.is_empty(), "no runtime with a compiler");
    found.into_iter().collect()
}

/// Runs `script` inside for each runtime, with its program in `$java` and no variable of proxies or authorities.
fn each_runtime(site: &Site, run: &Run<'_>, script: &str) -> Ended {
    fs::write(site.workspace().join("Fetch.java"), FETCH).expect("room for a program");
    let list: Vec<_> = runtimes().iter().map(|java| java.display().to_string()).collect();
    let looped = format!("for java in {}; do {script}\ndone", list.join(" "));
    beside_store(
        site,
        run,
        IN_PLACE,
        &["env", "-i", "PATH=/usr/bin:/bin", "HOME=/tmp", "sh", "-euc", &looped],
    )
}

/// Runs `words` inside, from a shell in the world that runs `before` first.
fn beside_store(site: &Site, run: &Run<'_>, before: &str, words: &[&str]) -> Ended {
    let inside = run.command(words);
    let product = inside.get_args().skip_while(|word| *word != OsStr::new("--")).skip(1);
    let mut command = site.world().command("/bin/sh");
    command.args(["-euc", before, "sh"]).args(product).current_dir(site.workspace());
    command.env("XDG_STATE_HOME", site.state()).env("STORE", store(site));
    run_to_end(&mut command, LIMIT)
}

/// Returns the host's store, from before the world covers it.
fn store(site: &Site) -> PathBuf {
    site.file("cacerts", fs::read(SHARED).expect("the store of the distribution's runtimes"))
}

/// Returns the lines that begin with `client` or `connection` and the host: one for each client of each runtime.
fn lines_about<'a>(ended: &'a Ended, host: &str) -> Vec<&'a str> {
    let of =
        |line: &&str| ["client", "connection"].iter().any(|by| line.starts_with(&format!("{by} {host} ")));
    let lines: Vec<&str> = ended.stdout.lines().filter(of).collect();
    assert_eq!(lines.len(), 2 * runtimes().len(), "{host}: {ended}");
    lines
}

#[test]
fn what_is_opened_is_trusted_and_the_credential_stays_outside() {
    // S4.67, C18
    for site in Site::for_everyone(NEEDS) {
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        let run = site.run().policy(POLICY);
        let ended = each_runtime(&site, &run, &format!("\"$java\" Fetch.java '{CREDENTIALED}'"));
        for line in lines_about(&ended, "protocols.example") {
            assert!(line.ends_with(&format!("Bearer {}", "*".repeat(canary.text().len()))), "{ended}");
            assert!(line.contains(" 200 ") && !line.contains("Lockgate_test_world"), "{ended}");
        }
        canary.is_not_in("what was said", format!("{ended}"));
        let sent = format!("Bearer {}", canary.text());
        let requests = site.requests();
        assert_eq!(requests.len(), 2 * runtimes().len(), "{requests:?}");
        assert!(
            requests.iter().all(|request| request.header("authorization") == Some(&sent)),
            "{requests:?}"
        );
        assert_eq!(ended.code, 0, "{ended}");
    }
}

#[test]
fn what_is_spliced_is_verified_by_the_authorities_of_the_host() {
    // S4.67: a certificate that none of them has signed is refused.
    for site in Site::for_everyone(NEEDS) {
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        let run = site.run().policy(POLICY);
        let script = format!("\"$java\" Fetch.java '{SPLICED}' https://unknown-ca.tls.example/");
        let ended = each_runtime(&site, &run, &script);
        for line in lines_about(&ended, "www.example.org") {
            assert!(line.contains(" 200 CN=Lockgate_test_world"), "{ended}");
        }
        for line in lines_about(&ended, "unknown-ca.tls.example") {
            assert!(line.contains("failed") && line.contains("PKIX path building failed"), "{ended}");
        }
        assert!(site.requests().iter().all(|request| request.header("authorization").is_none()));

        // The control: our store knows the world's authority, and the host's does not.
        let plain = each_runtime(&site, &site.run().allow("www.example.org"), &script);
        for line in lines_about(&plain, "www.example.org") {
            assert!(line.contains("PKIX path building failed"), "{plain}");
        }
    }
}

/// Returns the number in `Your keystore contains N entries`.
fn entries(ended: &Ended) -> Vec<usize> {
    let told = |line: &str| line.strip_prefix("Your keystore contains ")?.split(' ').next()?.parse().ok();
    ended.stdout.lines().filter_map(told).collect()
}

#[test]
fn the_store_is_whole_and_has_one_authority_more_than_the_bundle() {
    const LIST: &str = "LC_ALL=C \"${java%/*}/keytool\" -list -cacerts -storepass changeit";
    for site in Site::for_everyone(NEEDS) {
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        let mut bundle = site.world().command("/bin/sh");
        bundle.args(["-c", "grep -c 'BEGIN CERTIFICATE' /etc/ssl/certs/ca-certificates.crt"]);
        let bundle: usize = run_to_end(&mut bundle, LIMIT).stdout.trim().parse().expect("a number");
        let run = site.run().policy(POLICY);
        // With a password keytool checks the digest, and prints no number of entries if it is wrong.
        let ended = each_runtime(&site, &run, LIST);
        assert_eq!((ended.code, entries(&ended)), (0, vec![bundle + 1; runtimes().len()]), "{ended}");
        let wrong = each_runtime(&site, &run, &format!("{LIST}s || echo refused"));
        assert_eq!(entries(&wrong), Vec::<usize>::new(), "{wrong}");
        assert_eq!(wrong.stdout.matches("refused\n").count(), runtimes().len(), "{wrong}");

        // Where nothing is terminated, the host's own store is shown.
        let sum = |run: &Run<'_>| beside_store(&site, run, IN_PLACE, &["sha256sum", SHARED]);
        let theirs = run_to_end(std::process::Command::new("sha256sum").arg(SHARED), LIMIT);
        let plain = sum(&site.run().allow("www.example.org"));
        assert_eq!((plain.code, &plain.stdout), (0, &theirs.stdout), "{plain}");
        // Nobody inside can write to the store that is mounted over it.
        let written = beside_store(&site, &run, IN_PLACE, &["sh", "-c", &format!("echo x > {SHARED}")]);
        assert_ne!(written.code, 0, "{written}");
        // Without a provider, a rule with a path mounts the store as well.
        let path = "[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\n";
        for opened in [sum(&run), sum(&site.run().policy(path))] {
            assert!(opened.code == 0 && opened.stdout != theirs.stdout, "{opened}");
        }
    }
}

#[test]
fn a_runtime_with_a_store_of_its_own_gets_the_same() {
    // For root alone: only a user who may mount can replace the machine's `/opt`.
    const OWN: &str = r#"mount -t tmpfs none /opt
        for place in /opt/new/lib/security /opt/old/jre/lib/security /opt/none/lib; do mkdir -p $place; done
        for place in /opt/new/lib/security /opt/old/jre/lib/security; do cp "$STORE" $place/cacerts; done
        ln -s new /opt/current; ln -s /nowhere/cacerts /opt/none/lib/security; "#;
    let Some(site) = Site::for_test(&[NEEDS, &[Need::Root]].concat()) else { return };
    let canary = Canary::draw();
    site.keep("one", "access_token", canary.text());
    let run = site.run().policy(POLICY);
    let sums = "cd /opt; sha256sum */lib/security/cacerts */jre/lib/security/cacerts /etc/ssl/certs/java/cacerts || true";
    let ended = beside_store(&site, &run, &format!("{OWN}{IN_PLACE}"), &["sh", "-c", sums]);
    let lines: Vec<(&str, &str)> = ended.stdout.lines().filter_map(|line| line.split_once("  ")).collect();
    let places: Vec<&str> = lines.iter().map(|line| line.1).collect();
    let expected =
        ["current/lib/security/cacerts", "new/lib/security/cacerts", "old/jre/lib/security/cacerts", SHARED];
    assert_eq!(places, expected, "{ended}");
    assert!(lines.iter().all(|line| line.0 == lines[0].0), "{ended}");
}

#[test]
fn a_runtime_that_the_search_path_leads_to_gets_the_same() {
    for site in Site::for_everyone(NEEDS) {
        let canary = Canary::draw();
        site.keep("one", "access_token", canary.text());
        for runtime in ["led-to", "other"] {
            let folder = site.workspace().join(runtime).join("lib/security");
            fs::create_dir_all(&folder).expect("room for a store");
            fs::write(folder.join("cacerts"), "its own").expect("room for a store");
        }
        let path = format!("PATH={}/bin:/usr/bin:/bin", site.workspace().join("led-to").display());
        let run = site.run().policy(POLICY).flags(["--env", &path]);
        let ended = run
            .script("grep -rlx 'its own' led-to other; head -c 4 led-to/lib/security/cacerts | od -An -tx1");
        assert_eq!(ended.stdout, "other/lib/security/cacerts\n fe ed fe ed\n", "{ended}");
    }
}
