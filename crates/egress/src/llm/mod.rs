//! Models: counts the tokens that answers report, prices them, and enforces the run's budget.

mod account;
mod cost;
mod counts;
mod document;
mod kept;
mod ledger;
mod meter;
mod totals;

pub(crate) use account::Account;
pub use account::use_of_answer;
pub(crate) use ledger::{Admitted, Ledger};
pub use meter::AnswerEnd;
pub(crate) use meter::Usage;
pub use totals::ModelUse;
pub(crate) use totals::{ModelRequest, RequestLine};
