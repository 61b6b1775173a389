//! Closed vocabularies: enums whose literal is the same in JSON and in logs.

/// Declares an enum of unit variants with one literal each.
///
/// Generates `ALL`, `as_str`, `Display`, `FromStr` and serde as that literal; an unknown literal is refused. Compact formats hold the place
/// of the value among all instead: a new one goes to the end, and none is taken away.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(test, derive(proptest_derive::Arbitrary))]
        $vis enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every value, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The literal used in JSON and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err($crate::words::UnknownWord { vocabulary: stringify!($name), text: text.to_owned() }),
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $crate::wire::write_word(serializer, self.as_str(), *self as u8)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::wire::read_word(deserializer, stringify!($name), Self::ALL)
            }
        }
    };
}
pub(crate) use words;

/// A literal that does not belong to its vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {vocabulary} {text:?}")]
pub struct UnknownWord {
    /// Name of the enum that was asked.
    pub vocabulary: &'static str,
    /// What was given.
    pub text: String,
}
