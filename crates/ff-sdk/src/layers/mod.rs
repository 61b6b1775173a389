//! Behaviour around every operation of a backend.
