//! Finding work for workers: queues, admission, parking.
