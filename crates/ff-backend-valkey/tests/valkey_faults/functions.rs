//! Servers that have lost our functions get them again from whoever calls one.

use ff_test_load::faults::Ground;
use ff_test_load::processes::{claim, create};
use ff_test_load::site::{Site as _, finish};
use ff_test_servers::valkey::{ValkeyServer, ValkeyServerOptions};
use libtest_mimic::Failed;

use crate::ground::{Alone, Together};
use crate::site::Site;

/// Enough to reach every shard.
const MANY: usize = 30;

/// The same store works before and after.
fn goes_on<G: Ground<Site = Site>>(mut ground: G, lose: impl Fn(&mut G) -> Result<(), Failed>) -> Result<(), Failed> {
    finish(async {
        let backend = ground.site().open(None).await?;
        create(&backend, MANY).await?;
        lose(&mut ground)?;
        create(&backend, MANY).await?;
        if claim(&backend, "afterwards", 1_000).await? { Ok(()) } else { Err("there is nothing to claim".into()) }
    })
}

fn flush<'s>(servers: impl IntoIterator<Item = &'s ValkeyServer>) -> Result<(), Failed> {
    for server in servers {
        server.ask(&["FUNCTION", "FLUSH"])?;
        if !server.ask(&["FUNCTION", "LIST"])?.is_empty() {
            return Err("the server still has functions".into());
        }
    }
    Ok(())
}

fn flush_primaries(ground: &Together) -> Result<(), Failed> {
    flush(ground.cluster.primaries().into_iter().map(|number| &ground.cluster.nodes()[number]))
}

pub(crate) fn flushed() -> Result<(), Failed> {
    goes_on(Alone::start()?, |ground| flush([&ground.0]))
}

pub(crate) fn flushed_on_a_cluster() -> Result<(), Failed> {
    goes_on(Together::start(0)?, |ground| flush_primaries(ground))
}

pub(crate) fn forgotten_with_everything_else() -> Result<(), Failed> {
    let forgetful = Alone(ValkeyServer::start(ValkeyServerOptions::default())?);
    goes_on(forgetful, |ground| Ok(ground.0.restart()?))
}

pub(crate) fn missing_where_a_replica_took_over() -> Result<(), Failed> {
    goes_on(Together::start(0)?, |ground| {
        ground.kill_primary(&mut fastrand::Rng::new())?;
        flush_primaries(ground)
    })
}
