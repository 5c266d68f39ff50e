//! Values that may be written in several forms. The kind of the TOML value selects the form, so that errors inside a value are
//! reported as for any other field.

use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that may be written bare or as text.
#[derive(Clone, Debug, JsonSchema, PartialEq)]
#[serde(untagged)]
pub enum Number {
    /// `2`
    Whole(#[schemars(range(max = u32::MAX))] u32),
    /// `0.5`
    Part(f64),
    /// `"0.5"`
    Text(String),
}

impl Number {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Whole(n) => n.to_string(),
            Self::Part(n) => n.to_string(),
            Self::Text(t) => t.clone(),
        }
    }
}

/// A text that says a number is written as one, so that a limit is of one type whether a file, a flag or a variable gives it.
impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // So many decimal digits an `f64` gives back as they were.
        const DIGITS: usize = 15;
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|octet| octet.is_ascii_digit());
        let is_plain = |text: &str| text.len() <= DIGITS && text.split('.').all(is_digits);
        match self {
            Self::Whole(number) => number.serialize(serializer),
            Self::Part(number) => number.serialize(serializer),
            Self::Text(text) if is_plain(text) => match (text.parse::<u64>(), text.parse::<f64>()) {
                (Ok(number), _) => number.serialize(serializer),
                (_, Ok(number)) => number.serialize(serializer),
                _ => text.serialize(serializer),
            },
            Self::Text(text) => text.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, bare as in `0.5` or in quotes")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
                // The field's own parser refuses a number out of range, and quotes it as it was written.
                Ok(u32::try_from(number).map_or_else(|_| Number::Text(number.to_string()), Number::Whole))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
                Ok(u32::try_from(number).map_or_else(|_| Number::Text(number.to_string()), Number::Whole))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Number, E> {
                Ok(Number::Part(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
                Ok(Number::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// Deserializes a word of a closed set that may be left out. A value of another kind is told the words.
pub(super) fn word<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: for<'word> Deserialize<'word>,
    D: Deserializer<'de>,
{
    struct Written<T>(PhantomData<T>);

    impl<T: for<'word> Deserialize<'word>> Visitor<'_> for Written<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            // The set tells its words to whoever names none of them.
            let none = T::deserialize(StrDeserializer::<serde::de::value::Error>::new("")).err();
            let none = none.map(|error| error.to_string()).unwrap_or_default();
            let words = none.split_once("expected ").map_or("one of its words", |(_, words)| words);
            write!(f, "{words}, in quotes")
        }

        fn visit_str<E: Error>(self, word: &str) -> Result<Option<T>, E> {
            T::deserialize(StrDeserializer::new(word)).map(Some)
        }

        fn visit_unit<E: Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }
    }

    deserializer.deserialize_any(Written(PhantomData))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}

/// A value, or a list of them.
#[derive(Clone, Debug, Serialize, JsonSchema, PartialEq)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// One.
    One(T),
    /// A list.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Returns all values.
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Written<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one value, or a list of them in brackets")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(StrDeserializer::new(text)).map(OneOrMany::One)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(OneOrMany::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(OneOrMany::Many)
            }
        }

        deserializer.deserialize_any(Written(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_shown_as_one_however_it_is_written() {
        for (text, shown) in [
            ("1", "1"),
            ("0.5", "0.5"),
            ("2.50", "2.5"),
            ("5000000000", "5000000000"),
            ("0.0000001", "1e-7"),
            ("", "\"\""),
            ("-1", "\"-1\""),
            ("1e3", "\"1e3\""),
            (".5", "\".5\""),
            ("1.", "\"1.\""),
            ("1.2.3", "\"1.2.3\""),
            ("1234567890.123456", "\"1234567890.123456\""),
        ] {
            let number = Number::Text(text.into());
            assert_eq!(serde_json::to_string(&number).unwrap(), shown, "{text}");
            // Written in a file and read from it, it is the same number.
            let table = std::collections::BTreeMap::from([("n", &number)]);
            let again: std::collections::BTreeMap<String, Number> =
                toml::from_str(&toml::to_string(&table).unwrap()).unwrap();
            let same = again["n"].text() == text || again["n"].text().parse::<f64>() == text.parse::<f64>();
            assert!(same, "{text}: {again:?}");
        }
    }
}
