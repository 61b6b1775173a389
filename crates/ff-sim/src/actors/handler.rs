//! What a handler does while it runs: it remembers steps, spawns children, and asks whether it still owns what it works on.

use ff_core::Blob;
use ff_core::backend::flows::SpawnChild;
use ff_core::backend::leases::AwaitLostLeasesArgs;

use super::actions;
use super::worker::{fenced, some_held};
use crate::call::{Call, Reply};
use crate::memory::{LANES, name, remember};
use crate::world::World;

actions![5 save_step, 4 tag, 4 spawn_children, 4 ask_for_losses];

async fn save_step(world: &World) {
    let Some(held) = some_held(world) else { return };
    let (step, value) = (format!("step-{}", world.rng().below(3)), world.rng().below(100).to_string());
    let engine = world.engine();
    let call = fenced("save_step", &held, &step);
    world.call(call, engine.save_step(&held.handle, &step, Blob::from(value.as_str()))).await;
}

async fn tag(world: &World) {
    let Some(held) = some_held(world) else { return };
    let value = world.rng().one_of(["red", "blue"]);
    let engine = world.engine();
    let call = fenced("tag", &held, &format!("app.team={value}"));
    world.call(call, engine.tag(&held.handle, "app.team", value)).await;
}

async fn spawn_children(world: &World) {
    let Some(held) = some_held(world) else { return };
    let count = 1 + world.rng().below(2);
    let children: Vec<SpawnChild> = (0..count)
        .map(|_| {
            let mut child = SpawnChild::new(format!("child-{}", world.rng().below(4)), "child", "input");
            child.lane_id = world.rng().chance(50).then(|| name(world.rng().one_of(LANES)));
            child
        })
        .collect();
    let engine = world.engine();
    // A caller whose reply was lost asks again.
    for _ in 0..2 {
        let call = fenced("spawn_children", &held, &format!("{count}"));
        match world.call(call, engine.spawn_children(&held.handle, children.clone())).await {
            Reply::Done(ids) => {
                let mut memory = world.memory();
                ids.into_iter().for_each(|id| remember(&mut memory.executions, id));
                return;
            }
            Reply::Lost => {}
            Reply::Refused(_) => return,
        }
    }
}

async fn ask_for_losses(world: &World) {
    let Some(held) = some_held(world) else { return };
    let worker = held.worker;
    let (instance, handles) = {
        let memory = world.memory();
        let own = memory.held.iter().filter(|other| other.worker == worker);
        (memory.workers[worker].instance(), own.map(|other| other.handle.clone()).collect())
    };
    let args = AwaitLostLeasesArgs { worker_instance_id: instance.clone(), handles, max_wait_ms: 0 };
    let engine = world.engine();
    let call = Call::new("await_lost_leases", format!("{instance} asks for {} handles", args.handles.len()));
    world.call(call, engine.await_lost_leases(args)).await;
}
