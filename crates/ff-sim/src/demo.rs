//! A narrated tour: the engine in memory, on a clock that the tour moves itself.

mod acts;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ff_core::Result;
use ff_core::backend::claims::{ClaimPolicy, Claims};
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::ExecutionId;
use ff_engine::clock::{Clock, ManualClock};
use ff_engine::entropy::SeededEntropy;
use ff_engine::memory::MemoryStore;
use ff_engine::{Engine, Settings};

use crate::invariants::{Class, Invariant};
use crate::memory::name;
use crate::run::{Plan, run};
use crate::world::START;

/// Seeds and steps of the simulation at the end.
const SEEDS: u64 = 20;
const STEPS: usize = 300;

/// The tour under way: an engine, its clock, and what was said.
struct Tour {
    engine: Engine<MemoryStore>,
    clock: ManualClock,
    lines: Vec<String>,
}

impl Tour {
    fn title(&mut self, text: &str) {
        self.lines.push(String::new());
        self.lines.push(text.to_owned());
    }

    /// What is done, and what comes of it.
    fn say(&mut self, what: &str, outcome: impl std::fmt::Display) {
        self.lines.push(format!("   {what:<58} -> {outcome}"));
    }

    /// Moves the clock and runs what became due.
    async fn pass(&self, ms: u64) -> Result<()> {
        self.clock.advance(ms);
        while self.engine.run_due(self.clock.now(), 100).await?.handled > 0 {}
        Ok(())
    }

    async fn claim(&self, worker: &str) -> Result<Option<Handle>> {
        let policy = ClaimPolicy::new(name(worker), name(&format!("{worker}-1")), 30_000);
        self.engine.claim(&name("default"), &CapabilitySet::default(), policy).await
    }

    async fn state(&self, id: ExecutionId) -> Result<String> {
        use ff_core::backend::inspection::Inspection;
        Ok(self.engine.read_execution_state(id).await?.map_or_else(|| "absent".to_owned(), |state| state.to_string()))
    }
}

/// Finishes a future that never has to wait: the memory store answers at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

/// The tour, line by line, and whether everything went as it should.
pub(crate) fn tour() -> (Vec<String>, bool) {
    match now(narrate()) {
        Ok(mut lines) => {
            let sound = simulate(&mut lines);
            (lines, sound)
        }
        Err(error) => (vec![format!("the tour broke off: {error}")], false),
    }
}

async fn narrate() -> Result<Vec<String>> {
    let clock = ManualClock::at(START);
    let settings = Settings { entropy: Arc::new(SeededEntropy::new(7)), ..Settings::default() };
    let engine = Engine::open(MemoryStore::new(Arc::new(clock.clone())), settings).await?;
    let mut tour = Tour { engine, clock, lines: Vec::new() };
    tour.lines.push(
        "FlowFabric keeps work that must not get lost. This tour runs it in memory, on a clock it moves itself."
            .to_owned(),
    );
    acts::takeover(&mut tour).await?;
    acts::approval(&mut tour).await?;
    acts::quorum(&mut tour).await?;
    acts::budget(&mut tour).await?;
    Ok(tour.lines)
}

/// A few seeds of the simulation.
fn simulate(lines: &mut Vec<String>) -> bool {
    let reports: Vec<_> = (0..SEEDS).map(|seed| run(Plan::new(seed, STEPS))).collect();
    let passed = reports.iter().filter(|report| report.violation.is_none()).count();
    let tallies = || reports.iter().flat_map(|report| report.tally.values());
    let (done, refused, lost) =
        tallies().fold((0, 0, 0), |(done, refused, lost), t| (done + t.done, refused + t.refused, lost + t.lost));
    let checked = Invariant::ALL.iter().filter(|invariant| invariant.class() != Class::AcrossStores).count();
    lines.extend([
        String::new(),
        format!("5. The same engine under trouble: {SEEDS} seeds of {STEPS} steps"),
        format!("   Workers die, replies get lost, commits collide, clocks jump; {checked} invariants are checked."),
        format!("   {done} calls were done, {refused} refused, {lost} lost in between"),
        format!("   {passed} of {SEEDS} seeds passed"),
        String::new(),
        "More: ff-sim sim --seeds 1000 --steps 2000, ff-sim replay --seed 3 --steps 300, ff-sim invariants".to_owned(),
    ]);
    passed == reports.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tour_shows_what_it_promises() {
        let (lines, sound) = tour();
        let text = lines.join("\n");

        assert!(sound, "{text}");
        assert!((30..=60).contains(&lines.len()), "{} lines", lines.len());
        for promised in ["stale_lease", "invalid_token", "resume_condition_satisfied", "rate_limited", "seeds passed"] {
            assert!(text.contains(promised), "{promised} is missing in\n{text}");
        }
    }
}
