//! Tests of cost, tokens and limits. Compares the budget with a simple model, and checks the handling of unknown cost.
use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, TestCaseError, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use serde_json::{Value, json};
use synth_optimizer_core::model::budget::{Budget, BudgetRefusal, Caps, Dimension, Resources};
use synth_optimizer_core::model::ids::CallId;
use synth_optimizer_core::model::usage::{Billing, Cost, NanoUsd, Spend, Usage};

fn known(nano: u64) -> Cost {
    Cost::Known(NanoUsd(nano))
}

/// How a call is billed, and its usage.
type Settlement = (Billing, Usage);

fn used(usage: Usage) -> Settlement {
    (Billing::Sent, usage)
}

/// Returns the total usage of these calls.
fn billed(calls: &[Settlement]) -> Spend {
    let mut bill = Spend::default();
    for (billing, usage) in calls {
        bill.count(*billing, usage);
    }
    bill
}

trait SettleAs {
    fn settle_as(&mut self, call_id: CallId, settlement: Settlement);
}

impl SettleAs for Budget {
    fn settle_as(&mut self, call_id: CallId, (billing, usage): Settlement) {
        self.settle(call_id, billing, &usage);
    }
}

fn one_cap(dimension: Dimension, cap: u64) -> Budget {
    Budget::new(Caps::default().with(dimension, Some(cap)))
}

/// Returns whether the budget's invariant holds in every dimension.
fn holds(budget: &Budget) -> bool {
    Dimension::ALL.into_iter().all(|dimension| {
        let cap = budget.caps().get(dimension);
        cap.is_none_or(|cap| budget.spent(dimension) + budget.reserved(dimension) <= cap)
    })
}

// Usage.

#[test]
fn unknown_cost_is_absorbing_and_never_zero() {
    let sum = |costs: &[Cost]| {
        let mut spend = Spend::default();
        costs.iter().for_each(|cost| spend.count(Billing::Sent, &Usage { cost: *cost, ..Usage::default() }));
        spend.cost()
    };
    assert_eq!(sum(&[known(2), known(3)]), known(5));
    assert_eq!(sum(&[known(2), Cost::Unknown]), Cost::Unknown);
    assert_eq!(sum(&[Cost::Unknown, known(2)]), Cost::Unknown);
    assert_eq!(sum(&[Cost::Unknown, Cost::Unknown]), Cost::Unknown);
    assert_eq!(sum(&[known(u64::MAX), known(1)]), known(u64::MAX));
    assert_eq!(sum(&[known(1), Cost::Unknown, known(1)]), Cost::Unknown);
    assert_ne!(Cost::Unknown, known(0));
    assert_eq!(Cost::default(), Cost::Unknown);
    assert_eq!(Cost::Unknown.known(), None);
    assert_eq!(known(7).known(), Some(NanoUsd(7)));
}

#[test]
fn negative_and_non_finite_amounts_are_rejected() {
    for odd in [-0.01, -1e-300, f64::NEG_INFINITY, f64::INFINITY, f64::NAN, 1e10, f64::MAX] {
        assert_eq!(NanoUsd::from_usd(odd), None, "{odd}");
        assert_eq!(Cost::from_usd(Some(odd)), Cost::Unknown, "{odd}");
    }
    assert_eq!(Cost::from_usd(None), Cost::Unknown);
    assert_eq!(Cost::from_usd(Some(0.0)), known(0));
    assert_eq!(Cost::from_usd(Some(-0.0)), known(0));
    assert_eq!(NanoUsd::from_usd(9e9), Some(NanoUsd(9_000_000_000_000_000_000)));
}

