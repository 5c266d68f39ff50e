//! What happens to an answer between the upstream and the agent: it is unpacked where it has to be looked into, and the
//! credential that was put into its request is masked, wherever and in whatever form it comes back (C10).

use std::io::{self, Write};

use bytes::Bytes;
use credential::{Needles, Scrubber};
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use policy::{Denial, Guard};

use super::fields::{Fields, trim};
use super::head::BodyLength;
use super::response::{ResponseBody, ResponseHead};
use crate::llm::{Meter, Metered};

/// The filter of one answer.
pub(super) struct Filter {
    unpack: Unpack,
    scrubber: Option<Scrubber>,
    needles: Option<Needles>,
    meter: Option<Meter>,
    masked: u64,
}

/// How a body was packed (RFC 9110 §8.4.1).
enum Unpack {
    Plain,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Deflate(Box<ZlibDecoder<Vec<u8>>>),
    Brotli(Box<brotli_decompressor::DecompressorWriter<Vec<u8>>>),
}

/// What is done with an answer that cannot be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsearchable {
    /// It is refused.
    Refuse,
    /// It goes on, and the record says so.
    Note,
}

impl Filter {
    /// A filter for an answer to a request that held no credential.
    pub(super) fn none() -> Self {
        Self { unpack: Unpack::Plain, scrubber: None, needles: None, meter: None, masked: 0 }
    }

    /// A filter that masks what `needles` stand for. The head is changed to what will be sent.
    pub(super) fn scrubbing(
        needles: &Needles,
        head: &mut ResponseHead,
        length: &mut ResponseBody,
    ) -> Result<Self, Denial> {
        let mut filter = Self {
            unpack: Unpack::Plain,
            scrubber: Some(Scrubber::new(needles)),
            needles: Some(needles.clone()),
            meter: None,
            masked: 0,
        };
        filter.fields(&mut head.fields);
        head.reason = filter.text(head.reason.as_bytes());
        if *length != ResponseBody::Framed(BodyLength::None) {
            filter.unpack = Unpack::of(&head.fields)?;
            if !matches!(filter.unpack, Unpack::Plain) {
                head.fields.remove("content-encoding");
                head.fields.remove("content-length");
                *length = ResponseBody::Framed(BodyLength::Chunked);
            }
        }
        Ok(filter)
    }

    /// Has the tokens counted that the answer says it took.
    pub(super) fn meter(&mut self, meter: Meter) {
        self.meter = Some(meter);
    }

    /// What was counted, of as much as has passed.
    pub(super) fn metered(&mut self) -> Option<Metered> {
        self.meter.take().map(Meter::end)
    }

    /// Masks the values of fields: a head's, or a trailer section's.
    pub(super) fn fields(&mut self, fields: &mut Fields) {
        let Some(needles) = &self.needles else { return };
        for (_, value) in fields.iter_mut() {
            let (masked, found) = needles.scrub_text(value);
            if found > 0 {
                *value = masked;
                self.masked += found;
            }
        }
    }

    fn text(&mut self, text: &[u8]) -> String {
        match &self.needles {
            Some(needles) => String::from_utf8_lossy(&needles.scrub_text(text).0).into_owned(),
            None => String::from_utf8_lossy(text).into_owned(),
        }
    }

    /// A piece of the body.
    pub(super) fn piece(&mut self, piece: Bytes) -> io::Result<Bytes> {
        let Some(scrubber) = &mut self.scrubber else { return Ok(piece) };
        let mut out = Vec::with_capacity(piece.len());
        match self.unpack.piece(&piece)? {
            Some(unpacked) => scrubber.push(&unpacked, &mut out),
            None => scrubber.push(&piece, &mut out),
        }
        if let Some(meter) = &mut self.meter {
            meter.piece(&out);
        }
        Ok(out.into())
    }

    /// What was held back.
    pub(super) fn end(&mut self) -> io::Result<Bytes> {
        let Some(scrubber) = &mut self.scrubber else { return Ok(Bytes::new()) };
        let mut out = Vec::new();
        if let Some(rest) = self.unpack.end()? {
            scrubber.push(&rest, &mut out);
        }
        scrubber.finish(&mut out);
        self.masked += scrubber.found();
        if let Some(meter) = &mut self.meter {
            meter.piece(&out);
        }
        Ok(out.into())
    }

    /// How many times the credential was found.
    pub(super) fn masked(&self) -> u64 {
        self.masked
    }
}

impl Unpack {
    fn of(fields: &Fields) -> Result<Self, Denial> {
        let codings: Vec<Vec<u8>> = fields
            .values("content-encoding")
            .flat_map(|value| value.split(|b| *b == b','))
            .map(|coding| trim(coding).to_ascii_lowercase())
            .filter(|coding| !coding.is_empty() && coding != b"identity")
            .collect();
        match codings.as_slice() {
            [] => Ok(Self::Plain),
            [one] if one == b"gzip" || one == b"x-gzip" => {
                Ok(Self::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))))
            }
            [one] if one == b"deflate" => Ok(Self::Deflate(Box::new(ZlibDecoder::new(Vec::new())))),
            [one] if one == b"br" => {
                let writer = brotli_decompressor::DecompressorWriter::new(Vec::new(), 16 * 1024);
                Ok(Self::Brotli(Box::new(writer)))
            }
            other => {
                let named: Vec<String> =
                    other.iter().map(|c| String::from_utf8_lossy(c).into_owned()).collect();
                let why = format!("the answer is packed as `{}`, and cannot be searched", named.join(", "));
                Err(Denial::new(Guard::Unscrubbed, why.escape_default().to_string()))
            }
        }
    }

    fn piece(&mut self, piece: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Plain => None,
            Self::Gzip(decoder) => {
                decoder.write_all(piece)?;
                decoder.flush()?;
                Some(std::mem::take(decoder.get_mut()))
            }
            Self::Deflate(decoder) => {
                decoder.write_all(piece)?;
                decoder.flush()?;
                Some(std::mem::take(decoder.get_mut()))
            }
            Self::Brotli(decoder) => {
                decoder.write_all(piece)?;
                Some(std::mem::take(decoder.get_mut()))
            }
        })
    }

    fn end(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Plain => None,
            Self::Gzip(decoder) => {
                decoder.try_finish()?;
                Some(std::mem::take(decoder.get_mut()))
            }
            Self::Deflate(decoder) => {
                decoder.try_finish()?;
                Some(std::mem::take(decoder.get_mut()))
            }
            Self::Brotli(decoder) => {
                decoder.close()?;
                Some(std::mem::take(decoder.get_mut()))
            }
        })
    }
}
