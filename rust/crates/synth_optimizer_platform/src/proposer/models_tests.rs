//! Which names are of one model.

use super::is_same;

#[test]
fn a_dated_prefixed_or_tagged_name_is_the_same_model() {
    for (requested, effective) in [
        ("gpt-4.1-mini", "gpt-4.1-mini"),
        ("gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"),
        ("gpt-4", "gpt-4-0613"),
        ("GPT-4o", "gpt-4o-2024-08-06"),
        ("gemini-2.0-flash", "gemini-2.0-flash-001"),
        ("openai/gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"),
        ("gpt-4.1-mini", "openai/gpt-4.1-mini"),
        ("openai/gpt-4.1-mini", "openai/gpt-4.1-mini-2025-04-14"),
        ("llama3.1", "llama3.1:latest"),
        ("llama3.1:latest", "llama3.1"),
        ("meta-llama/llama-3.3-70b-instruct:free", "meta-llama/llama-3.3-70b-instruct"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
        ("qwen2.5-7b", "/models/qwen2.5-7b.gguf"),
    ] {
        assert!(is_same(requested, effective), "{requested} {effective}");
    }
}

#[test]
fn another_model_is_another_model() {
    for (requested, effective) in [
        ("gpt-4.1-mini", "gpt-4.1"),
        ("gpt-4.1", "gpt-4.1-mini"),
        ("gpt-4.1", "gpt-4.1-mini-2025-04-14"),
        ("gpt-4", "gpt-4-32k"),
        ("gpt-4", "gpt-4-5"),
        ("claude-3", "claude-3-5"),
        ("gpt-4", "gpt-4o"),
        ("openai/gpt-4", "azure/gpt-4"),
        ("llama3:8b", "llama3:70b"),
        ("llama3:70b", "llama3"),
        ("gpt-4-0613", "gpt-4-0314"),
        ("gpt-4-0613", "gpt-4"),
        ("mini", "gpt-4.1-mini"),
        ("gpt-4", ""),
        ("gpt-4", "/"),
    ] {
        assert!(!is_same(requested, effective), "{requested} {effective}");
    }
}
