//! What goes wrong with servers and processes, and what must hold all the same: [`rounds`] under load, [`waits`] of those who wait meanwhile,
//! [`takeover`] of what a dead process held.

mod crew;
mod follower;
pub mod rounds;
pub mod takeover;
pub mod waits;

use std::sync::Arc;

use libtest_mimic::Failed;
use serde::{Deserialize, Serialize};

use crate::journal::caller::{self, Manner};
use crate::site::{Site, finish, orders};

/// Servers that a store is on.
pub trait Ground {
    /// Where the store is.
    type Site: Site;

    /// The store.
    fn site(&self) -> Self::Site;

    /// The store, for the processes of the load.
    fn site_of_load(&self) -> Self::Site {
        self.site()
    }

    /// Returns when whatever dead processes of the load have asked for is done, or never will be.
    ///
    /// # Errors
    /// When that takes too long.
    fn outlive_the_dead(&self) -> Result<(), Failed>;

    /// Waits until nobody asks the servers for anything.
    ///
    /// # Errors
    /// When that takes too long.
    fn wait_until_still(&self) -> Result<(), Failed>;
}

/// What a process of the test does, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Orders<S> {
    /// Works until it is killed.
    Work { site: S, manner: Manner },
    /// Holds what there is to hold until it is killed.
    Hold { site: S },
}

/// Does what this process was told to, if a test started it; says whether that is so.
///
/// # Panics
/// When the store does not open.
#[must_use]
pub fn obey<S: Site>() -> bool {
    let Some(orders) = orders::<Orders<S>>() else { return false };
    finish(async {
        match orders {
            Orders::Work { site, manner } => {
                let backend = site.open(None).await.expect("the store opens");
                caller::work(Arc::new(backend), &manner).await;
            }
            Orders::Hold { site } => takeover::hold(&site).await,
        }
    });
    true
}
