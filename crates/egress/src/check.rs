//! What would happen to a target, through the same stages that enforce: only the last step, dialling, is left out.

use std::rc::Rc;

use policy::{Denial, Method, Plane, Target};
use tokio::task::LocalSet;

use crate::exchange;
use crate::gate::Gate;
use crate::gate::GateError;

/// The answer to "what would happen".
#[derive(Debug)]
pub struct Verdict {
    /// The rule that grants it and the target as it would be sent; or the denial.
    pub outcome: Result<(String, Target), Denial>,
}

/// Judges one target, asked for with a method on the explicit plane.
///
/// # Errors
/// When the runtime cannot be made.
pub fn check(gate: &Rc<Gate>, method: &Method, target: &str) -> Result<Verdict, GateError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(GateError::Runtime)?;
    let outcome = LocalSet::new().block_on(&runtime, judge(gate, method, target));
    Ok(Verdict { outcome })
}

async fn judge(gate: &Rc<Gate>, method: &Method, text: &str) -> Result<(String, Target), Denial> {
    let target = Target::parse(text)?;
    let asked = policy::Asked::request(Plane::Forward, method.clone(), &target);
    let pinned = exchange::pin(gate, method.as_str(), target.to_string(), asked).await?;
    Ok((pinned.grant().rule().as_str().to_owned(), target))
}
