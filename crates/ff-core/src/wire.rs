//! Two forms of one value: text for people and JSON, bytes for compact formats.
//!
//! A format says which it is; but a value inside a tagged enum is buffered first, and then it no longer does. So reading accepts
//! either form whatever the format says.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

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

struct Word<T: 'static>(&'static str, &'static [T]);

impl<T: Copy + FromStr<Err: fmt::Display>> Visitor<'_> for Word<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    // Text formats hand over wider numbers only, which stay refused.
    fn visit_u8<E: de::Error>(self, place: u8) -> Result<T, E> {
        let word = self.1.get(usize::from(place)).copied();
        word.ok_or_else(|| E::custom(format_args!("{place} is the place of no {}", self.0)))
    }
}

/// Writes a literal, or its place among all.
pub(crate) fn write_word<S: Serializer>(serializer: S, text: &str, place: u8) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() { serializer.serialize_str(text) } else { serializer.serialize_u8(place) }
}

/// Reads either form of a literal.
pub(crate) fn read_word<'de, T: Copy + FromStr<Err: fmt::Display>, D: Deserializer<'de>>(
    deserializer: D,
    what: &'static str,
    all: &'static [T],
) -> Result<T, D::Error> {
    deserializer.deserialize_any(Word(what, all))
}
