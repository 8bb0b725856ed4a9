//! Law 6: a round trip keeps everything, or says what it leaves out.
