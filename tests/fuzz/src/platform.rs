//! The platform from which a sidecar fetches its credentials. It reads as strictly as the upstream: octets of an agent must not
//! reach it, except as a question of the sidecar's own.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use credential::Secret;
use data_encoding::{BASE64_NOPAD, HEXLOWER};
use egress::{CredentialConfig, PlatformPlace, SigningKey};

use crate::octets::contains;
use crate::strict::{Reading, end_of_request};

/// The fewest octets of a secret that are a leak: fewer may stand in an answer by chance.
const SHORTEST_LEAK: usize = 12;

/// The placeholders of its two providers. Each ends with the letter that placeholders begin with, so two may overlap.
const ANY: &str = "lgph_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaal";
pub(crate) const MODEL: &str = "lgph_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbl";

/// The platform: its secret, and the parts of it that are a leak.
pub(crate) struct Platform {
    secret: String,
    parts: HashSet<Vec<u8>>,
}

impl Platform {
    /// Makes a platform with a secret that no input can hold: it differs in each process.
    #[must_use]
    pub(crate) fn new() -> Self {
        let (_, random) = SigningKey::generate().expect("there is randomness");
        let secret = egress::digest(random.expose())[..48].to_owned();
        Self { parts: parts(secret.as_bytes()), secret }
    }

    /// Returns the sidecar's configuration for this platform, with the placeholders of its two credentials.
    pub(crate) fn credential_config(&self) -> CredentialConfig {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let secret = self.secret.clone();
        std::thread::spawn(move || answer(ours, &secret));
        let placeholder = |text: &str, provider: &str| {
            (text.parse().expect("a placeholder"), provider.parse().expect("a provider's name"))
        };
        CredentialConfig {
            platform: Some(PlatformPlace::Inherited(theirs, Secret::from_text("token".into()))),
            own: None,
            generation: egress::Generation::default(),
            placeholders: vec![placeholder(ANY, "any"), placeholder(MODEL, "model")],
            exposed: Vec::new(),
            organisation: None,
            configure_once: Some(Secret::from_text(self.secret.clone())),
        }
    }

    /// Returns the secret, for checks that it arrived.
    #[must_use]
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Returns a text in which the octets 0 to 31 are replaced by the secret in some form.
    #[must_use]
    pub(crate) fn put_secrets_into(&self, text: &[u8]) -> Vec<u8> {
        let secret = self.secret.as_bytes();
        let replaced = |octet: &u8| match octet {
            0..8 => secret.to_vec(),
            8..16 => HEXLOWER.encode(secret).into_bytes(),
            16..32 => BASE64_NOPAD.encode(secret).into_bytes(),
            octet => vec![*octet],
        };
        text.iter().flat_map(replaced).collect()
    }

    /// Panics if an answer holds a part of the secret that was not in the question.
    ///
    /// # Panics
    /// When an answer does.
    pub(crate) fn assert_hidden(&self, question: &[u8], answer: &[u8]) {
        let part = answer
            .windows(SHORTEST_LEAK)
            .find(|part| self.parts.contains(*part) && !contains(question, part));
        assert!(
            part.is_none(),
            "the answer holds {part:?} of the secret: {:?}",
            String::from_utf8_lossy(answer)
        );
    }
}

/// Returns all parts that are a leak: of the secret as it is, in hexadecimal, and in base64.
fn parts(secret: &[u8]) -> HashSet<Vec<u8>> {
    let encoded = (0..3).map(|before| {
        let text = BASE64_NOPAD.encode(&[&[0; 2][..before], secret].concat());
        // Leaves out the characters that also hold bits of the neighbours.
        text.as_bytes()[(before * 8).div_ceil(6)..(before + secret.len()) * 8 / 6].to_vec()
    });
    let forms = [secret.to_vec(), HEXLOWER.encode(secret).into_bytes()].into_iter().chain(encoded);
    forms.flat_map(|form| form.windows(SHORTEST_LEAK).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
}

/// Answers the sidecar's questions, one after the other.
fn answer(mut link: UnixStream, secret: &str) {
    let mut held = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        match end_of_request(&held, "platform") {
            Reading::Open => {}
            Reading::Bad(why) => {
                panic!(
                    "the platform was sent what it should not be: {why}: {:?}",
                    String::from_utf8_lossy(&held)
                )
            }
            Reading::Ends(end) => {
                let question = String::from_utf8_lossy(&held[..end]).into_owned();
                assert!(held.len() == end, "the platform was asked two questions at once: {question:?}");
                held.clear();
                let (status, body) = reply(&question, secret);
                let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                link.write_all(answer.as_bytes()).expect("the sidecar reads");
            }
        }
        match link.read(&mut buffer).expect("the sidecar asks") {
            0 => return,
            read => held.extend(&buffer[..read]),
        }
    }
}

fn reply(question: &str, secret: &str) -> (u16, String) {
    let mut words = question.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    match (method, path) {
        ("GET", "/internal/credentials/any" | "/internal/credentials/model") => {
            (200, format!(r#"{{"fields":{{"access_token":"{secret}"}}}}"#))
        }
        ("POST", "/internal/credentials/any/refused" | "/internal/credentials/model/refused") => {
            (200, String::new())
        }
        ("GET", "/internal/run-history") => (200, "[]".into()),
        _ => panic!("the platform was asked {question:?}"),
    }
}
