//! Models: how many tokens an answer says were used, what that costs, and whether the run may go on asking.

mod ledger;
mod meter;

pub(crate) use ledger::Ledger;
pub use ledger::ModelUse;
pub(crate) use meter::{Meter, Metered};
