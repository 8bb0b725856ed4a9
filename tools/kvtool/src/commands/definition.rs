//! [`Definition`]: the line of JSON that says of which keyspace the lines after it are, and with
//! what options.
//!
//! ```text
//! {"schema":1,"keyspace":"sessions","options":{"ttl_ms":60000,"merge_operator":"tamis.append"}}
//! ```
//!
//! Options that are absent are the defaults. A compaction filter is code, and stored nowhere.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tamis::{
    BudgetLimit, Compression, FilterBudget, FilterPolicy, KeyspaceOptions, LevelFilters, PrefixExtractor,
    RangeFilterPolicy,
};

use super::operators::with_operator;

#[derive(Debug)]
pub(crate) struct Definition {
    pub(super) keyspace: String,
    pub(super) options: KeyspaceOptions,
}

impl Definition {
    pub(super) fn json(&self) -> Value {
        json!({ "keyspace": self.keyspace, "options": options_json(&self.options) })
    }

    /// Reads what [`json`](Definition::json) has written.
    pub(super) fn parse(keyspace: &Value, options: Option<Value>) -> Result<Definition, String> {
        let keyspace = keyspace.as_str().ok_or("keyspace is not a string")?.to_owned();
        let options = match options {
            None => KeyspaceOptions::new(),
            Some(Value::Object(fields)) => parse_options(fields)?,
            Some(_) => return Err("options is not an object".into()),
        };
        Ok(Definition { keyspace, options })
    }
}

fn options_json(options: &KeyspaceOptions) -> Value {
    json!({
        "filter": filter_json(options.filter),
        "level_filters": match &options.level_filters {
            LevelFilters::Each(policies) => json!(policies.iter().copied().map(filter_json).collect::<Vec<_>>()),
            LevelFilters::Budget(FilterBudget { limit, absent, .. }) => match limit {
                BudgetLimit::BitsPerKey(bits) => json!({ "bits_per_key": decimal(*bits), "absent": decimal(*absent) }),
                BudgetLimit::Bytes(bytes) => json!({ "bytes": bytes, "absent": decimal(*absent) }),
                _ => Value::Null,
            },
            _ => Value::Null,
        },
        "range_filter": match options.range_filter {
            RangeFilterPolicy::Ordered { bits_per_key } => json!({ "ordered": decimal(bits_per_key) }),
            _ => json!("none"),
        },
        "compression": match options.compression {
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
            _ => "none",
        },
        "block_size": options.block_size,
        "prefix": match options.prefix {
            Some(PrefixExtractor::Fixed(len)) => json!({ "fixed": len }),
            Some(PrefixExtractor::UpTo(delimiter)) => json!({ "up_to": delimiter }),
            None => Value::Null,
        },
        "ttl_ms": options.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        "wal": options.wal,
        "separate_values": options.separate_values,
        "merge_operator": options.merge_operator_name(),
    })
}

/// The shortest decimal that is this number again when it is read as an `f32`.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn filter_json(policy: FilterPolicy) -> Value {
    match policy {
        FilterPolicy::Bloom { bits_per_key } => json!({ "bloom": decimal(bits_per_key) }),
        FilterPolicy::BinaryFuse { fingerprint_bits } => json!({ "binary_fuse": fingerprint_bits }),
        _ => json!("none"),
    }
}

/// The content of an option, or why it is none.
type Read<T> = Result<T, String>;

fn parse_options(fields: Map<String, Value>) -> Read<KeyspaceOptions> {
    let mut options = KeyspaceOptions::new();
    for (name, value) in fields {
        let is_default = value.is_null();
        match name.as_str() {
            _ if is_default => {}
            "filter" => options.filter = parse_filter(&value)?,
            "level_filters" => options.level_filters = parse_level_filters(&value)?,
            "range_filter" => options.range_filter = parse_range_filter(&value)?,
            "compression" => {
                options.compression = match value.as_str() {
                    Some("none") => Compression::None,
                    Some("lz4") => Compression::Lz4,
                    Some("zstd") => Compression::Zstd,
                    _ => return Err(unknown("compression", &value)),
                }
            }
            "block_size" => options.block_size = number(&name, &value)?,
            "prefix" => options.prefix = Some(parse_prefix(&value)?),
            "ttl_ms" => options.ttl = Some(Duration::from_millis(number(&name, &value)?)),
            "wal" => options.wal = value.as_bool().ok_or_else(|| unknown("wal", &value))?,
            "separate_values" => options.separate_values = Some(number(&name, &value)?),
            "merge_operator" => {
                let operator = value.as_str().ok_or_else(|| unknown("merge_operator", &value))?;
                options = with_operator(options, operator);
            }
            _ => return Err(format!("this version does not know the option {name:?}")),
        }
    }
    Ok(options)
}

fn unknown(option: &str, value: &Value) -> String {
    format!("this version does not know the {option} {value}")
}

fn number<T: TryFrom<u64>>(name: &str, value: &Value) -> Read<T> {
    value.as_u64().and_then(|number| T::try_from(number).ok()).ok_or_else(|| unknown(name, value))
}

