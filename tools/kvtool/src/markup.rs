//! [`Markup`]: HTML and SVG that is well-formed, and whose text is escaped, by construction.
//!
//! Elements are closed as XML wants it, so that browsers and parsers of XML read one document. Text
//! and attributes may be anything: of what a store holds, nothing becomes markup.

use std::fmt::{self, Display, Write};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Markup(String);

/// Names and values.
pub(crate) type Attributes<'a> = &'a [(&'static str, &'a dyn Display)];

impl Markup {
    pub(crate) fn new() -> Markup {
        Markup::default()
    }

    /// What a page of HTML begins with.
    pub(crate) fn doctype() -> Markup {
        Markup("<!DOCTYPE html>\n".to_owned())
    }

    /// A style sheet, which is no text: it is a part of the program.
    pub(crate) fn style(sheet: &'static str) -> Markup {
        Markup(format!("<style>{sheet}</style>\n"))
    }

    pub(crate) fn and(mut self, more: Markup) -> Markup {
        self.0.push_str(&more.0);
        self
    }
}

impl Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromIterator<Markup> for Markup {
    fn from_iter<I: IntoIterator<Item = Markup>>(parts: I) -> Markup {
        parts.into_iter().fold(Markup::new(), Markup::and)
    }
}

/// Text as markup.
pub(crate) fn words(text: impl Display) -> Markup {
    let mut markup = Markup::new();
    // Writing to memory does not fail.
    let _ = write!(Escaped(&mut markup.0), "{text}");
    markup
}

pub(crate) fn element(name: &'static str, attributes: Attributes<'_>, content: Markup) -> Markup {
    let Markup(mut out) = begin(name, attributes);
    out.push('>');
    out.push_str(&content.0);
    let _ = write!(out, "</{name}>");
    if !matches!(name, "b" | "code" | "a" | "th" | "td" | "tspan") {
        out.push('\n');
    }
    Markup(out)
}

/// An element without content, of those that HTML closes at once or of SVG.
pub(crate) fn empty(name: &'static str, attributes: Attributes<'_>) -> Markup {
    let Markup(mut out) = begin(name, attributes);
    out.push_str("/>\n");
    Markup(out)
}

fn begin(name: &'static str, attributes: Attributes<'_>) -> Markup {
    let mut out = format!("<{name}");
    for (name, value) in attributes {
        let _ = write!(out, " {name}=\"");
        let _ = write!(Escaped(&mut out), "{value}");
        out.push('"');
    }
    Markup(out)
}

/// Escapes what is written to it.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\t' | '\n' => self.0.push(c),
                // No document may hold these, even escaped, or they turn the text around.
                '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => self.0.push('\u{fffd}'),
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => self.0.push('\u{fffd}'),
                _ => self.0.push(c),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_text_or_attributes_is_markup() {
        let text = "<script>alert('x')</script>&\"\u{0}\u{1b}\u{202e}\u{ffff}é\n";
        let escaped = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\u{fffd}\u{fffd}\u{fffd}\u{fffd}é\n";
        assert_eq!(words(text).to_string(), escaped);
        let markup = element("td", &[("title", &text)], words(text));
        assert_eq!(markup.to_string(), format!("<td title=\"{escaped}\">{escaped}</td>"));
    }

    #[test]
    fn elements_are_closed() {
        let row = element("tr", &[], [words("a"), empty("br", &[])].into_iter().collect());
        assert_eq!(row.to_string(), "<tr>a<br/>\n</tr>\n");
    }
}
