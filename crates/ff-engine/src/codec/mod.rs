//! Records, keys and indexes as bytes: the one form in which every store on disk keeps them.
//!
//! Codes are part of stored data: a code is given once and never again, a new kind takes the next one.

mod bodies;
mod indexes;
mod keys;
mod parts;
mod ranges;

pub use bodies::{decode_event, decode_record, encode_event, encode_record, encode_shared_record};
pub use indexes::{encode_index, encode_queue};
pub use keys::{decode_key, encode_key, key_prefix};
pub use ranges::KeyRange;
