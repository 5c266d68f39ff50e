//! Reads what an answer tells of its cost, beside the counts of its tokens.

use serde_json::Value;

use super::counts::count;

/// What an answer or its usage tells of how it was made, and the values that cost no more than a model's price.
const AT_LIST_PRICE: [(&str, &[&str]); 2] = [
    ("speed", &["standard"]),
    ("service_tier", &["standard", "default", "on_demand", "batch", "flex", "auto"]),
];
/// The usage's counts of what the provider's own tools did, which is paid beside the tokens.
pub(super) const TOOLS: &str = "server_tool_use";
/// Those of them that cost their tokens alone.
const FREE_TOOLS: [&str; 2] = ["web_fetch_requests", "tool_search_requests"];

/// Returns the field by which an answer, its usage or an iteration tells that it cost more than the price of its `model`, or may have.
pub(super) fn surcharge(answer: &Value, model: Option<&str>) -> Option<&'static str> {
    let usage = &answer["usage"];
    let iterations = usage["iterations"].as_array().into_iter().flatten();
    let is_of_another = |part: &Value| !part["model"].is_null() && part["model"].as_str() != model;
    if iterations.clone().any(is_of_another) {
        return Some("iterations");
    }
    iterations.chain([usage, answer]).find_map(|part| {
        let ordinary = |value: &Value, all: &[&str]| {
            value.is_null() || value.as_str().is_some_and(|value| all.contains(&value))
        };
        let none = |value: &Value| value.is_null() || count(value) == Some(0);
        let idle = match &part[TOOLS] {
            Value::Object(counts) => counts.iter().all(|(tool, value)| {
                none(value) || FREE_TOOLS.contains(&tool.as_str()) && count(value).is_some()
            }),
            other => other.is_null(),
        };
        let dearer = AT_LIST_PRICE.iter().find(|(field, all)| !ordinary(&part[*field], all));
        dearer.map(|(field, _)| *field).or((!idle).then_some(TOOLS))
    })
}
