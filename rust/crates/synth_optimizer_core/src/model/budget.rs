//! The budget of a run. Resources are reserved before a call is sent, and charged or released when it is settled.
//!
//! Invariant: for every dimension with a cap, `spent + reserved <= cap` at all times. Usage beyond a reservation and beyond
//! the cap is recorded separately as `overrun`. It stays visible and never makes room for more work.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ids::CallId;
use super::usage::{Billing, Usage};
use crate::string_enum;

string_enum! {
    /// A limited resource.
    Dimension {
        TrainRollouts = "train_rollouts",
        HeldoutRollouts = "heldout_rollouts",
        TotalRollouts = "total_rollouts",
        /// In billionths of a dollar.
        Cost = "cost_nano_usd",
        PromptTokens = "prompt_tokens",
        CompletionTokens = "completion_tokens",
        TotalTokens = "total_tokens",
        /// In milliseconds.
        WallMillis = "wall_millis",
        Generations = "generations",
    }
}

const DIMENSIONS: usize = Dimension::ALL.len();

/// One value per dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PerDimension<T>([T; DIMENSIONS]);

/// An amount of each resource, for example of a reservation.
pub type Resources = PerDimension<u64>;

/// Upper bounds by dimension; `None` is no limit.
pub type Caps = PerDimension<Option<u64>>;

impl<T: Copy> PerDimension<T> {
    pub fn get(&self, dimension: Dimension) -> T {
        self.0[dimension as usize]
    }

    #[must_use]
    pub fn with(mut self, dimension: Dimension, value: T) -> Self {
        self.0[dimension as usize] = value;
        self
    }
}

impl Resources {
    pub const ZERO: Self = Self([0; DIMENSIONS]);

    /// Adds one rollout, which counts in its own dimension and in the total.
    #[must_use]
    pub fn rollout(self, own: Dimension) -> Self {
        self.with(own, 1).with(Dimension::TotalRollouts, 1)
    }

    /// Returns `count` times the amount. Wall time stays the same, because calls run in parallel.
    #[must_use]
    pub fn times(&self, count: u64) -> Self {
        let mut out = Self(self.0.map(|value| value.saturating_mul(count)));
        if count > 0 {
            out.0[Dimension::WallMillis as usize] = self.get(Dimension::WallMillis);
        }
        out
    }

    /// Returns the sum of both amounts. Wall time is the larger of both, because calls run in parallel.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut out = *self;
        out.add(other);
        out.0[Dimension::WallMillis as usize] = self.get(Dimension::WallMillis).max(other.get(Dimension::WallMillis));
        out
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(theirs);
        }
    }

    fn subtract(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_sub(theirs);
        }
    }
}

/// The dimension and amounts that prevent a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRefusal {
    pub dimension: Dimension,
    pub wanted: u64,
    pub available: u64,
}

/// Spent and reserved amounts, with their caps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Budget {
    caps: Caps,
    spent: Resources,
    reserved: Resources,
    overrun: Resources,
    /// Set aside for the final evaluation.
    held: Resources,
    open: BTreeMap<CallId, Resources>,
    elapsed_millis: u64,
}

