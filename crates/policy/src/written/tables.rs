//! How a policy is read: a struct is written as a table, and as nothing else.
//!
//! Serde would also read a struct from a list of its fields in their order, and ignore what such a list has beyond them. TOML
//! gives a date or time as a map with one key of its own, so that a table of texts would take it for a table with that name.

use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Unexpected, Visitor,
};

/// Parses JSON in which a struct is written as an object.
///
/// # Errors
/// As those of `serde_json`, and if a list stands in the place of an object.
pub fn from_json<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = T::deserialize(Tables(&mut json))?;
    json.end()?;
    Ok(value)
}

/// A part of deserialization under which every struct is written as a table: a deserializer, what is deserialized from one, the
/// lists and maps of it, and the visitors they are shown to.
pub(super) struct Tables<T>(pub(super) T);

/// A struct's own visitor: it takes a map alone.
struct Struct<V>(V);

/// The key under which `toml` gives a date or time.
const MOMENT: &str = "$__toml_private_datetime";

fn refuse_moment<E: Error>(key: &str) -> Result<(), E> {
    match key {
        MOMENT => Err(E::invalid_type(Unexpected::Other("date or time"), &"a map")),
        _ => Ok(()),
    }
}

/// Passes a type's hint on, and shows what comes to the visitor.
macro_rules! pass_on {
    ($($hint:ident($($name:ident: $kind:ty),*))*) => {
        $(fn $hint<V: Visitor<'de>>(self, $($name: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$hint($($name,)* Tables(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Tables<D> {
    type Error = D::Error;

    pass_on! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_i128() deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128()
        deserialize_f32() deserialize_f64() deserialize_char() deserialize_str() deserialize_string()
        deserialize_bytes() deserialize_byte_buf() deserialize_option() deserialize_unit() deserialize_seq()
        deserialize_map() deserialize_identifier() deserialize_ignored_any()
        deserialize_unit_struct(name: &'static str) deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(len: usize) deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Struct(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Struct<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Tables(map))
    }
}

/// Shows a value to the visitor as it came.
macro_rules! show {
    ($($visit:ident($kind:ty))*) => {
        $(fn $visit<E: Error>(self, value: $kind) -> Result<V::Value, E> {
            self.0.$visit(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Tables<V> {
    type Value = V::Value;

    show! {
        visit_bool(bool) visit_i64(i64) visit_i128(i128) visit_u64(u64) visit_u128(u128) visit_f64(f64)
        visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
    }

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        refuse_moment(text)?;
        self.0.visit_str(text)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<V::Value, E> {
        refuse_moment(text)?;
        self.0.visit_borrowed_str(text)
    }

    fn visit_string<E: Error>(self, text: String) -> Result<V::Value, E> {
        refuse_moment(&text)?;
        self.0.visit_string(text)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Tables(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Tables(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Tables(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Tables(map))
    }

    // Every enum of a policy is a word.
    fn visit_enum<A: EnumAccess<'de>>(self, word: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(word)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Tables<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Tables(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Tables<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(Tables(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Tables(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Tables<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Tables(from))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::RunConfig;

    /// Returns the values of a part of the schema that have a list in the place of one struct, each as small as can be.
    fn with_a_list(root: &Value, node: &Value) -> Vec<Value> {
        if let Some(name) = node["$ref"].as_str().and_then(|at| at.rsplit('/').next()) {
            return with_a_list(root, &root["$defs"][name]);
        }
        let mut found = Vec::new();
        let forms = node["anyOf"].as_array().map(Vec::as_slice).unwrap_or_default();
        found.extend(forms.iter().flat_map(|form| with_a_list(root, form)));
        // A list is another form of this value.
        if forms.iter().any(|form| form["type"] == "array") {
            found.retain(|value| *value != json!([]));
        }
        if let Some(fields) = node["properties"].as_object() {
            found.push(json!([]));
            for (name, inner) in fields {
                found.extend(with_a_list(root, inner).into_iter().map(|value| json!({ name: value })));
            }
        }
        if node["items"].is_object() {
            found.extend(with_a_list(root, &node["items"]).into_iter().map(|value| json!([value])));
        }
        if node["additionalProperties"].is_object() {
            let inner = with_a_list(root, &node["additionalProperties"]);
            found.extend(inner.into_iter().map(|value| json!({ "x": value })));
        }
        found
    }

    #[test]
    fn no_struct_is_written_as_a_list() {
        let schema = serde_json::to_value(schemars::schema_for!(RunConfig)).unwrap();
        let wrong = with_a_list(&schema, &schema);
        for known in [
            json!([]),
            json!({ "limits": [] }),
            json!({ "mount": [[]] }),
            json!({ "workspace": [] }),
            json!({ "llm": { "price": [[]] } }),
            json!({ "env": { "variable": { "x": [] } } }),
            json!({ "provider": [{ "inject": [[]] }] }),
            json!({ "companion": [{ "egress": { "allow": [[]] } }] }),
        ] {
            assert!(wrong.contains(&known), "{known} is no place of a struct in the schema");
        }
        for value in wrong {
            let error = serde_json::from_value::<RunConfig>(value.clone()).unwrap_err().to_string();
            assert!(error.contains("invalid type: sequence"), "{value}: {error}");
        }
    }

    #[test]
    fn a_list_in_the_place_of_a_table_is_told_where_it_stands_and_what_goes_there() {
        for (text, line, told) in [
            (
                "limits = [\"256MiB\", 1, 100, \"1GiB\", \"required\", 7]",
                1,
                "expected a table, as in { memory",
            ),
            ("image = \"x\"\nmount = [[\"/usr\", \"/data\", \"ro\"]]", 2, "expected a mount, as in { source"),
            ("[[env]]\nFOO = \"bar\"", 1, "expected a table, as in { set"),
            ("\n[[llm]]\nrequests = 5", 2, "expected a table of models"),
        ] {
            let error = toml::from_str::<RunConfig>(text).unwrap_err();
            let start = error.span().unwrap().start;
            assert_eq!(1 + text[..start].matches('\n').count(), line, "{text}: {error}");
            assert!(
                error.message().starts_with("invalid type: sequence, ") && error.message().contains(told)
            );
        }
    }

    #[test]
    fn a_date_or_time_is_no_table() {
        let companion = "[[companion]]\nname = \"db\"\nimage = \"x\"\nports = [1]\n";
        for text in ["env.set = 07:32:00", "labels = 2020-01-01", &format!("{companion}env = 07:32:00")] {
            let error = toml::from_str::<RunConfig>(text).unwrap_err();
            assert_eq!(error.message(), "invalid type: date or time, expected a map", "{text}");
            assert_eq!(&text[error.span().unwrap()], text.rsplit(' ').next().unwrap());
        }
    }

    #[test]
    fn json_ends_where_its_value_ends() {
        assert!(from_json::<crate::RateConfig>(b"{\"requests_per_minute\": 1} ").is_ok());
        for text in ["[1]", "[1, 2]", "{\"requests_per_minute\": 1} 2"] {
            assert!(from_json::<crate::RateConfig>(text.as_bytes()).is_err(), "{text}");
        }
    }
}
