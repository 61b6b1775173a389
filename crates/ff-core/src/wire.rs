//! Two forms of one value: text for people and JSON, bytes for compact formats.
//!
//! A format says which it is; but a value inside a tagged enum is buffered first, and then it no longer does. So reading accepts
//! either form whatever the format says.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Visitor};
use serde::{Deserializer, Serializer};

/// A value with a text form and a byte form.
pub(crate) trait TwoForms: Sized {
    /// What it is, for errors.
    const WHAT: &'static str;

    /// Reads the text form.
    fn from_text(text: &str) -> Result<Self, String>;

    /// Reads the byte form; `None` when it is none.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

struct EitherForm<T>(PhantomData<T>);

impl<T: TwoForms> Visitor<'_> for EitherForm<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text).map_err(E::custom)
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<T, E> {
        T::from_bytes(bytes).ok_or_else(|| E::custom(format_args!("{} bytes are not {}", bytes.len(), T::WHAT)))
    }
}

/// Reads either form.
pub(crate) fn read<'de, T: TwoForms, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    if deserializer.is_human_readable() {
        deserializer.deserialize_str(EitherForm(PhantomData))
    } else {
        deserializer.deserialize_bytes(EitherForm(PhantomData))
    }
}

/// Writes the form that the format wants.
pub(crate) fn write<S: Serializer>(serializer: S, text: impl fmt::Display, bytes: &[u8]) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() { serializer.collect_str(&text) } else { serializer.serialize_bytes(bytes) }
}

struct Text<T, F>(&'static str, F, PhantomData<T>);

impl<T, E2: fmt::Display, F: FnOnce(&str) -> Result<T, E2>> Visitor<'_> for Text<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }
}

/// Reads a value that is always text, without a copy in between.
pub(crate) fn read_text<'de, T, E: fmt::Display, D: Deserializer<'de>>(
    deserializer: D,
    what: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(Text(what, parse, PhantomData))
}
