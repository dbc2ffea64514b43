//! The well-known providers of models.

use reqwest::Url;

/// A provider: the host of its API, and the variables that usually hold its key, the commonest first.
#[derive(Debug)]
pub(crate) struct Provider {
    pub(crate) host: &'static str,
    pub(crate) key_variables: &'static [&'static str],
}

const fn provider(host: &'static str, key_variables: &'static [&'static str]) -> Provider {
    Provider { host, key_variables }
}

/// The well-known providers. All of them need a key.
pub(crate) const PROVIDERS: &[Provider] = &[
    provider("api.openai.com", &["OPENAI_API_KEY"]),
    provider("openrouter.ai", &["OPENROUTER_API_KEY"]),
    provider("api.anthropic.com", &["ANTHROPIC_API_KEY"]),
    provider("generativelanguage.googleapis.com", &["GEMINI_API_KEY", "GOOGLE_API_KEY"]),
    provider("api.groq.com", &["GROQ_API_KEY"]),
    provider("api.mistral.ai", &["MISTRAL_API_KEY"]),
    provider("api.together.xyz", &["TOGETHER_API_KEY"]),
    provider("api.deepseek.com", &["DEEPSEEK_API_KEY"]),
    provider("api.x.ai", &["XAI_API_KEY"]),
    provider("api.fireworks.ai", &["FIREWORKS_API_KEY"]),
    provider("api.cerebras.ai", &["CEREBRAS_API_KEY"]),
    provider("api.perplexity.ai", &["PERPLEXITY_API_KEY"]),
    provider("api.cohere.ai", &["COHERE_API_KEY", "CO_API_KEY"]),
    provider("api.cohere.com", &["COHERE_API_KEY", "CO_API_KEY"]),
    provider("integrate.api.nvidia.com", &["NVIDIA_API_KEY"]),
    provider("router.huggingface.co", &["HF_TOKEN"]),
];

/// Returns the provider at this address, if it is a well-known one.
pub(crate) fn provider_of(base: &Url) -> Option<&'static Provider> {
    let host = base.host_str()?.trim_end_matches('.');
    PROVIDERS.iter().find(|provider| provider.host.eq_ignore_ascii_case(host))
}

/// Returns whether a variable usually holds the key of a well-known provider.
pub(crate) fn is_provider_variable(name: &str) -> bool {
    PROVIDERS.iter().any(|provider| provider.key_variables.contains(&name))
}
