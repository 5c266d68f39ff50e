//! Models: how many tokens an answer says were used, what that costs, and whether the run may go on asking.

mod account;
mod ledger;
mod meter;
mod totals;

pub(crate) use account::Account;
pub use account::{AnswerEnd, use_of_answer};
pub(crate) use ledger::{Admitted, Ledger};
pub(crate) use totals::Asking;
pub use totals::ModelUse;
