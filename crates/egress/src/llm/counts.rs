//! Reads the counts of tokens that a usage tells, in the form of each API.

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
    // Anthropic's own API answers Chat Completions too, in OpenAI's form.
    let is_openais = usage["input_tokens"].is_null() && !usage["prompt_tokens"].is_null();
    // A request to Google's APIs may cut its answer (`fields`, `X-Goog-FieldMask`). Beside the prompt, the sum tells all that was cut.
    if format == LlmFormat::Gemini && is_openais && usage["total_tokens"].is_null() {
        return None;
    }
    let format = if is_openais { LlmFormat::OpenAi } else { format };
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
            // Some count what was thought in the sum alone: xAI, and Gemini in OpenAI's form. A sum by itself may be of either price.
            let all_input = all.saturating_add(written).saturating_add(read);
            let is_input_told = !usage["prompt_tokens"].is_null() || !usage["input_tokens"].is_null();
            let sum = &usage["total_tokens"];
            if !is_input_told && !sum.is_null() && count(sum)? > output {
                return None;
            }
            let rest = number(sum)?.saturating_sub(all_input);
            Tokens {
                input: (all - cached).saturating_add(written),
                cached: cached.saturating_add(read),
                output: output.max(rest),
                cached_long,
            }
        }
        LlmFormat::Gemini => {
            let (prompt, sum) = (&usage["promptTokenCount"], &usage["totalTokenCount"]);
            if prompt.is_null() || sum.is_null() {
                return None;
            }
            let prompt = number(prompt)?;
            let all = prompt.saturating_add(number(&usage["toolUsePromptTokenCount"])?);
            let cached = number(&usage["cachedContentTokenCount"])?.min(prompt);
            let output =
                number(&usage["candidatesTokenCount"])?.saturating_add(number(&usage["thoughtsTokenCount"])?);
            let rest = number(sum)?.saturating_sub(all);
            Tokens { input: all - cached, cached, output: output.max(rest), cached_long }
        }
    };
    any.then_some(tokens)
}

/// Whether a usage holds other things than counts, as in all but the last event of a stream of Vertex AI's.
pub(super) fn tells_nothing(format: LlmFormat, usage: &Value) -> bool {
    format == LlmFormat::Gemini
        && usage["trafficType"].is_string()
        && usage.as_object().is_some_and(|it| it.len() == 1)
}

/// Reads a number of tokens. Some services write it with a fraction of zero.
pub(super) fn count(value: &Value) -> Option<u64> {
    /// From here on, adjacent integers are the same floating-point number.
    const EXACT: f64 = (1u64 << 53) as f64;
    let whole = |number: &f64| number.fract() == 0.0 && (0.0..EXACT).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn chat_completions_are_read_at_anthropics_api_too() {
        for (usage, told) in [
            (
                json!({"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107,
                    "prompt_tokens_details": {"cached_tokens": 40}}),
                Some((60, 40, 7)),
            ),
            (json!({"prompt_tokens": 9, "input_tokens": 3, "output_tokens": 4}), Some((3, 0, 4))),
            (json!({"prompt_tokens": -1, "completion_tokens": 7}), None),
            (json!({"completion_tokens": 7}), None),
        ] {
            let counts = tokens(LlmFormat::Anthropic, &usage);
            assert_eq!(counts.map(|it| (it.input, it.cached, it.output)), told, "{usage}");
        }
    }

    #[test]
    fn geminis_thoughts_and_tools_are_counted_and_its_cache_is_a_part_of_the_prompt() {
        let prompt = json!({"promptTokenCount": 100, "cachedContentTokenCount": 40, "toolUsePromptTokenCount": 5,
            "candidatesTokenCount": 7, "thoughtsTokenCount": 20, "totalTokenCount": 132, "promptTokensDetails": []});
        for (usage, told) in [
            (prompt, Some((65, 40, 27))),
            (json!({"promptTokenCount": 9, "totalTokenCount": 9}), Some((9, 0, 0))),
            (
                json!({"promptTokenCount": 9, "candidatesTokenCount": 1, "totalTokenCount": 30}),
                Some((9, 0, 21)),
            ),
            (json!({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 30}), Some((9, 0, 21))),
            (json!({"totalTokenCount": 30}), None),
            (json!({"promptTokenCount": -9, "candidatesTokenCount": 1}), None),
            (json!({"inputTokens": 9}), None),
        ] {
            let counts = tokens(LlmFormat::Gemini, &usage);
            assert_eq!(counts.map(|it| (it.input, it.cached, it.output)), told, "{usage}");
        }
    }

    #[test]
    fn an_answer_of_googles_that_was_cut_tells_its_use_by_prompt_and_sum_alone() {
        for (usage, told) in [
            (json!({"promptTokenCount": 9, "totalTokenCount": 5009}), Some((9, 5000))),
            (json!({"prompt_tokens": 9, "total_tokens": 5009}), Some((9, 5000))),
            (json!({"promptTokenCount": 9}), None),
            (json!({"candidatesTokenCount": 9}), None),
            (json!({"cachedContentTokenCount": 9}), None),
            (json!({"promptTokenCount": 9, "candidatesTokenCount": 1}), None),
            (json!({"candidatesTokenCount": 9, "totalTokenCount": 9}), None),
            (json!({"promptTokenCount": 9, "totalTokenCount": null}), None),
            (json!({"prompt_tokens": 9}), None),
            (json!({"prompt_tokens": 9, "completion_tokens": 1}), None),
            (json!({"completion_tokens": 1, "total_tokens": 1}), None),
        ] {
            let counts = tokens(LlmFormat::Gemini, &usage);
            assert_eq!(counts.map(|it| (it.input, it.output)), told, "{usage}");
        }
    }

    #[test]
    fn what_only_the_sum_tells_is_output() {
        let thought = json!({"reasoning_tokens": 10_000});
        for (usage, input, cached, output) in [
            (
                json!({"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 10_150,
                    "prompt_tokens_details": {"cached_tokens": 40}, "completion_tokens_details": thought}),
                60,
                40,
                10_050,
            ),
            // OpenAI's own counts have it in the output.
            (
                json!({"prompt_tokens": 100, "completion_tokens": 10_050, "total_tokens": 10_150}),
                100,
                0,
                10_050,
            ),
            (
                json!({"input_tokens": 3, "cache_read_input_tokens": 1000, "output_tokens": 4, "total_tokens": 1007}),
                3,
                1000,
                4,
            ),
            (json!({"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 0}), 100, 0, 50),
            (json!({"output_tokens": 4, "total_tokens": 4}), 0, 0, 4),
        ] {
            let told = Tokens { input, cached, output, ..Tokens::default() };
            assert_eq!(tokens(LlmFormat::OpenAi, &usage), Some(told), "{usage}");
        }
        let bad = json!({"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": -1});
        assert_eq!(tokens(LlmFormat::OpenAi, &bad), None);
        for sum in [json!({"total_tokens": 7}), json!({"output_tokens": 4, "total_tokens": 1007})] {
            assert_eq!(tokens(LlmFormat::OpenAi, &sum), None, "{sum} may be of either price");
        }
    }
}
