//! A client that sends an encrypted ClientHello, as browsers do to any server (GREASE), is judged by the name it shows outside. E13.

use std::path::PathBuf;

use lockgate_clients::{Canary, Ended, Site};
use serde_json::{Value, json};

/// Makes a request by the world's HTTP/2 client inside a run, with such a ClientHello, to a host at an address of another's.
fn ask(site: &Site, policy: &str, authority: &str, host: &str, at: &str) -> Option<Ended> {
    let client = site.h2_client()?;
    let request = json!({ "host": host, "path": "/hello", "ech": true });
    let script = format!("WORLD_CA={authority} {} {at}:443 '{request}' || echo refused", client.display());
    Some(site.run().policy(policy).mount(&worlds(site)).bare().script(&script))
}

/// The authority that verifies a spliced connection.
fn worlds(site: &Site) -> PathBuf {
    site.world().ca_directory().join("ca.pem")
}

#[test]
fn the_name_outside_is_judged_and_carried() {
    let canary = Canary::draw();
    let opened = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/*\"]\n\
                  inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\n";
    let spliced = "[[egress.allow]]\nhost = \"protocols.example\"\n";
    for (policy, authority) in [(opened, "$NODE_EXTRA_CA_CERTS"), (spliced, "")] {
        let Some(site) = Site::for_test(&[]) else { return };
        site.keep("one", "access_token", canary.text());
        let worlds = worlds(&site).display().to_string();
        let authority = if authority.is_empty() { &worlds } else { authority };
        let Some(ended) = ask(&site, policy, authority, "protocols.example", "protocols.example") else {
            return;
        };
        let told: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended}"));
        assert_eq!((&told["ech"], &told["status"]), (&json!("Grease"), &json!(200)), "{ended}");
        let arrived = site.requests();
        assert_eq!(arrived.len(), 1, "{ended}");
        let bearer = format!("Bearer {}", canary.text());
        assert_eq!(arrived[0].header("authorization") == Some(&bearer), policy == opened, "{arrived:?}");
        // Another name outside than the host's is refused as ever.
        let Some(ended) = ask(&site, policy, authority, "www.example.org", "protocols.example") else {
            return;
        };
        ended.says("refused");
        assert!(ended.stderr.contains("lockgate: denied"), "{ended}");
        assert_eq!(site.requests().len(), 1, "{ended}");
    }
}
