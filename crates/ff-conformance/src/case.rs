//! Cases as named trials.

use std::process::ExitCode;
use std::sync::Arc;

use ff_core::backend::layer::{BoxFuture, Layered};
use libtest_mimic::{Arguments, Trial};

use crate::harness::Harness;
use crate::recorder::Recorder;
use crate::world::World;

/// One behaviour, named by a sentence.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(World) -> BoxFuture<'static, ()>,
}

/// Lists the cases of a facet; one that is not listed is dead code.
macro_rules! cases {
    ($group:literal: $($case:ident),* $(,)?) => {
        pub(crate) fn cases() -> Vec<$crate::Case> {
            vec![$($crate::Case {
                name: concat!($group, "::", stringify!($case)),
                run: |world| Box::pin($case(world)),
            }),*]
        }
    };
}
pub(crate) use cases;

/// Runs the suite against a store, as the test binary of that store.
pub fn run<H: Harness>(harness: H) -> ExitCode {
    run_trials(trials("", harness))
}

/// Runs trials as a test binary does: several suites, when a store comes in several forms.
pub fn run_trials(trials: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The suite as trials; a prefix tells one form of a store from another.
pub fn trials<H: Harness>(prefix: &str, harness: H) -> Vec<Trial> {
    let harness = Arc::new(harness);
    let trial = |case: Case| {
        let harness = Arc::clone(&harness);
        Trial::test(format!("{prefix}{}", case.name), move || {
            run_case(&*harness, &case, &Recorder::default());
            Ok(())
        })
    };
    crate::all_cases().into_iter().map(trial).collect()
}

/// Runs one case in a world of its own.
pub(crate) fn run_case<H: Harness>(harness: &H, case: &Case, recorder: &Recorder) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let instance = harness.open().await;
        let backend = Layered { inner: instance.backend, layer: recorder.clone() };
        (case.run)(World::new(Arc::new(backend), instance.control)).await;
    });
}
