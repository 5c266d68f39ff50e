//! A unique secret: 40 random octets of text. It is passed to the probe masked, so that the probe can search for it.
//! A test that searches for it must never put it on a command line unmasked.

use std::fs::File;
use std::io::Read;

/// A random secret.
#[derive(Debug)]
pub struct Canary(String);

impl Canary {
    /// Draws a new secret.
    ///
    /// # Panics
    /// When the machine gives no random octets.
    #[must_use]
    pub fn draw() -> Self {
        let mut random = [0u8; 18];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).expect("random octets");
        let text: String = random.iter().map(|octet| format!("{octet:02x}")).collect();
        Self(format!("CNRY{text}"))
    }

    /// The secret itself.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The masked secret, which a search for the secret does not find.
    #[must_use]
    pub fn masked(&self) -> String {
        lockgate_needs::masked(&self.0)
    }
}
