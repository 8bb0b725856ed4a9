//! The eight laws of the store. Each file holds one law, by a matrix or a property over its kind of
//! fault; the laws about exchange formats and the command line are tested in `tools/kvtool`.

mod law1_deleted_is_gone;
mod law1_mixed_lengths;
mod law1_openings;
mod law2_bounded;
mod law2_damaged_value;
mod law2_operands;
mod law3_one_moment;
mod law4_outside;
mod law8_types;
