//! Reads the fields of a certificate by which it is, or is not, what a bundle is thought to hold (RFC 5280 §4.1): the TLS library takes
//! any certificate for an authority that is given to it as one. It verifies no signature.

use jiff::Timestamp;
use rustls::CertificateError;
use rustls::pki_types::UnixTime;

/// Tags of DER (X.690 §8), and those of the optional fields of a certificate.
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UNIQUE_IDS: [u8; 2] = [0x81, 0x82];
const EXTENSIONS: u8 = 0xa3;

/// Extensions (RFC 5280 §4.2.1).
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];

/// The bit of `keyCertSign` in the first octet of a key usage.
const KEY_CERT_SIGN: u8 = 0x04;
/// The purposes of a server's certificate: `id-kp-serverAuth` and `anyExtendedKeyUsage`.
const FOR_SERVERS: [&[u8]; 2] = [&[0x2b, 6, 1, 5, 5, 7, 3, 1], &[0x55, 0x1d, 37, 0]];

/// A moment as `YYYYMMDDHHMMSSZ`, so that later ones are greater.
type Moment = [u8; 15];

/// The fields of a certificate.
pub(crate) struct Certificate<'a> {
    has_version: bool,
    issuer: &'a [u8],
    subject: &'a [u8],
    not_before: Moment,
    not_after: Moment,
    extensions: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Reads a certificate in DER; none if it is malformed.
    pub(crate) fn parse(der: &'a [u8]) -> Option<Self> {
        let mut signed = Der(Der(der).take(SEQUENCE)?);
        let mut fields = Der(signed.take(SEQUENCE)?);
        let has_version = fields.take(VERSION).is_some();
        fields.take(INTEGER)?; // the serial number
        fields.take(SEQUENCE)?; // the algorithm of the signature
        let issuer = fields.take(SEQUENCE)?;
        let mut validity = Der(fields.take(SEQUENCE)?);
        let (not_before, not_after) = (moment(validity.next()?)?, moment(validity.next()?)?);
        let subject = fields.take(SEQUENCE)?;
        fields.take(SEQUENCE)?; // the public key
        for tag in UNIQUE_IDS {
            fields.take(tag);
        }
        let extensions = match fields.take(EXTENSIONS) {
            Some(wrapped) => Der(wrapped).take(SEQUENCE)?,
            None => &[],
        };
        Some(Self { has_version, issuer, subject, not_before, not_after, extensions })
    }

    /// Whether it may have issued others: it says so, and its key may sign them. One that says nothing of it is a root if it names
    /// itself as its issuer, and signing certificates as a use of its key; one of version 1 cannot name uses.
    pub(crate) fn is_authority(&self) -> bool {
        let names_itself = self.issuer == self.subject;
        if !self.has_version {
            return names_itself;
        }
        let usage = self.extension(KEY_USAGE);
        match self.extension(BASIC_CONSTRAINTS) {
            Some(constraints) => says_authority(constraints) && usage.is_none_or(may_sign_certificates),
            None => names_itself && usage.is_some_and(may_sign_certificates),
        }
    }

    /// Whether it names a server that may present it.
    pub(crate) fn names_server(&self) -> bool {
        self.extension(SUBJECT_ALT_NAME).is_some()
    }

    /// Checks that a server may present it now.
    pub(crate) fn check_as_server(&self, now: UnixTime) -> Result<(), CertificateError> {
        self.check_dates(now)?;
        match self.extension(EXTENDED_KEY_USAGE).is_none_or(may_serve) {
            true => Ok(()),
            false => Err(CertificateError::InvalidPurpose),
        }
    }

    /// Checks that it is valid now.
    pub(crate) fn check_dates(&self, now: UnixTime) -> Result<(), CertificateError> {
        let now = i64::try_from(now.as_secs()).ok().and_then(|now| Timestamp::from_second(now).ok());
        let now = now.map(|now| now.strftime("%Y%m%d%H%M%SZ").to_string()).unwrap_or_default();
        match now.as_bytes() {
            now if now < &self.not_before[..] => Err(CertificateError::NotValidYet),
            now if now > &self.not_after[..] => Err(CertificateError::Expired),
            _ => Ok(()),
        }
    }

    /// The content of an extension.
    fn extension(&self, id: &[u8]) -> Option<&'a [u8]> {
        let mut extensions = Der(self.extensions);
        loop {
            let mut extension = Der(extensions.take(SEQUENCE)?);
            if extension.take(OBJECT_ID)? == id {
                extension.take(BOOLEAN); // whether it is critical
                return extension.take(OCTET_STRING);
            }
        }
    }
}