#[expect(clippy::cast_possible_truncation, reason = "it was written from an f32")]
fn float(value: Option<&Value>) -> Option<f32> {
    value?.as_f64().map(|number| number as f32)
}

/// The only field of an object: its name and content.
fn only_field(value: &Value) -> Option<(&str, &Value)> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.iter().next().map(|(name, value)| (name.as_str(), value))
}

fn parse_filter(value: &Value) -> Read<FilterPolicy> {
    let policy = match (value.as_str(), only_field(value)) {
        (Some("none"), _) => Some(FilterPolicy::None),
        (_, Some(("bloom", bits))) => float(Some(bits)).map(|bits_per_key| FilterPolicy::Bloom { bits_per_key }),
        (_, Some(("binary_fuse", bits))) => {
            Some(FilterPolicy::BinaryFuse { fingerprint_bits: number("binary_fuse", bits)? })
        }
        _ => None,
    };
    policy.ok_or_else(|| unknown("filter", value))
}

fn parse_level_filters(value: &Value) -> Read<LevelFilters> {
    if let Some(policies) = value.as_array() {
        return policies.iter().map(parse_filter).collect::<Read<Vec<_>>>().map(LevelFilters::Each);
    }
    let budget = match (float(value.get("bits_per_key")), value.get("bytes").and_then(Value::as_u64)) {
        (Some(bits), None) => Some(FilterBudget::bits_per_key(bits)),
        (None, Some(bytes)) => Some(FilterBudget::bytes(bytes)),
        _ => None,
    };
    match (budget, float(value.get("absent"))) {
        (Some(budget), Some(absent)) => Ok(LevelFilters::Budget(budget.absent(absent))),
        _ => Err(unknown("level_filters", value)),
    }
}

fn parse_range_filter(value: &Value) -> Read<RangeFilterPolicy> {
    match (value.as_str(), only_field(value)) {
        (Some("none"), _) => Some(RangeFilterPolicy::None),
        (_, Some(("ordered", bits))) => {
            float(Some(bits)).map(|bits_per_key| RangeFilterPolicy::Ordered { bits_per_key })
        }
        _ => None,
    }
    .ok_or_else(|| unknown("range_filter", value))
}

fn parse_prefix(value: &Value) -> Read<PrefixExtractor> {
    match only_field(value) {
        Some(("fixed", len)) => Ok(PrefixExtractor::Fixed(number("prefix", len)?)),
        Some(("up_to", delimiter)) => Ok(PrefixExtractor::UpTo(number("prefix", delimiter)?)),
        _ => Err(unknown("prefix", value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(options: KeyspaceOptions) {
        let definition = Definition { keyspace: "größe\0".into(), options };
        let mut json: Value = serde_json::from_str(&definition.json().to_string()).unwrap();
        let options = json.as_object_mut().unwrap().remove("options");
        let read = Definition::parse(&json["keyspace"], options).unwrap();
        assert_eq!((read.keyspace, read.options), (definition.keyspace, definition.options));
    }

    #[test]
    fn every_option_round_trips() {
        let new = KeyspaceOptions::new;
        let filters = [
            FilterPolicy::None,
            FilterPolicy::Bloom { bits_per_key: 7.3 },
            FilterPolicy::BinaryFuse { fingerprint_bits: 12 },
        ];
        round_trip(new());
        filters.iter().for_each(|filter| round_trip(new().filter(*filter)));
        round_trip(new().level_filters(LevelFilters::Each(filters.to_vec())));
        round_trip(new().level_filters(LevelFilters::Budget(FilterBudget::bits_per_key(3.7).absent(0.123))));
        round_trip(new().level_filters(LevelFilters::Budget(FilterBudget::bytes(u64::MAX))));
        for range_filter in [RangeFilterPolicy::ORDERED, RangeFilterPolicy::Ordered { bits_per_key: 7.3 }] {
            round_trip(new().range_filter(range_filter));
        }
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            round_trip(new().compression(compression));
        }
        round_trip(new().block_size(256).wal(false).separate_values(100).ttl(Duration::from_micros(1_500)));
        for prefix in [PrefixExtractor::Fixed(4095), PrefixExtractor::UpTo(0xff)] {
            round_trip(new().prefix(prefix));
        }
        for name in ["tamis.add.big", "tamis.union", "a program's own"] {
            round_trip(with_operator(new(), name));
        }
    }

    #[test]
    fn options_that_are_not_known_are_refused() {
        for options in [
            r#"{"ttl":1}"#,
            r#"{"ttl_ms":-1}"#,
            r#"{"filter":"x"}"#,
            r#"{"range_filter":"x"}"#,
            r#"{"range_filter":{"ordered":"x"}}"#,
            r#"{"block_size":4294967296}"#,
            "1",
        ] {
            let options = serde_json::from_str(options).unwrap();
            assert!(Definition::parse(&json!("k"), Some(options)).is_err());
        }
    }
}
