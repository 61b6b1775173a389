//! Who acts: each step picks one or a few actions by weight.

mod budget_keeper;
mod flow_builder;
mod handler;
mod handles;
mod operator;
mod reader;
mod signaller;
mod submitter;
mod suspender;
mod timers;
mod worker;

use std::future::Future;
use std::pin::Pin;

use crate::world::World;

pub(crate) use budget_keeper::{create_budget as new_budget, create_quota as new_quota};
pub(crate) use handles::held as open_handle;
pub(crate) use signaller::seed_secret as first_secret;
pub(crate) use timers::run_due_with;
pub(crate) use worker::consume as consume_grant;

/// An action under way.
pub(crate) type Acting<'w> = Pin<Box<dyn Future<Output = ()> + 'w>>;

/// Something an actor can do.
pub(crate) struct Action {
    weight: u32,
    run: for<'w> fn(&'w World) -> Acting<'w>,
}

/// Lists the actions of an actor with their weights.
macro_rules! actions {
    ($($weight:literal $action:ident),+ $(,)?) => {
        pub(super) const ACTIONS: &[$crate::actors::Action] = &[$($crate::actors::Action {
            weight: $weight,
            run: |world| Box::pin($action(world)),
        }),+];
    };
}
pub(crate) use actions;

const ACTORS: [&[Action]; 10] = [
    submitter::ACTIONS,
    worker::ACTIONS,
    handler::ACTIONS,
    suspender::ACTIONS,
    operator::ACTIONS,
    signaller::ACTIONS,
    flow_builder::ACTIONS,
    budget_keeper::ACTIONS,
    reader::ACTIONS,
    timers::ACTIONS,
];

/// The next action, chosen by weight.
pub(crate) fn next(world: &World) -> Acting<'_> {
    let all = || ACTORS.iter().flat_map(|actions| actions.iter());
    let chosen = world.rng().weighted(all().map(|action| action.weight));
    all().nth(chosen).map_or_else(|| Box::pin(std::future::ready(())) as Acting<'_>, |action| (action.run)(world))
}
