//! The bodies of requests, in both API families.

use serde_json::{Map, Value, json};

use crate::config::proposer::{ProposerSection, ReasoningEffort};
use crate::config::sections::ApiFamily;
use crate::proposer::ProposalRequest;
use crate::proposer::brief::{Brief, question};
use crate::proposer::transcript::Redactor;

const ROLE: &str = "You improve the texts of a program that is scored on a task. You are given everything that is known: \
                    the task, the parent candidate, what happened on its rows and what was tried before. Answer with one \
                    JSON object in the shape that proposal_schema.md shows, and with nothing before or after it.";

const WHERE_TO: &str = "Answer with one JSON object in the shape of proposal_schema.md. The files follow.";

/// The name of the schema at the endpoint.
const SCHEMA_NAME: &str = "gepa_proposal";

/// How a request is written so that this endpoint takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    /// Whether the endpoint is asked to keep to the schema.
    pub(super) structured: bool,
    /// Whether the limit of a chat completion goes by its newer name. Models of OpenAI that reason know no other, and
    /// most other servers know only the older one.
    pub(super) newer_limit: bool,
}

impl Manner {
    /// What both have learned: nothing that was found out is forgotten.
    pub(super) fn and(self, other: Self) -> Self {
        Self { structured: self.structured && other.structured, newer_limit: self.newer_limit || other.newer_limit }
    }
}

/// What is asked, whichever way it is written.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) family: ApiFamily,
    model: String,
    max_output_tokens: Option<u64>,
    reasoning_effort: Option<ReasoningEffort>,
    question: String,
    schema: Value,
}

impl Ask {
    pub(super) fn new(section: &ProposerSection, model: &str, request: &ProposalRequest, redactor: &Redactor) -> Self {
        let brief = Brief::new(request, section, redactor);
        Self {
            family: section.api_family,
            model: model.to_owned(),
            max_output_tokens: section.max_output_tokens,
            reasoning_effort: section.reasoning_effort,
            question: format!("{}\n\n{}", question(request, WHERE_TO), brief.whole()),
            schema: brief.schema,
        }
    }

    pub(super) fn body(&self, manner: Manner) -> Value {
        Value::Object(match self.family {
            ApiFamily::ChatCompletions => self.chat(manner),
            ApiFamily::Responses => self.responses(manner),
        })
    }

    fn chat(&self, manner: Manner) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        body.insert(
            "messages".into(),
            json!([{ "role": "system", "content": ROLE }, { "role": "user", "content": self.question }]),
        );
        if manner.structured {
            let schema = json!({ "name": SCHEMA_NAME, "strict": true, "schema": self.schema });
            body.insert("response_format".into(), json!({ "type": "json_schema", "json_schema": schema }));
        }
        if let Some(most) = self.max_output_tokens {
            let name = if manner.newer_limit { "max_completion_tokens" } else { "max_tokens" };
            body.insert(name.into(), json!(most));
        }
        if let Some(effort) = self.reasoning_effort {
            body.insert("reasoning_effort".into(), json!(effort.word()));
        }
        body
    }

    fn responses(&self, manner: Manner) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        body.insert("instructions".into(), json!(ROLE));
        body.insert("input".into(), json!(self.question));
        // Nothing of a run is left behind at the provider.
        body.insert("store".into(), json!(false));
        if manner.structured {
            let format = json!({ "type": "json_schema", "name": SCHEMA_NAME, "strict": true, "schema": self.schema });
            body.insert("text".into(), json!({ "format": format }));
        }
        if let Some(most) = self.max_output_tokens {
            body.insert("max_output_tokens".into(), json!(most));
        }
        if let Some(effort) = self.reasoning_effort {
            body.insert("reasoning".into(), json!({ "effort": effort.word() }));
        }
        body
    }
}

/// The route of a family, below the base address.
pub(super) fn route(family: ApiFamily) -> &'static str {
    match family {
        ApiFamily::ChatCompletions => "/chat/completions",
        ApiFamily::Responses => "/responses",
    }
}
