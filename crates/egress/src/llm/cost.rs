//! Reads what an answer tells of its cost, beside the counts of its tokens: what it was, or that it is more than the list says.

use policy::MicroUsd;
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

/// The usage's own word for what the answer cost: dollars at OpenRouter, parts and their sum at Perplexity.
const COST: &str = "cost";

/// Returns what a usage tells that its answer cost, if it tells it. With a key of one's own OpenRouter's `cost` is its fee alone.
pub(super) fn told(usage: &Value) -> Option<MicroUsd> {
    let amount = |value: &Value| value.as_f64().and_then(MicroUsd::at_least);
    let cost = match &usage[COST] {
        Value::Object(parts) => amount(parts.get("total_cost")?)?,
        cost => amount(cost)?,
    };
    match &usage["is_byok"] {
        Value::Bool(true) => Some(cost.plus(amount(&usage["cost_details"]["upstream_inference_cost"])?)),
        _ => Some(cost),
    }
}

/// Returns the field by which an answer, its usage or an iteration tells that it cost more than the price of its `model`, or may have.
pub(super) fn surcharge(answer: &Value, model: Option<&str>) -> Option<&'static str> {
    let usage = &answer["usage"];
    if !usage[COST].is_null() && told(usage).is_none() {
        return Some(COST);
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_amount_is_read_and_nothing_else_is_taken_for_one() {
        let byok = |upstream: Value| json!({"cost": 0.01, "is_byok": true, "cost_details": {"upstream_inference_cost": upstream}});
        for (usage, micros) in [
            (json!({"cost": 0.95}), Some(950_000)),
            (json!({"cost": 0}), Some(0)),
            (json!({"cost": 1e-7}), Some(1)),
            (json!({"cost": {"input_tokens_cost": 0.001, "total_cost": 0.006}}), Some(6000)),
            (
                json!({"cost": 0.01, "is_byok": false, "cost_details": {"upstream_inference_cost": 19}}),
                Some(10_000),
            ),
            (byok(json!(0.2)), Some(210_000)),
            (byok(Value::Null), None),
            (byok(json!(-1)), None),
            (json!({"cost": -0.5}), None),
            (json!({"cost": 1e30}), None),
            (json!({"cost": "0.95"}), None),
            (json!({"cost": {"total_cost": true}}), None),
            (json!({"cost": {"unreadable": true}}), None),
            (json!({"cost": []}), None),
        ] {
            assert_eq!(told(&usage).map(MicroUsd::micros), micros, "{usage}");
            let is_dearer = surcharge(&json!({"usage": usage}), None);
            assert_eq!(is_dearer, micros.is_none().then_some(COST), "{usage}");
        }
        let silent = json!({"prompt_tokens": 3, "cost": null});
        assert_eq!((told(&silent), surcharge(&json!({"usage": silent}), None)), (None, None));
    }
}
