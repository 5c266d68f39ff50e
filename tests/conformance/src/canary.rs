//! A secret that exists nowhere else: 40 random octets of text. Masked, it can be given to a probe that looks for it.
//! It must never be put on a command line unmasked by a test that then searches for it.

use std::fs::File;
use std::io::Read;

/// The probe undoes this mask; see `walk-for` there.
const MASK: u8 = 0x5a;

/// One random secret.
#[derive(Debug)]
pub struct Canary(String);

impl Canary {
    /// Draws a new one.
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

    /// The secret so that a search for it does not find this.
    #[must_use]
    pub fn masked(&self) -> String {
        self.0.bytes().map(|octet| format!("{:02x}", octet ^ MASK)).collect()
    }
}
