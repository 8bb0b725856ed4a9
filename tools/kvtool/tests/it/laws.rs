//! The laws that hold for the tool: a round trip keeps everything or says what it leaves out, and
//! the tool means what it says.

mod law1_short_commands;
mod law6_round_trip;
mod law7_says_what_it_does;