fn says_authority(constraints: &[u8]) -> bool {
    let flag = Der(constraints).take(SEQUENCE).and_then(|content| Der(content).take(BOOLEAN));
    flag.is_some_and(|flag| flag == [0xff])
}

fn may_sign_certificates(usage: &[u8]) -> bool {
    let bits = Der(usage).take(BIT_STRING).and_then(|bits| bits.get(1));
    bits.is_some_and(|bits| bits & KEY_CERT_SIGN != 0)
}

fn may_serve(purposes: &[u8]) -> bool {
    let mut purposes = Der(Der(purposes).take(SEQUENCE).unwrap_or_default());
    std::iter::from_fn(|| purposes.take(OBJECT_ID)).any(|purpose| FOR_SERVERS.contains(&purpose))
}

/// Reads a time (RFC 5280 §4.1.2.5). Two digits of a year stand for 1950 to 2049.
fn moment((tag, text): (u8, &[u8])) -> Option<Moment> {
    let century: &[u8] = match (tag, text) {
        (UTC_TIME, [b'5'..=b'9', ..]) => b"19",
        (UTC_TIME, _) => b"20",
        (GENERALIZED_TIME, _) => b"",
        _ => return None,
    };
    let moment = Moment::try_from([century, text].concat()).ok()?;
    let (digits, zone) = moment.split_at(moment.len() - 1);
    (digits.iter().all(u8::is_ascii_digit) && zone == b"Z").then_some(moment)
}

/// Elements of DER that stand side by side.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Takes the next element: its tag, and its content of at most 64 KiB.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, length, rest) = match *self.0 {
            [tag, length @ ..=0x7f, ref rest @ ..] => (tag, usize::from(length), rest),
            [tag, 0x81, length, ref rest @ ..] => (tag, usize::from(length), rest),
            [tag, 0x82, high, low, ref rest @ ..] => {
                (tag, usize::from(u16::from_be_bytes([high, low])), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// Takes the content of the next element, if it has this tag.
    fn take(&mut self, wanted: u8) -> Option<&'a [u8]> {
        let mut after = Self(self.0);
        let (_, content) = after.next().filter(|(tag, _)| *tag == wanted)?;
        *self = after;
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_either_form_are_compared() {
        let of = |tag, text: &str| moment((tag, text.as_bytes()));
        assert_eq!(of(UTC_TIME, "491231235959Z"), Some(*b"20491231235959Z"));
        assert_eq!(of(UTC_TIME, "500101000000Z"), Some(*b"19500101000000Z"));
        assert_eq!(of(GENERALIZED_TIME, "20500101000000Z"), Some(*b"20500101000000Z"));
        for malformed in ["", "4912312359Z", "491231235959+0100", "49123123595xZ"] {
            assert_eq!(of(UTC_TIME, malformed), None, "{malformed}");
        }
        assert_eq!(of(INTEGER, "20500101000000Z"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_octets_are_survived(bytes: Vec<u8>, cut in 0usize..600, bit in 0usize..4800) {
            let _ = Certificate::parse(&bytes);
            let authority = crate::tls::RunAuthority::make().unwrap();
            let mut der = crate::trusted::certificates_in(authority.certificate_pem().as_bytes()).next().unwrap().to_vec();
            let at = bit / 8 % der.len();
            der[at] ^= 1 << (bit % 8);
            der.truncate(cut);
            let _ = Certificate::parse(&der).map(|it| (it.is_authority(), it.names_server()));
        }
    }
}
