//! Audit chains. Without the key, nobody can make a chain that verifies, is closed, and says something else than the signed one.

/// A chain that a run wrote, and the public half of its signing key. The private half is gone.
const WRITTEN: &str = include_str!("../../../../fuzz/seeds/audit_verify/written.jsonl");
const KEY: &str = include_str!("../../../../fuzz/seeds/audit_verify.pub");

/// Verifies the input as an audit chain, as it is and with its hashes made good.
pub fn audit_verify(bytes: &[u8]) {
    check(bytes);
    check(rechained(bytes).as_bytes());
}

fn check(chain: &[u8]) {
    let Ok(report) = egress::verify(chain, KEY.trim()) else { return };
    let lines = chain.split(|b| *b == b'\n').filter(|line| !line.is_empty()).count() as u64;
    assert_eq!(report.records, lines);
    assert!(report.signatures <= report.records && report.unsigned_tail <= report.records);
    if report.closed && report.records > 0 {
        let text = std::str::from_utf8(chain).expect("a chain that holds is text");
        assert!(
            bodies(text).eq(bodies(WRITTEN)),
            "a chain nobody signed holds and is closed: {report:?}\n{text}"
        );
    }
}

/// Returns each record without its signature: two spellings of one signature are one signature.
fn bodies(chain: &str) -> impl Iterator<Item = &str> {
    chain
        .lines()
        .map(|line| line.split_once("\",\"sig\":\"").map_or(line.trim_end_matches("\"}"), |(body, _)| body))
}

/// Returns the same lines with numbers and hashes that fit, as anybody can make without the key.
fn rechained(bytes: &[u8]) -> String {
    let mut previous = "0".repeat(64);
    let mut out = String::new();
    for line in String::from_utf8_lossy(bytes).lines() {
        let Ok(serde_json::Value::Object(mut record)) = serde_json::from_str(line) else { continue };
        let signature = record.remove("sig");
        record.remove("hash");
        record.insert("seq".into(), out.lines().count().into());
        record.insert("prev".into(), previous.clone().into());
        let body = serde_json::Value::Object(record).to_string();
        let hash = egress::digest(body.as_bytes());
        out.push_str(body.strip_suffix('}').unwrap_or(&body));
        out.push_str(&format!(",\"hash\":\"{hash}\""));
        if let Some(serde_json::Value::String(signature)) = signature {
            out.push_str(&format!(",\"sig\":\"{signature}\""));
        }
        out.push_str("}\n");
        previous = hash;
    }
    out
}
