//! What must hold, by number and name.

/// When an invariant is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// After every commit.
    EveryStep,
    /// Once trouble has stopped and everything had its chance to finish.
    Quiescence,
    /// By comparing stores ([`compare`](crate::compare)): not a matter of one store's simulation.
    AcrossStores,
}

macro_rules! invariants {
    ($($number:literal $name:ident $class:ident $sentence:literal),+ $(,)?) => {
        /// A property of every history.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Invariant {
            $(#[doc = $sentence] $name),+
        }

        impl Invariant {
            /// All of them, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The number under which it is known.
            #[must_use]
            pub const fn number(self) -> u8 {
                match self { $(Self::$name => $number),+ }
            }

            /// What must hold.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence),+ }
            }

            /// When it is checked.
            #[must_use]
            pub const fn class(self) -> Class {
                match self { $(Self::$name => Class::$class),+ }
            }
        }
    };
}

invariants! {
    0 SoundAnswers EveryStep "Every call ends, each commit stays within its reach, and no call answers `bug` or `unavailable`.",
    // Ownership.
    1 SingleLease EveryStep "At most one live lease per execution at any instant.",
    2 EpochRises EveryStep "The lease epoch strictly increases; no two ownership grants share an epoch.",
    3 ForeignFenceChangesNothing EveryStep "A mutation carrying a fence that is not the stored one changes nothing.",
    4 LostOwnerFails EveryStep "After a lease expired or was revoked no call of the old owner succeeds.",
    5 TerminalStaysUnowned EveryStep "A terminal execution becomes owned again only after a replay.",
    6 LeasedIsIndexed EveryStep "Leased means active, leased, due to expire, and among the leases of its owner.",
    7 LeasesAddUp EveryStep "The leases of all workers are as many as the leased executions.",
    8 GrantIsSingleUse EveryStep "A grant is consumed at most once, only by its worker, only before its expiry.",
    9 ReclaimsAreCapped EveryStep "The reclaim count never exceeds the effective cap.",
    // State machine.
    10 PublicStateIsDerived EveryStep "The public state equals its derivation and every record stands in the indexes it implies.",
    11 AttemptsAreNumbered EveryStep "Attempts are 0 to n-1 without gaps, at most the last is open, ended ones never change.",
    12 AttemptsAreAccounted EveryStep "Attempts are one first, plus retries, replays and reclaims consumed by claims.",
    13 RetriesAreCapped EveryStep "The retry count stays within the policy; permanent failures never retry.",
    14 DelayIsKept Quiescence "A delayed execution is not claimable before its time and is claimable soon after it.",
    15 DeadlineEnds Quiescence "An execution past its deadline becomes terminal from any phase.",
    16 TimesAreStable EveryStep "The completion time is set exactly while terminal; the start time never changes once set.",
    17 OneCompletionEvent EveryStep "Each entry into terminal emits exactly one completion event with the matching outcome.",
    18 ReplayedReplyIsSilent EveryStep "A repeated complete, fail or cancel answers the first outcome and emits nothing.",
    // Creation.
    19 CreatedOnce EveryStep "Two creations with the same live key, or the same id, yield one unchanged execution.",
    20 InvalidLeavesNoTrace EveryStep "Invalid policy, capability or tag input leaves no trace.",
    21 CapabilityIsRequired EveryStep "A worker that lacks a required capability, or does not handle the kind, never obtains a grant or a claim.",
    // Suspension and signals.
    22 OneOpenSuspension EveryStep "At most one suspension is open, exactly while the execution is suspended.",
    23 SignalAcceptedOnce EveryStep "No signal id and no (waitpoint, idempotency key) is accepted twice.",
    24 SignalStaysHome EveryStep "A signal changes only the execution of its waitpoint, while that suspension is current.",
    25 ClosedWaitpointsStayClosed EveryStep "Closing a suspension closes all its waitpoints; a closed waitpoint accepts nothing.",
    26 ConditionIsHonoured EveryStep "A condition holds exactly when its signals satisfy it, in whatever order they came.",
    27 BufferedSignalsCount EveryStep "Buffered signals count exactly as if delivered after activation.",
    28 AlreadySatisfiedKeepsLease EveryStep "An already satisfied suspension leaves lease, epoch and attempt untouched.",
    29 TokenGrace EveryStep "A token of a retired key verifies until its grace ends and never after.",
    30 RefusalsLookAlike EveryStep "Wrong token, missing waitpoint and foreign waitpoint are answered alike.",
    31 ResumeKeepsAttempt EveryStep "Resuming keeps attempt id, index and stream.",
    // Flows.
    32 MembershipIsMutual EveryStep "An execution names a flow exactly when it is a member; counts equal the sets.",
    33 RevisionCounts EveryStep "The graph revision rises by one per structural change; a stale revision never writes.",
    34 GraphIsAcyclic EveryStep "The edge set is acyclic.",
    35 GroupDecidesOnce EveryStep "Settled edges never exceed the total; a group leaves pending at most once.",
    36 DownstreamWaits EveryStep "A downstream never starts before its group is satisfied, nor stays blocked once it is decided.",
    37 ImpossibleSkips Quiescence "Impossible groups end in skipped, transitively; every member becomes terminal.",
    38 SiblingsAsPromised EveryStep "LetRun cancels no sibling; CancelRemaining exactly those not terminal at the decision.",
    39 CancelSparesTerminal EveryStep "Cancelling a flow ends all members and changes none that was terminal.",
    40 CancelledFlowIsClosed EveryStep "A cancelled flow accepts no members, edges or applications.",
    41 ProjectionAgrees Quiescence "Projection totals equal member states.",
    // Budgets, quotas.
    42 HardLimitHolds EveryStep "Usage never exceeds a hard limit through reports; a hard breach adds nothing.",
    43 UsageAddsUp EveryStep "Usage is the sum of reports minus releases since the last reset, and covers the ledgers.",
    44 UsageAppliedOnce EveryStep "A usage deduplication key is applied at most once in its lifetime.",
    45 ReleaseIsIdempotent EveryStep "Release after release, and release after reset, change nothing.",
    46 AdmissionsAreBounded EveryStep "Admissions per window, and holders at once, stay within the quota; counters equal holders.",
    47 DenialLeavesNoTrace EveryStep "Denied or rolled-back admissions leave no trace.",
    // Streams, events, retention.
    48 FramesAreOrdered EveryStep "Frame ids strictly increase, counts never decrease, nothing is appended after closure.",
    49 SummaryVersions EveryStep "The summary version is the number of summary frames; the null sentinel never shows.",
    50 DurableFramesStay EveryStep "A best-effort lifetime never deletes a stream that holds durable frames.",
    51 CursorsResume Quiescence "Subscribing with a cursor delivers every later event and none earlier.",
    52 PurgeIsComplete Quiescence "A purge removes every trace of an execution and nothing of any other.",
    53 TimersAreIdempotent Quiescence "Every timer hook can run again without effect.",
    54 StoresAgree AcrossStores "Any history accepted by one store gives the same observations on the others.",
}

impl std::fmt::Display for Invariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {self:?}: {}", self.number(), self.sentence())
    }
}

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// What was seen instead.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invariants_are_numbered_without_gaps() {
        let numbers: Vec<u8> = Invariant::ALL.iter().map(|invariant| invariant.number()).collect();

        assert_eq!(numbers, (0..=54).collect::<Vec<u8>>());
    }
}