#[test]
fn dollars_become_nano_dollars_rounded_up() {
    let cases = [
        (1.0, 1_000_000_000),
        (0.1, 100_000_000),
        (0.3, 300_000_000),
        (0.000_000_001, 1),
        (0.000_000_001_5, 2),
        (0.000_000_002_1, 3),
        (1e-12, 1),
        (1_234.567_890_123, 1_234_567_890_123),
        (1_000_000.0, 1_000_000_000_000_000),
    ];
    for (usd, nano) in cases {
        assert_eq!(NanoUsd::from_usd(usd), Some(NanoUsd(nano)), "{usd}");
    }
}

#[test]
fn costs_on_the_wire() {
    assert_eq!(serde_json::to_value(known(250_000_000)).unwrap(), json!(0.25));
    assert_eq!(serde_json::to_value(known(0)).unwrap(), json!(0.0));
    assert_eq!(serde_json::to_value(Cost::Unknown).unwrap(), Value::Null);
    let read = |value: Value| serde_json::from_value::<Cost>(value).unwrap();
    assert_eq!(read(json!(null)), Cost::Unknown);
    assert_eq!(read(json!(0)), known(0));
    assert_eq!(read(json!(3)), known(3_000_000_000));
    assert_eq!(read(json!(-1.0)), Cost::Unknown);
    assert!(serde_json::from_value::<Cost>(json!("free")).is_err());

    let usage = Usage { prompt_tokens: Some(3), completion_tokens: None, total_tokens: Some(0), cost: Cost::Unknown };
    let wire = json!({ "prompt_tokens": 3, "completion_tokens": null, "total_tokens": 0, "cost_usd": null });
    assert_eq!(serde_json::to_value(usage).unwrap(), wire);
    assert_eq!(serde_json::from_value::<Usage>(wire).unwrap(), usage);
    assert_eq!(serde_json::from_value::<Usage>(json!({})).unwrap(), Usage::default());
    assert_eq!((known(1_234_560_000).to_string(), Cost::Unknown.to_string()), ("$1.2346".into(), "unknown".into()));
}

