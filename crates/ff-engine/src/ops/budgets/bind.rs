//! Attaching a budget or a quota to a scope, where creation looks for it.

use ff_core::Result;
use ff_core::backend::budgets::BudgetScope;
use ff_core::ids::{BudgetId, Namespace, QuotaPolicyId};
use ff_core::partition::Partition;

use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Scope, ScopeBinding};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// What is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    Budget(BudgetId),
    Quota(QuotaPolicyId),
}

impl Attach {
    /// Whether it was missing.
    fn to(self, binding: &mut ScopeBinding) -> bool {
        match self {
            Self::Budget(budget) => binding.budgets.insert(budget),
            Self::Quota(quota) => binding.quotas.insert(quota),
        }
    }
}

/// Attaches a policy to its scope; heals a binding that was lost between two commits.
pub(crate) async fn bind<S: Store>(
    engine: &Engine<S>,
    namespace: &Namespace,
    scope: &BudgetScope,
    what: Attach,
) -> Result<()> {
    let Some(scope) = Scope::of(namespace, scope) else { return Ok(()) };
    let bound: Option<ScopeBinding> = read_one(&engine.store, Key::scope_binding(scope.clone())).await?;
    if bound.is_some_and(|mut bound| !what.to(&mut bound)) {
        return Ok(());
    }
    engine.run(Bind { scope, what }).await
}

struct Bind {
    scope: Scope,
    what: Attach,
}

#[async_trait::async_trait]
impl Op for Bind {
    type Out = ();

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::scope_binding(self.scope.clone())]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let found = tx.get::<ScopeBinding>(Key::scope_binding(self.scope.clone())).await?;
        let mut binding = found.unwrap_or_else(|| ScopeBinding {
            scope: self.scope.clone(),
            budgets: Default::default(),
            quotas: Default::default(),
        });
        if self.what.to(&mut binding) {
            tx.put(binding);
        }
        Ok(())
    }
}
