//! Law 8: types do not lie. A state that cannot be is an error, never a default.

mod numbers;
