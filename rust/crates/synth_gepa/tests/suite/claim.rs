//! What a run says about its result, and which candidate it returns.

use crate::search::{climbing, finished, level};
use crate::sim::{Pace, Run, Scorer, World};
use synth_optimizer_core::config::gepa::{DeploymentRule, SearchMode};
use synth_optimizer_core::model::claim::{Claim, ClaimVerdict};
use synth_optimizer_core::model::command::RolloutCommand;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::RunFinished;
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::run_view::RunView;

const TOLERANCE: f64 = 0.25;

fn row_number(command: &RolloutCommand) -> u32 {
    command.row_id.as_str().rsplit(':').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Every level of the text is better on every row.
fn improves(command: &RolloutCommand) -> Result<f64, bool> {
    Ok(f64::from(level(command).min(40)) * 0.02 + f64::from(row_number(command) % 3) * 0.05)
}

/// The same, but only on train rows.
fn improves_on_train(command: &RolloutCommand) -> Result<f64, bool> {
    if command.row_id.as_str().starts_with("train") {
        improves(command)
    } else {
        Ok(f64::from(row_number(command) % 2))
    }
}

/// No text is better than the initial one.
fn falls(command: &RolloutCommand) -> Result<f64, bool> {
    Ok(f64::from(row_number(command).is_multiple_of(2) && level(command) == 0))
}

fn sprint(score: Scorer) -> World {
    let mut world = World { train: 24, heldout: 24, ..climbing(score) };
    world.config.gepa.search = SearchMode::Sprint;
    world.config.gepa.max_generations = Some(60);
    world
}

fn initial(run: &Run) -> &CandidateId {
    let registered = run.events.iter().find_map(|event| match event {
        Event::CandidateRegistered(candidate) => Some(&candidate.candidate_id),
        _ => None,
    });
    registered.unwrap()
}

fn view<'a>(events: impl IntoIterator<Item = &'a Event>) -> RunView {
    let mut view = RunView::default();
    for (sequence, event) in events.into_iter().enumerate() {
        view.apply(sequence as u64, 0, event);
    }
    view
}

fn recorded(run: &Run) -> &Claim {
    finished(run).claim.as_ref().unwrap()
}

#[test]
fn a_candidate_that_is_better_on_held_out_rows_is_returned_with_a_claim() {
    let run = sprint(improves).run(Pace::default());
    let claim = recorded(&run);
    assert_eq!(claim.verdict, ClaimVerdict::Better, "{}", claim.sentence);
    assert_eq!((&finished(&run).best_candidate_id, claim.candidate_id != *initial(&run)), (&claim.candidate_id, true));
    assert!(claim.sentence.starts_with("better than the initial candidate by 0."), "{}", claim.sentence);
    let gain = claim.gain.unwrap();
    assert!(gain.low > 0.0 && gain.rows == 24 && claim.p_value.unwrap() < 0.01, "{claim:?}");
}

#[test]
fn without_evidence_a_search_in_sprints_returns_the_initial_candidate() {
    let run = sprint(improves_on_train).run(Pace::default());
    let (end, claim) = (finished(&run), recorded(&run));
    assert_eq!(claim.verdict, ClaimVerdict::NoEvidence);
    assert_eq!(&end.best_candidate_id, initial(&run));
    assert!(claim.candidate_id != *initial(&run) && claim.sentence.ends_with(claim.candidate_id.as_str()), "{claim:?}");
    assert_eq!((end.train_gain, end.heldout_gain), (None, None), "the initial candidate has no gain over itself");
    assert_eq!(view(&run.events).best().unwrap().candidate.candidate_id, *initial(&run));

    let mut world = sprint(improves_on_train);
    world.config.gepa.sprint.return_unproven = true;
    let run = world.run(Pace::default());
    let unproven = recorded(&run);
    assert_eq!((unproven.verdict, unproven.p_value), (claim.verdict, claim.p_value));
    assert_eq!(finished(&run).best_candidate_id, unproven.candidate_id);
    assert!(!unproven.sentence.contains("preferred"), "{}", unproven.sentence);
}