#[test]
fn totals_are_stated_or_summed_and_otherwise_unknown() {
    let total = |prompt_tokens, completion_tokens, total_tokens| {
        Usage { prompt_tokens, completion_tokens, total_tokens, cost: Cost::Unknown }.total()
    };
    assert_eq!(total(Some(3), Some(4), Some(9)), Some(9));
    assert_eq!(total(Some(3), Some(4), None), Some(7));
    assert_eq!(total(Some(3), None, None), None);
    assert_eq!(total(None, Some(4), None), None);
    assert_eq!(total(None, None, Some(0)), Some(0));
    assert_eq!(total(Some(u64::MAX), Some(1), None), Some(u64::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn nano_dollars_survive_dollars_and_the_wire(nano in 0..=1_000_000_000_000_000u64) {
        prop_assert_eq!(NanoUsd::from_usd(NanoUsd(nano).usd()), Some(NanoUsd(nano)));
        let line = serde_json::to_string(&known(nano)).unwrap();
        prop_assert_eq!(serde_json::from_str::<Cost>(&line).unwrap(), known(nano));
    }

    #[test]
    fn rounding_never_makes_an_amount_smaller(usd in 0.0..1000.0f64) {
        // Half a millionth of a nano-dollar is a rounding error.
        let NanoUsd(nano) = NanoUsd::from_usd(usd).unwrap();
        prop_assert!(nano as f64 >= usd * 1e9 - 1e-3, "{usd} became {nano}");
        prop_assert!((nano as f64) < usd * 1e9 + 1.0, "{usd} became {nano}");
    }
}

// Amounts.

#[test]
fn amounts_add_up_except_for_wall_time() {
    let unit =
        Resources::ZERO.with(Dimension::Cost, 5).with(Dimension::WallMillis, 70).rollout(Dimension::TrainRollouts);
    assert_eq!(unit.get(Dimension::TrainRollouts), 1);
    assert_eq!(unit.get(Dimension::TotalRollouts), 1);
    assert_eq!(unit.get(Dimension::HeldoutRollouts), 0);
    let three = unit.times(3);
    assert_eq!((three.get(Dimension::Cost), three.get(Dimension::WallMillis)), (15, 70));
    assert_eq!(three.get(Dimension::TotalRollouts), 3);
    assert_eq!(unit.times(0), Resources::ZERO);
    let both = three.plus(&Resources::ZERO.with(Dimension::WallMillis, 90).rollout(Dimension::HeldoutRollouts));
    assert_eq!((both.get(Dimension::WallMillis), both.get(Dimension::TotalRollouts)), (90, 4));
    assert_eq!((both.get(Dimension::TrainRollouts), both.get(Dimension::HeldoutRollouts)), (3, 1));
}

#[test]
fn every_dimension_is_listed_once() {
    let words: Vec<&str> = Dimension::ALL.into_iter().map(Dimension::as_str).collect();
    assert_eq!(words, Dimension::NAMES);
    for (place, dimension) in Dimension::ALL.into_iter().enumerate() {
        let amount = Resources::ZERO.with(dimension, 1);
        let at: Vec<usize> = (0..9).filter(|other| amount.get(Dimension::ALL[*other]) == 1).collect();
        assert_eq!(at, [place]);
    }
}

// The budget, with explicit values.

#[test]
fn settling_charges_the_actual_usage() {
    let mut budget = one_cap(Dimension::Cost, 100);
    let unit = Resources::ZERO.with(Dimension::Cost, 40);
    budget.reserve(CallId(0), unit).unwrap();
    budget.reserve(CallId(1), unit).unwrap();
    assert_eq!(
        budget.reserve(CallId(2), unit),
        Err(BudgetRefusal { dimension: Dimension::Cost, wanted: 40, available: 20 })
    );
    budget.settle_as(CallId(0), used(Usage { cost: known(10), ..Usage::default() }));
    assert_eq!((budget.spent(Dimension::Cost), budget.reserved(Dimension::Cost)), (10, 40));
    assert_eq!(budget.available(Dimension::Cost), Some(50));
    budget.reserve(CallId(2), unit).unwrap();
    // The call exceeds its estimate: 10 of the 60 are beyond the cap, and the other reservation does not change.
    budget.settle_as(CallId(1), used(Usage { cost: known(60), ..Usage::default() }));
    assert_eq!((budget.spent(Dimension::Cost), budget.reserved(Dimension::Cost)), (60, 40));
    assert_eq!(budget.overrun(Dimension::Cost), 10);
    // A later release does not reduce the overrun, and the overrun makes no room.
    budget.settle_as(CallId(2), (Billing::Unsent, Usage::default()));
    assert_eq!((budget.spent(Dimension::Cost), budget.overrun(Dimension::Cost)), (60, 10));
    assert_eq!(budget.available(Dimension::Cost), Some(30));
}

#[test]
fn cached_calls_count_against_the_limits_and_cost_nothing() {
    let mut budget = one_cap(Dimension::TrainRollouts, 2);
    let unit = Resources::ZERO.with(Dimension::Cost, 5).rollout(Dimension::TrainRollouts);
    let usage = Usage { prompt_tokens: Some(11), cost: known(7), ..Usage::default() };
    budget.reserve(CallId(0), unit).unwrap();
    budget.settle_as(CallId(0), (Billing::Cached, usage));
    assert_eq!((budget.spent(Dimension::TrainRollouts), budget.spent(Dimension::Cost)), (1, 7));
    let bill = billed(&[(Billing::Cached, usage)]);
    assert_eq!(bill, Spend { cached_calls: 1, ..Spend::default() });
    assert_eq!(bill.cost(), known(0));
    // A cached call of unknown cost does not make the total unknown.
    budget.reserve(CallId(1), unit).unwrap();
    budget.settle_as(CallId(1), (Billing::Cached, Usage::default()));
    assert_eq!(billed(&[(Billing::Cached, Usage::default())]).cost(), known(0));
    assert_eq!(budget.spent(Dimension::Cost), 12);
}

#[test]
fn one_sent_call_of_unknown_cost_makes_the_total_unknown() {
    let mut budget = Budget::new(Caps::default());
    let unit = Resources::ZERO.with(Dimension::Cost, 5);
    let priced = used(Usage { cost: known(3), ..Usage::default() });
    let calls = [priced, used(Usage::default()), priced];
    for (call_id, settlement) in (0..).zip(calls) {
        budget.reserve(CallId(call_id), unit).unwrap();
        budget.settle_as(CallId(call_id), settlement);
    }
    let bill = billed(&calls);
    assert_eq!((bill.cost(), bill.known_cost), (Cost::Unknown, NanoUsd(6)));
    // The limit still counts the estimate.
    assert_eq!(budget.spent(Dimension::Cost), 11);
    assert_eq!(bill.unknown_outcomes, 0);
}

#[test]
fn an_unknown_outcome_costs_its_whole_reservation() {
    let mut budget = one_cap(Dimension::Cost, 50);
    let unit =
        Resources::ZERO.with(Dimension::Cost, 20).with(Dimension::TotalTokens, 9).rollout(Dimension::HeldoutRollouts);
    budget.reserve(CallId(0), unit).unwrap();
    budget.settle_as(CallId(0), (Billing::Unknown, Usage::default()));
    assert_eq!((budget.spent(Dimension::Cost), budget.spent(Dimension::HeldoutRollouts)), (20, 1));
    // The limit counts the reservation; the usage counts the call without tokens or cost.
    assert_eq!(budget.spent(Dimension::TotalTokens), 9);
    let bill = billed(&[(Billing::Unknown, Usage::default())]);
    assert_eq!((bill.cost(), bill.total_tokens), (Cost::Unknown, 0));
    assert_eq!((bill.sent_calls, bill.unknown_outcomes), (1, 1));
}

#[test]
fn wall_time_is_measured_and_calls_run_in_parallel() {
    let mut budget = one_cap(Dimension::WallMillis, 1000);
    let unit = Resources::ZERO.with(Dimension::WallMillis, 600);
    for call_id in 0..5 {
        budget.reserve(CallId(call_id), unit).unwrap();
    }
    assert_eq!((budget.spent(Dimension::WallMillis), budget.reserved(Dimension::WallMillis)), (0, 600));
    budget.observe_elapsed(250);
    budget.observe_elapsed(100);
    assert_eq!(budget.elapsed_millis(), 250);
    assert_eq!((budget.spent(Dimension::WallMillis), budget.reserved(Dimension::WallMillis)), (250, 350));
    assert_eq!(budget.available(Dimension::WallMillis), Some(750));
    budget.observe_elapsed(500);
    assert_eq!(
        budget.reserve(CallId(5), unit),
        Err(BudgetRefusal { dimension: Dimension::WallMillis, wanted: 600, available: 500 })
    );
    // Settling a call does not change the time.
    budget.settle_as(CallId(0), used(Usage::default()));
    budget.settle_as(CallId(1), (Billing::Unknown, Usage::default()));
    assert_eq!((budget.spent(Dimension::WallMillis), budget.reserved(Dimension::WallMillis)), (500, 100));
    budget.observe_elapsed(1300);
    assert_eq!((budget.spent(Dimension::WallMillis), budget.overrun(Dimension::WallMillis)), (1000, 300));
    assert_eq!((budget.reserved(Dimension::WallMillis), budget.available(Dimension::WallMillis)), (0, Some(0)));
    assert!(holds(&budget));
    let mut free = Budget::new(Caps::default());
    free.observe_elapsed(5000);
    assert_eq!((free.spent(Dimension::WallMillis), free.overrun(Dimension::WallMillis)), (5000, 0));
}

#[test]
fn amounts_set_aside_are_available_after_release() {
    let mut budget = one_cap(Dimension::TotalRollouts, 10);
    let unit = Resources::ZERO.rollout(Dimension::HeldoutRollouts);
    budget.set_aside(unit.times(6)).unwrap();
    assert_eq!((budget.reserved(Dimension::TotalRollouts), budget.available(Dimension::TotalRollouts)), (6, Some(4)));
    assert_eq!(budget.max_affordable(&Resources::ZERO.rollout(Dimension::TrainRollouts), 9).0, 4);
    assert!(budget.set_aside(unit.times(5)).is_err());
    budget.release_set_aside();
    assert_eq!((budget.reserved(Dimension::TotalRollouts), budget.available(Dimension::TotalRollouts)), (0, Some(10)));
    budget.release_set_aside();
    assert!(holds(&budget));
}

#[test]
fn a_call_has_at_most_one_reservation() {
    let mut budget = one_cap(Dimension::TrainRollouts, 3);
    let unit = Resources::ZERO.rollout(Dimension::TrainRollouts);
    budget.reserve(CallId(0), unit).unwrap();
    budget.reserve(CallId(0), unit).unwrap();
    assert_eq!(budget.reserved(Dimension::TrainRollouts), 1);
    budget.settle_as(CallId(0), used(Usage::default()));
    assert_eq!(budget.reserved(Dimension::TrainRollouts), 0);
    assert_eq!(budget.spent(Dimension::TrainRollouts), 1);
}

#[test]
fn absurd_amounts_do_not_overflow() {
    let huge = Usage {
        prompt_tokens: Some(u64::MAX),
        completion_tokens: Some(u64::MAX),
        total_tokens: None,
        cost: known(u64::MAX),
    };
    for caps in [Caps::default(), Caps::default().with(Dimension::PromptTokens, Some(5))] {
        let mut budget = Budget::new(caps);
        budget.observe_elapsed(7);
        for call_id in 0..3 {
            budget.reserve(CallId(call_id), Resources::ZERO.with(Dimension::WallMillis, u64::MAX)).unwrap();
            budget.settle_as(CallId(call_id), used(huge));
            assert!(holds(&budget));
        }
        assert_eq!(budget.spent(Dimension::Cost), u64::MAX);
        assert_eq!(budget.spent(Dimension::TotalTokens), u64::MAX);
        assert_eq!(billed(&[used(huge); 3]).cost(), known(u64::MAX));
    }
}

// The budget, compared with a simple model.

#[derive(Debug, Clone)]
enum Op {
    Reserve(Resources),
    /// Settles the open call at this index, modulo their number. Without an open call, settles an unknown one.
    SettleAs(usize, Settlement),
    SettleUnheardOf(Settlement),
    Elapsed(u64),
    Generation,
    Hold(Resources),
    ReleaseHold,
}

fn amounts() -> impl Strategy<Value = Resources> {
    let ledger = prop_oneof![Just(None), Just(Some(Dimension::TrainRollouts)), Just(Some(Dimension::HeldoutRollouts))];
    (ledger, [0..20u64, 0..20, 0..20, 0..20, 0..40]).prop_map(|(ledger, [cost, prompt, completion, total, wall])| {
        let amount = Resources::ZERO
            .with(Dimension::Cost, cost)
            .with(Dimension::PromptTokens, prompt)
            .with(Dimension::CompletionTokens, completion)
            .with(Dimension::TotalTokens, total)
            .with(Dimension::WallMillis, wall);
        ledger.map_or(amount, |ledger| amount.rollout(ledger))
    })
}

fn settlements() -> impl Strategy<Value = Settlement> {
    let tokens = || option::of(0..40u64);
    let usage = (tokens(), tokens(), tokens(), option::of(0..40u64)).prop_map(
        |(prompt_tokens, completion_tokens, total_tokens, cost)| Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens,
            cost: cost.map_or(Cost::Unknown, known),
        },
    );
    prop_oneof![
        4 => (usage, any::<bool>()).prop_map(|(usage, cached)| (Billing::answered(cached), usage)),
        1 => Just((Billing::Unknown, Usage::default())),
        1 => Just((Billing::Unsent, Usage::default())),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => amounts().prop_map(Op::Reserve),
        5 => (0..8usize, settlements()).prop_map(|(place, settlement)| Op::SettleAs(place, settlement)),
        1 => settlements().prop_map(Op::SettleUnheardOf),
        2 => (0..120u64).prop_map(Op::Elapsed),
        1 => Just(Op::Generation),
        1 => amounts().prop_map(Op::Hold),
        1 => Just(Op::ReleaseHold),
    ];
    vec(op, 0..40)
}

fn caps() -> impl Strategy<Value = Caps> {
    let (few, many) = (|| option::of(0..12u64), || option::weighted(0.7, 0..150u64));
    (few(), few(), few(), [many(), many(), many(), many(), many()], option::of(0..3u64)).prop_map(
        |(train, heldout, total, [cost, prompt, completion, tokens, wall], generations)| {
            Caps::default()
                .with(Dimension::TrainRollouts, train)
                .with(Dimension::HeldoutRollouts, heldout)
                .with(Dimension::TotalRollouts, total)
                .with(Dimension::Cost, cost)
                .with(Dimension::PromptTokens, prompt)
                .with(Dimension::CompletionTokens, completion)
                .with(Dimension::TotalTokens, tokens)
                .with(Dimension::WallMillis, wall)
                .with(Dimension::Generations, generations)
        },
    )
}

/// A simple model of the budget.
#[derive(Debug, Default)]
struct SimpleBudget {
    /// Call, reserved amount, and expected end.
    open: Vec<(CallId, Resources, u64)>,
    /// Amounts that are set aside, in order.
    held: Vec<Resources>,
    used: BTreeMap<&'static str, u64>,
    paid: BTreeMap<&'static str, u64>,
    elapsed: u64,
    sent_calls: u64,
    cached_calls: u64,
    unknown_outcomes: u64,
    cost_is_unknown: bool,
    next_call_id: u64,
    /// The product's own sum of usage, which is compared with this model.
    bill: Spend,
}

impl SimpleBudget {
    fn charge(&mut self, reserved: &Resources, settlement: Settlement) {
        let (billing, usage) = settlement;
        self.bill.count(billing, &usage);
        let pays = match billing {
            Billing::Unsent => return,
            Billing::Unknown | Billing::Sent => true,
            Billing::Cached => false,
        };
        self.unknown_outcomes += u64::from(billing == Billing::Unknown);
        *if pays { &mut self.sent_calls } else { &mut self.cached_calls } += 1;
        self.cost_is_unknown |= pays && usage.cost == Cost::Unknown;
        let total = match (usage.total_tokens, usage.prompt_tokens, usage.completion_tokens) {
            (Some(total), _, _) => Some(total),
            (None, Some(prompt), Some(completion)) => Some(prompt + completion),
            _ => None,
        };
        let stated = |dimension| match dimension {
            Dimension::Cost => usage.cost.known().map(|amount| amount.0),
            Dimension::PromptTokens => usage.prompt_tokens,
            Dimension::CompletionTokens => usage.completion_tokens,
            Dimension::TotalTokens => total,
            _ => None,
        };
        for dimension in Dimension::ALL.into_iter().filter(|dimension| *dimension != Dimension::WallMillis) {
            let value = stated(dimension).unwrap_or(reserved.get(dimension));
            *self.used.entry(dimension.as_str()).or_default() += value;
            if pays {
                *self.paid.entry(dimension.as_str()).or_default() += stated(dimension).unwrap_or(0);
            }
        }
    }

    fn reserved(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::WallMillis => {
                let end = self.open.iter().map(|(_, _, over_at)| *over_at).max().unwrap_or(0);
                end.saturating_sub(self.elapsed)
            }
            other => self.open.iter().map(|(_, amount, _)| amount).chain(&self.held).map(|set| set.get(other)).sum(),
        }
    }

    /// Returns the usage so far, including overruns.
    fn used(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::WallMillis => self.elapsed,
            other => self.used.get(other.as_str()).copied().unwrap_or(0),
        }
    }

    /// Returns the first limit that an amount would exceed. Time passes for all calls in parallel.
    fn too_much(&self, caps: &Caps, amount: &Resources) -> Option<Dimension> {
        Dimension::ALL.into_iter().find(|dimension| {
            let reserved = if *dimension == Dimension::WallMillis { 0 } else { self.reserved(*dimension) };
            let wanted = amount.get(*dimension);
            wanted > 0 && caps.get(*dimension).is_some_and(|cap| self.used(*dimension) + reserved + wanted > cap)
        })
    }

    fn agrees(&self, budget: &Budget) -> Result<(), TestCaseError> {
        prop_assert!(holds(budget));
        for dimension in Dimension::ALL {
            let word = dimension.as_str();
            let used = self.used(dimension);
            let (spent, reserved) = (budget.spent(dimension), budget.reserved(dimension));
            prop_assert_eq!(spent + budget.overrun(dimension), used, "used of {}", word);
            prop_assert_eq!(reserved, self.reserved(dimension), "reserved of {}", word);
            match budget.caps().get(dimension) {
                Some(cap) => {
                    prop_assert!(spent + reserved <= cap, "{} over {}", word, cap);
                    let taken = if dimension == Dimension::WallMillis { used } else { used + reserved };
                    prop_assert_eq!(budget.available(dimension), Some(cap.saturating_sub(taken)), "left of {}", word);
                }
                None => {
                    prop_assert_eq!(budget.available(dimension), None);
                    prop_assert_eq!(budget.overrun(dimension), 0, "overrun of {}", word);
                }
            }
        }
        let paid = |dimension: Dimension| self.paid.get(dimension.as_str()).copied().unwrap_or(0);
        let cost = if self.cost_is_unknown { Cost::Unknown } else { known(paid(Dimension::Cost)) };
        prop_assert_eq!((self.bill.cost(), self.bill.known_cost.0), (cost, paid(Dimension::Cost)));
        prop_assert_eq!(self.bill.prompt_tokens, paid(Dimension::PromptTokens));
        prop_assert_eq!(self.bill.completion_tokens, paid(Dimension::CompletionTokens));
        prop_assert_eq!(self.bill.total_tokens, paid(Dimension::TotalTokens));
        prop_assert_eq!(self.bill.sent_calls, self.sent_calls);
        prop_assert_eq!(self.bill.cached_calls, self.cached_calls);
        prop_assert_eq!(self.bill.unknown_outcomes, self.unknown_outcomes);
        prop_assert_eq!(budget.elapsed_millis(), self.elapsed);
        Ok(())
    }

    /// Applies one operation to the budget and to the model.
    fn apply(&mut self, budget: &mut Budget, op: &Op) -> Result<(), TestCaseError> {
        let before = budget.clone();
        match op {
            Op::Reserve(amount) => {
                let call_id = CallId(self.next_call_id);
                self.next_call_id += 1;
                let too_much = self.too_much(budget.caps(), amount);
                let answer = budget.reserve(call_id, *amount);
                prop_assert_eq!(answer.err().map(|refused| refused.dimension), too_much);
                if let Err(refused) = answer {
                    prop_assert_eq!(refused.wanted, amount.get(refused.dimension));
                    prop_assert_eq!(Some(refused.available), before.available(refused.dimension));
                    prop_assert_eq!(&before, &*budget, "a refusal changed something");
                } else {
                    let wall = amount.get(Dimension::WallMillis);
                    self.open.push((call_id, *amount, if wall == 0 { 0 } else { self.elapsed + wall }));
                }
            }
            Op::SettleAs(place, settlement) if !self.open.is_empty() => {
                let (call_id, amount, _) = self.open.remove(place % self.open.len());
                let foreseen = budget.fits_after(call_id, settlement.0, &settlement.1, &amount);
                budget.settle_as(call_id, *settlement);
                prop_assert_eq!(foreseen, budget.fits(&amount).is_ok(), "the same again, after {:?}", settlement);
                self.charge(&amount, *settlement);
                let settled = budget.clone();
                budget.settle_as(call_id, *settlement);
                prop_assert_eq!(&settled, &*budget, "settling twice changed something");
            }
            Op::SettleAs(_, settlement) | Op::SettleUnheardOf(settlement) => {
                budget.settle_as(CallId(u64::MAX), *settlement);
                prop_assert_eq!(&before, &*budget);
            }
            Op::Elapsed(elapsed) => {
                budget.observe_elapsed(*elapsed);
                self.elapsed = self.elapsed.max(*elapsed);
            }
            Op::Hold(amount) => {
                let amount = amount.with(Dimension::WallMillis, 0);
                let too_much = self.too_much(budget.caps(), &amount);
                let answer = budget.set_aside(amount.with(Dimension::WallMillis, 10_000));
                prop_assert_eq!(answer.err().map(|refused| refused.dimension), too_much);
                if too_much.is_some() {
                    prop_assert_eq!(&before, &*budget, "a refusal changed something");
                } else {
                    self.held.push(amount);
                }
            }
            Op::ReleaseHold => {
                budget.release_set_aside();
                self.held.clear();
            }
            Op::Generation => {
                budget.count_generation();
                *self.used.entry(Dimension::Generations.as_str()).or_default() += 1;
            }
        }
        for dimension in Dimension::ALL.into_iter().filter(|dimension| *dimension != Dimension::WallMillis) {
            prop_assert!(budget.spent(dimension) >= before.spent(dimension));
            // Only usage beyond the cap is an overrun.
            if budget.overrun(dimension) > before.overrun(dimension) {
                prop_assert_eq!(budget.available(dimension), Some(0), "overrun of {}", dimension.as_str());
            }
        }
        self.agrees(budget)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_budget_agrees_with_a_simple_model(caps in caps(), ops in ops()) {
        let (mut budget, mut books) = (Budget::new(caps), SimpleBudget::default());
        books.agrees(&budget)?;
        for op in &ops {
            books.apply(&mut budget, op)?;
        }
        let stored = serde_json::to_string(&budget).unwrap();
        prop_assert_eq!(serde_json::from_str::<Budget>(&stored).unwrap(), budget);
    }

    #[test]
    fn max_affordable_is_the_largest_count_that_fits(caps in caps(), ops in ops(), unit in amounts(), want in 0..30u64) {
        let (mut budget, mut books) = (Budget::new(caps), SimpleBudget::default());
        for op in &ops {
            books.apply(&mut budget, op)?;
        }
        let before = budget.clone();
        let (most, limit) = budget.max_affordable(&unit, want);
        prop_assert!(most <= want);
        prop_assert_eq!(limit.is_some(), most < want);
        prop_assert_eq!(&before, &budget);
        // Reserved one by one, exactly that many fit.
        for count in 0..most {
            prop_assert_eq!(budget.reserve(CallId(1_000_000 + count), unit), Ok(()));
        }
        if let Some(limit) = limit {
            prop_assert!(budget.reserve(CallId(2_000_000), unit).is_err());
            prop_assert_eq!(Some(limit.available), before.available(limit.dimension));
            prop_assert_eq!(limit.wanted, unit.times(want).get(limit.dimension));
            prop_assert!(limit.wanted > limit.available);
        }
        // Reserved together, the result is the same.
        prop_assert_eq!(before.fits(&unit.times(most)), Ok(()));
        prop_assert_eq!(before.fits(&unit.times(want)).is_err(), most < want);
    }
}
