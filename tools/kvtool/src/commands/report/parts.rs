//! Parts that all chapters of a report have: paragraphs, pictures, names.

use std::fmt::Display;

use crate::markup::{Markup, element, words};
use crate::text::Form;

/// A name as it may be shown: control characters and the like as escapes.
pub(super) fn name_of(name: &str) -> String {
    shown(if name.is_empty() { "\"\"" } else { name })
}

/// Text that a user or a store has given, in short.
pub(super) fn shown(text: &str) -> String {
    Form::Plain.show_short(text.as_bytes(), 80)
}

pub(super) fn section(title: &str, content: Markup) -> Markup {
    element("section", &[], element("h2", &[], words(title)).and(content))
}

pub(super) fn paragraph(text: impl Display) -> Markup {
    element("p", &[], words(text))
}

/// A paragraph of [`prose`].
pub(super) fn hint(text: impl Display) -> Markup {
    element("p", &[], prose(&text.to_string()))
}

/// Text of kvtool's own, in which what stands between backticks is code. Names and paths may hold
/// backticks, and are no such text.
pub(super) fn prose(text: &str) -> Markup {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { element("code", &[], words(part)) } else { words(part) }).collect()
}

/// A picture, with what it shows above and how to read it below.
pub(super) fn figure(title: &str, caption: Markup, picture: Markup) -> Markup {
    let head = element("h3", &[], words(title));
    element("figure", &[], head.and(picture).and(element("figcaption", &[], caption)))
}

pub(super) fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