#[test]
fn held_out_rows_are_spent_on_the_initial_candidate_only_if_nothing_was_better() {
    let run = sprint(falls).run(Pace::default());
    let (end, claim) = (finished(&run), recorded(&run));
    assert_eq!(claim.verdict, ClaimVerdict::Unchanged);
    assert_eq!((claim.sentence.as_str(), end.rollouts.heldout), ("no candidate was better than the initial one", 24));
}

#[test]
fn the_rule_that_chooses_by_held_out_rows_returns_its_choice_and_claims_nothing() {
    let mut world = sprint(improves);
    world.config.gepa.deployment_rule = DeploymentRule::HeldoutBest;
    let run = world.run(Pace::default());
    let claim = recorded(&run);
    let measured = run.count("heldout.completed");
    assert!(measured > 2, "{measured} candidates");
    assert_eq!(claim.verdict, ClaimVerdict::NoEvidence);
    assert!(claim.sentence.contains(&format!("chose among {measured} candidates")), "{}", claim.sentence);
    assert_eq!(finished(&run).best_candidate_id, claim.candidate_id);
}

#[test]
fn the_reference_search_returns_its_best_candidate_and_its_claim_is_derived() {
    for (score, verdict) in [
        (improves as Scorer, ClaimVerdict::Better),
        (improves_on_train, ClaimVerdict::NoEvidence),
        (falls, ClaimVerdict::Unchanged),
    ] {
        let run = World { heldout: 24, ..climbing(score) }.run(Pace::default());
        let end = finished(&run);
        assert_eq!(end.claim, None, "recorded logs of the reference search stay as they are");
        assert_eq!(end.best_candidate_id == *initial(&run), verdict == ClaimVerdict::Unchanged);
        let claim = view(&run.events).claim(TOLERANCE).unwrap();
        assert_eq!((claim.verdict, &claim.candidate_id), (verdict, &end.best_candidate_id), "{}", claim.sentence);
    }
}

#[test]
fn a_run_that_is_not_completed_claims_nothing() {
    let run = sprint(improves).run(Pace { cancel_after: Some(40), ..Pace::default() });
    assert_eq!(view(&run.events).claim(TOLERANCE), None);
}

/// The engine decides by its own scores; outputs derive the claim from the log. Both find the same.
#[test]
fn the_recorded_claim_equals_the_derived_one() {
    let mut claims = 0;
    for seed in 0..12 {
        let mut world = World { train: 20, heldout: 15, failure: 0.3, noise: 0.1, ..World::default() };
        world.config.run.seed = seed;
        world.config.gepa.search = SearchMode::Sprint;
        world.config.gepa.max_generations = Some(40);
        let run = world.run(Pace { arrival_seed: seed, ..Pace::default() });
        let recorded = recorded(&run).clone();
        let end =
            RunFinished { best_candidate_id: recorded.candidate_id.clone(), claim: None, ..finished(&run).clone() };
        let (_, before) = run.events.split_last().unwrap();
        let derived = view(before.iter().chain([&Event::RunFinished(end)])).claim(TOLERANCE).unwrap();
        assert_eq!(
            (derived.verdict, derived.gain, derived.p_value),
            (recorded.verdict, recorded.gain, recorded.p_value),
            "seed {seed}"
        );
        claims += u32::from(recorded.gain.is_some());
    }
    assert!(claims >= 4, "{claims} of 12 runs preferred another candidate");
}

#[test]
fn rollouts_are_counted_by_purpose() {
    let run = sprint(improves).run(Pace::default());
    let shown = view(&run.events);
    let (counts, purposes) = (shown.totals.counts, shown.rollouts_by_purpose);
    assert_eq!(purposes.heldout, counts.heldout_rollouts);
    let train = purposes.initial
        + purposes.repeat
        + purposes.reference
        + purposes.screening
        + purposes.glance
        + purposes.check
        + purposes.full_evaluation;
    assert_eq!(train, counts.train_rollouts);
    assert!(
        purposes.initial > 0 && purposes.repeat > 0 && purposes.screening > 0 && purposes.check > 0,
        "{purposes:?}"
    );
    assert_eq!(purposes.full_evaluation, 0, "a search in sprints checks the sum of its changes instead");
}
