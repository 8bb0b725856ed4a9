//! Law 7: the tool means what it says. No flag is ignored, no ambiguous input is decided silently,
//! and each error names its cure.
