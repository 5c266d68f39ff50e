//! `lockgate version`: which program this is.

use crate::exit::Done;
use crate::output;

pub(crate) fn version() -> Done {
    output::data(concat!("lockgate ", env!("CARGO_PKG_VERSION")))?;
    Ok(0)
}
