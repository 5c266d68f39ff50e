//! Reads the counts of tokens that a usage tells, in the form of either API.

use policy::{LlmFormat, Tokens};
use serde_json::Value;

/// Reads a usage. Its own counts leave out some of what its `iterations` list, such as a compaction, and all of those are billed
/// (Anthropic). Returns `None` if a part of it is unreadable.
pub(super) fn tokens(format: LlmFormat, usage: &Value) -> Option<Tokens> {
    let own = counts(format, usage)?;
    let iterations = match &usage["iterations"] {
        Value::Null => return Some(own),
        iterations => iterations.as_array()?,
    };
    let all = iterations.iter().try_fold(Tokens::default(), |sum, iteration| {
        Some(each(sum, counts(format, iteration)?, u64::saturating_add))
    })?;
    Some(each(own, all, u64::max))
}

/// Combines each count of one with that of the other.
pub(super) fn each(one: Tokens, other: Tokens, combine: fn(u64, u64) -> u64) -> Tokens {
    Tokens {
        input: combine(one.input, other.input),
        cached: combine(one.cached, other.cached),
        output: combine(one.output, other.output),
        cached_long: combine(one.cached_long, other.cached_long),
    }
}

/// Reads the counts of a usage or an iteration. Anthropic reports cached tokens beside the others, OpenAI as a part of them. Returns
/// `None` if a known field is no count, or if there is no known field.
fn counts(format: LlmFormat, usage: &Value) -> Option<Tokens> {
    let mut any = false;
    let mut number = |value: &Value| match value {
        Value::Null => Some(0),
        value => {
            any = true;
            count(value)
        }
    };
    let cached_long = number(&usage["cache_creation"]["ephemeral_1h_input_tokens"])?;
    let tokens = match format {
        LlmFormat::Anthropic => {
            let written = number(&usage["cache_creation_input_tokens"])?;
            Tokens {
                input: number(&usage["input_tokens"])?.saturating_add(written),
                cached: number(&usage["cache_read_input_tokens"])?,
                output: number(&usage["output_tokens"])?,
                cached_long,
            }
        }
        LlmFormat::OpenAi => {
            let part = [&usage["prompt_tokens_details"], &usage["input_tokens_details"]]
                .map(|details| &details["cached_tokens"]);
            let all = number(&usage["prompt_tokens"])?.max(number(&usage["input_tokens"])?);
            let cached = number(part[0])?.max(number(part[1])?).min(all);
            let output = number(&usage["completion_tokens"])?.max(number(&usage["output_tokens"])?);
            // A reseller also serves `/messages`, and then counts as Anthropic does.
            let is_anthropics = usage["prompt_tokens"].is_null() && part.iter().all(|part| part.is_null());
            let (written, read) = match is_anthropics {
                true => (
                    number(&usage["cache_creation_input_tokens"])?,
                    number(&usage["cache_read_input_tokens"])?,
                ),
                false => (0, 0),
            };
            Tokens {
                input: (all - cached).saturating_add(written),
                cached: cached.saturating_add(read),
                output,
                cached_long,
            }
        }
    };
    any.then_some(tokens)
}

/// Reads a number of tokens. Some services write it with a fraction of zero.
pub(super) fn count(value: &Value) -> Option<u64> {
    /// From here on, adjacent integers are the same floating-point number.
    const EXACT: f64 = (1u64 << 53) as f64;
    let whole = |number: &f64| number.fract() == 0.0 && (0.0..EXACT).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}
