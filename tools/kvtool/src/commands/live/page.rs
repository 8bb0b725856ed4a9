//! [`Page`]: the figures of a store, in Prometheus' text format.

use std::collections::BTreeMap;

/// The figures of a store at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Page {
    figures: Vec<Figure>,
}

#[derive(Clone, Debug, PartialEq)]
struct Figure {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Page {
    /// Reads a page; says what is wrong with the first line that is none.
    pub(super) fn parse(text: &str) -> Result<Page, String> {
        let mut figures = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            if !line.is_empty() && !line.starts_with('#') {
                figures.push(figure(line).ok_or_else(|| format!("line {number} is no figure: {line:?}"))?);
            }
        }
        Ok(Page { figures })
    }

    /// A figure, or the sum of those that differ in labels; `None` if there is none.
    pub(super) fn figure(&self, name: &str) -> Option<f64> {
        let mut values = self.named(name).map(|figure| figure.value).peekable();
        values.peek()?;
        Some(values.sum())
    }

    /// The figures of a name, summed for each value of a label, in their order on the page.
    pub(super) fn by_label(&self, name: &str, label: &str) -> Vec<(&str, f64)> {
        self.named(name).filter_map(|figure| Some((figure.labels.get(label)?.as_str(), figure.value))).collect()
    }

    /// The figure of a keyspace's level; 0 if there is none.
    pub(super) fn of_level(&self, name: &str, keyspace: &str, level: &str) -> f64 {
        let is_of = |figure: &&Figure| {
            figure.labels.get("keyspace").is_some_and(|of| of == keyspace)
                && figure.labels.get("level").is_some_and(|of| of == level)
        };
        self.named(name).find(is_of).map_or(0.0, |figure| figure.value)
    }

    /// Keyspaces and their levels, as they are on the page.
    pub(super) fn levels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named("tamis_level_bytes")
            .filter_map(|figure| Some((figure.labels.get("keyspace")?.as_str(), figure.labels.get("level")?.as_str())))
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(move |figure| figure.name == name)
    }
}

/// `name value` or `name{label="text",…} value`.
fn figure(line: &str) -> Option<Figure> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list;
        while !rest.starts_with('}') {
            let (label, quoted) = rest.split_once("=\"")?;
            let (text, after) = unquoted(quoted)?;
            labels.insert(label.to_owned(), text);
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.trim().parse().ok()?;
    Some(Figure { name: name.to_owned(), labels, value })
}

/// The text up to a quote, without its escapes, and what follows the quote.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let (mut text, mut chars) = (String::new(), quoted.char_indices());
    loop {
        match chars.next()? {
            (at, '"') => return Some((text, &quoted[at + 1..])),
            (_, '\\') => text.push(match chars.next()?.1 {
                'n' => '\n',
                c => c,
            }),
            (_, c) => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let db = tamis::Db::open(dir.path().join("db")).unwrap();
        let odd = db.keyspace("a \"b\\\nc}").unwrap();
        db.put("k", "v").unwrap();
        odd.put("k", "v").unwrap();
        db.flush().unwrap();
        let stats = db.stats();
        let page = Page::parse(&stats.to_prometheus()).unwrap();
        assert_eq!(page.figures.len(), stats.metrics().len());
        for metric in stats.metrics() {
            let labels = metric.labels.into_iter().map(|(label, value)| (label.to_owned(), value)).collect();
            let figure = Figure { name: metric.name.to_owned(), labels, value: metric.value };
            assert!(page.figures.contains(&figure), "{figure:?}");
        }
        assert_eq!(page.figure("tamis_last_seqno"), Some(2.0));
        assert_eq!(page.figure("tamis_level_entries"), Some(2.0));
        assert_eq!(page.levels().collect::<Vec<_>>(), [("default", "0"), (odd.name(), "0")]);
        assert_eq!(page.of_level("tamis_level_entries", odd.name(), "0"), 1.0);
        assert_eq!(page.figure("absent"), None);
    }

    #[test]
    fn what_is_no_page_is_refused() {
        for text in ["a", "a b", "a{b=\"c} 1", "a{b} 1", "a{b=\"c\" 1", "tamis_last_se"] {
            let error = Page::parse(&format!("# a comment\n\n{text}\n")).unwrap_err();
            assert!(error.starts_with("line 3 is no figure"), "{error}");
        }
        assert_eq!(Page::parse("").unwrap(), Page::default());
    }
}