impl Budget {
    pub fn new(caps: Caps) -> Self {
        Self { caps, ..Self::default() }
    }

    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    pub fn spent(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::WallMillis => self.elapsed_millis.min(self.caps.get(dimension).unwrap_or(u64::MAX)),
            other => self.spent.get(other),
        }
    }

    pub fn reserved(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::WallMillis => {
                let horizon = self.open.values().map(|amount| amount.get(Dimension::WallMillis)).max().unwrap_or(0);
                horizon.saturating_sub(self.elapsed_millis)
            }
            other => self.reserved.get(other).saturating_add(self.held.get(other)),
        }
    }

    /// Returns the usage beyond the cap, caused by calls that were already in flight.
    pub fn overrun(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::WallMillis => self.elapsed_millis.saturating_sub(self.caps.get(dimension).unwrap_or(u64::MAX)),
            other => self.overrun.get(other),
        }
    }

    /// Returns the available amount; `None` is no limit.
    pub fn available(&self, dimension: Dimension) -> Option<u64> {
        Some(self.caps.get(dimension)?.saturating_sub(self.used(dimension)))
    }

    /// Returns everything that counts against a cap.
    fn used(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::WallMillis => self.elapsed_millis,
            other => self.spent(other).saturating_add(self.reserved(other)).saturating_add(self.overrun(other)),
        }
    }

    /// Checks whether an amount can be reserved now.
    pub fn fits(&self, amount: &Resources) -> Result<(), BudgetRefusal> {
        for dimension in Dimension::ALL {
            let wanted = amount.get(dimension);
            if let Some(available) = self.available(dimension)
                && wanted > available
            {
                return Err(BudgetRefusal { dimension, wanted, available });
            }
        }
        Ok(())
    }

    /// Returns how many units can be reserved now, at most `want`, and the refusal that prevents one more.
    pub fn max_affordable(&self, unit: &Resources, want: u64) -> (u64, Option<BudgetRefusal>) {
        let mut most = want;
        let mut limit = None;
        for dimension in Dimension::ALL {
            let each = unit.get(dimension);
            let Some(available) = self.available(dimension) else { continue };
            if each == 0 {
                continue;
            }
            let count = match dimension {
                // Calls run in parallel: enough time for one is enough for all.
                Dimension::WallMillis if each <= available => want,
                Dimension::WallMillis => 0,
                _ => available / each,
            };
            if count < most {
                most = count;
                limit = Some(BudgetRefusal { dimension, wanted: unit.times(want).get(dimension), available });
            }
        }
        (most, limit)
    }

    /// Returns the limits that were exceeded, with the amount that was spent. Time is not one of them: it passes.
    pub fn exceeded(&self) -> impl Iterator<Item = (Dimension, u64, u64)> + '_ {
        Dimension::ALL.into_iter().filter(|dimension| *dimension != Dimension::WallMillis).filter_map(|dimension| {
            let (cap, spent) =
                (self.caps.get(dimension)?, self.spent(dimension).saturating_add(self.overrun(dimension)));
            (spent > cap).then_some((dimension, cap, spent))
        })
    }

    /// Sets an amount aside for the final evaluation. Wall time cannot be set aside.
    pub fn set_aside(&mut self, amount: Resources) -> Result<(), BudgetRefusal> {
        let amount = amount.with(Dimension::WallMillis, 0);
        self.fits(&amount)?;
        self.held.add(&amount);
        Ok(())
    }

    /// Returns what is set aside.
    pub fn set_aside_amount(&self) -> Resources {
        self.held
    }

    /// Raises what is set aside to an amount, as far as there is room.
    pub fn raise_set_aside(&mut self, amount: &Resources) {
        for dimension in Dimension::ALL.into_iter().filter(|dimension| *dimension != Dimension::WallMillis) {
            let more = amount.get(dimension).saturating_sub(self.held.get(dimension));
            let room = self.available(dimension).map_or(more, |available| more.min(available));
            self.held.0[dimension as usize] = self.held.get(dimension).saturating_add(room);
        }
    }

    /// Releases what was set aside.
    pub fn release_set_aside(&mut self) {
        self.held = Resources::ZERO;
    }

    /// Reserves an amount for a call. A second reservation for the same call replaces the first.
    pub fn reserve(&mut self, call_id: CallId, amount: Resources) -> Result<(), BudgetRefusal> {
        self.fits(&amount)?;
        self.reserved.add(&amount.with(Dimension::WallMillis, 0));
        // Wall time is stored as the elapsed time at which the call is expected to end.
        let horizon = match amount.get(Dimension::WallMillis) {
            0 => 0,
            estimate => self.elapsed_millis.saturating_add(estimate),
        };
        if let Some(replaced) = self.open.insert(call_id, amount.with(Dimension::WallMillis, horizon)) {
            self.reserved.subtract(&replaced.with(Dimension::WallMillis, 0));
        }
        Ok(())
    }

    /// Settles a call: ends its reservation and charges its usage. A call without a reservation has no effect.
    pub fn settle(&mut self, call_id: CallId, billing: Billing, usage: &Usage) {
        let Some(reservation) = self.open.remove(&call_id) else { return };
        let reservation = reservation.with(Dimension::WallMillis, 0);
        self.reserved.subtract(&reservation);
        self.spend(&charge(&reservation, billing, usage));
    }

    /// Returns whether the budget covers a call twice: the one whose outcome is unknown, and sending it again.
    pub fn covers_resend(&self, call_id: CallId) -> bool {
        self.open.get(&call_id).is_some_and(|amount| self.fits(&amount.with(Dimension::WallMillis, 0)).is_ok())
    }

    /// Charges the reservation of a call whose outcome is unknown, and keeps the reservation for sending the call again.
    pub fn charge_unknown(&mut self, call_id: CallId) {
        if let Some(reservation) = self.open.get(&call_id).copied() {
            self.spend(&reservation.with(Dimension::WallMillis, 0));
        }
    }

    /// Returns whether an amount can be reserved after a call is settled, whose usage may differ from its reservation.
    pub fn fits_after(&self, call_id: CallId, billing: Billing, usage: &Usage, amount: &Resources) -> bool {
        let reservation = self.open.get(&call_id).copied().unwrap_or_default().with(Dimension::WallMillis, 0);
        let charged = charge(&reservation, billing, usage);
        Dimension::ALL.into_iter().all(|dimension| {
            let used = self.used(dimension).saturating_sub(reservation.get(dimension));
            let wanted = used.saturating_add(charged.get(dimension)).saturating_add(amount.get(dimension));
            amount.get(dimension) == 0 || self.caps.get(dimension).is_none_or(|cap| wanted <= cap)
        })
    }

    /// Counts a generation, which needs no reservation.
    pub fn count_generation(&mut self) {
        self.spend(&Resources::ZERO.with(Dimension::Generations, 1));
    }

    /// Records the measured running time. A smaller value than before has no effect.
    pub fn observe_elapsed(&mut self, elapsed_millis: u64) {
        self.elapsed_millis = self.elapsed_millis.max(elapsed_millis);
    }

    pub fn elapsed_millis(&self) -> u64 {
        self.elapsed_millis
    }

    fn spend(&mut self, actual: &Resources) {
        for dimension in Dimension::ALL {
            let used = actual.get(dimension);
            let counted = self.available(dimension).map_or(used, |available| used.min(available));
            let (spent, overrun) = (&mut self.spent.0[dimension as usize], &mut self.overrun.0[dimension as usize]);
            *spent = spent.saturating_add(counted);
            *overrun = overrun.saturating_add(used - counted);
        }
    }
}

/// Returns what a call reports, by dimension. `None` is unknown.
pub fn reported(usage: &Usage) -> [(Dimension, Option<u64>); 4] {
    [
        (Dimension::Cost, usage.cost.known().map(|amount| amount.0)),
        (Dimension::PromptTokens, usage.prompt_tokens),
        (Dimension::CompletionTokens, usage.completion_tokens),
        (Dimension::TotalTokens, usage.total()),
    ]
}

/// Returns the amount to charge: the reported usage, and the reserved amount where nothing was reported.
fn charge(reservation: &Resources, billing: Billing, usage: &Usage) -> Resources {
    let mut out = *reservation;
    match billing {
        Billing::Unsent => return Resources::ZERO,
        Billing::Unknown => return out,
        Billing::Cached | Billing::Sent => {}
    }
    for (dimension, value) in reported(usage) {
        if let Some(value) = value {
            out = out.with(dimension, value);
        }
    }
    out
}
