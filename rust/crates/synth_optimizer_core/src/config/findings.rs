//! The one table of findings: every code that a problem of a configuration can have, its weight and its meaning.

use crate::model::error::Severity;

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindingCode {
    /// The stable code that users match on.
    pub code: &'static str,
    /// How much it weighs; nothing where that depends on the case.
    pub severity: Option<Severity>,
    pub about: &'static str,
}

macro_rules! findings {
    ($($name:ident = $code:literal, $severity:expr, $about:literal;)+) => {
        /// What a finding is about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Code { $($name,)+ }

        /// Every code of a finding, one row each.
        pub const FINDINGS: &[FindingCode] = &[$(FindingCode { code: $code, severity: $severity, about: $about },)+];

        impl Code {
            /// The row of this code.
            pub(super) const fn row(self) -> &'static FindingCode {
                &FINDINGS[self as usize]
            }
        }
    };
}

const ERROR: Option<Severity> = Some(Severity::Error);
const WARNING: Option<Severity> = Some(Severity::Warning);

findings! {
    BadKeyVariable = "bad_key_variable", ERROR, "A field that takes the name of a variable holds something else, perhaps a key.";
    BadPrefix = "bad_prefix", ERROR, "The prefix cannot begin a candidate id.";
    BadRunId = "bad_run_id", ERROR, "The id cannot name a run and its directory.";
    BadSet = "bad_set", ERROR, "A `--set` is not of the form `key.path=value`.";
    BadUrl = "bad_url", ERROR, "The address is not one that can be called.";
    Blank = "blank", ERROR, "A text is empty.";
    BudgetTooSmall = "budget_too_small", ERROR, "The rollouts do not suffice to measure the seed candidate.";
    Contradiction = "contradiction", ERROR, "Two fields cannot both be as they are.";
    CredentialInConfig = "credential_in_config", ERROR, "The name or the value looks like a credential.";
    Duplicate = "duplicate", ERROR, "Something is named twice.";
    EstimateRequired = "estimate_required", ERROR, "A limit needs an estimate of what one call uses.";
    GivenTwice = "given_twice", ERROR, "Two names of one field are both given.";
    HeldoutMetric = "heldout_metric", WARNING, "A stop rule is to look at held-out rows, which are measured later; it looks at train rows.";
    HomePath = "home_path", ERROR, "A path begins with `~`, which only a shell replaces.";
    MinibatchWithoutReflection = "minibatch_without_reflection", WARNING, "The proposer sees no traces of some rows of the minibatch pool.";
    NarrowWindow = "narrow_window", WARNING, "The window is too narrow for generations to overlap.";
    OutOfRange = "out_of_range", ERROR, "A number is too small, too large or not finite.";
    PoolOutside = "pool_outside", ERROR, "A pool names a row that is not among the rows.";
    ProxyNotEnforced = "proxy_not_enforced", WARNING, "The policy may go round the proxy that holds its credentials.";
    ReadonlyNamespace = "readonly_namespace", WARNING, "A readonly run reads the namespace of its own id.";
    RefusedValue = "refused_value", ERROR, "The value is known and refused.";
    Required = "required", ERROR, "A field that must be given is missing.";
    Syntax = "syntax", ERROR, "The file is not valid TOML.";
    TimeTooShort = "time_too_short", ERROR, "The time limit leaves no room for one proposer turn.";
    TooMany = "too_many", None, "More was found than is listed.";
    TrainHeldoutOverlap = "train_heldout_overlap", ERROR, "A row is both a train row and a held-out row.";
    UnknownKey = "unknown_key", ERROR, "No field or section has this name.";
    UnknownObjective = "unknown_objective", ERROR, "The objective is not declared.";
    UnknownValue = "unknown_value", ERROR, "The field does not take this word.";
    UnusedOption = "unused_option", WARNING, "The option belongs to a method that is not chosen.";
    VariableNotRead = "variable_not_read", WARNING, "The environment variable of an older release is not read any more.";
    WrongType = "wrong_type", ERROR, "The value is of another type.";
}
