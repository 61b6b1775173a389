//! Values that a worker shares with its handlers, one of each type.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

/// Values by their type.
#[derive(Default)]
pub(crate) struct State(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl State {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.get(&TypeId::of::<T>())?).downcast().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_type() {
        let mut state = State::default();
        state.insert(7_u8);
        state.insert("text");
        assert_eq!(state.get::<u8>().as_deref(), Some(&7));
        assert_eq!(state.get::<&str>().as_deref(), Some(&"text"));
        assert!(state.get::<u16>().is_none());
    }
}
