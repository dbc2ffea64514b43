//! A proposer for benchmarks: every turn has new texts of the same quality, so that a search never ends by itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use synth_optimizer_core::model::answer::{Proposal, ProposalAnswer};
use synth_optimizer_core::model::canonical::canonical_digest;
use synth_optimizer_core::model::usage::Usage;
use synth_optimizer_platform::proposer::{ProposalRequest, Proposer, TurnFuture, TurnId};

/// A proposer that always proposes another text of the same quality.
#[derive(Debug, Default)]
pub struct VariationProposer {
    latency: Duration,
    turns: AtomicU64,
}

impl VariationProposer {
    /// Returns a proposer whose turns take this long.
    #[must_use]
    pub fn new(latency: Duration) -> Self {
        Self { latency, turns: AtomicU64::new(0) }
    }

    /// Returns the number of turns it was asked for.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

impl Proposer for VariationProposer {
    fn identity(&self) -> Value {
        json!("restless")
    }

    fn propose(&self, _: TurnId, request: ProposalRequest) -> TurnFuture<'_> {
        self.turns.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            tokio::time::sleep(self.latency).await;
            let content = canonical_digest(&(&request.question.base, &request.question.generation));
            let proposals = (0..request.question.proposal_count).map(|number| {
                let fields = request.question.base.iter().map(|(field, text)| {
                    let first = text.lines().next().unwrap_or_default();
                    (field.clone(), format!("{first}\nvariation {content} {number}"))
                });
                Proposal { fields: fields.collect(), ..Proposal::default() }
            });
            Ok(ProposalAnswer {
                proposals: proposals.collect(),
                problems: Vec::new(),
                usage: Usage::default(),
                cached: false,
                requested_model: "restless".into(),
                effective_model: "restless".into(),
            })
        })
    }
}
