//! Real servers for tests and benchmarks: started on demand, alone on their port and in their directory, gone with whoever
//! started them. For Linux, where a process tells in which directory it works.

pub mod pgbouncer;
pub mod postgres;
pub mod valkey;

mod error;
mod guardian;
mod place;

pub use error::ServerError;
