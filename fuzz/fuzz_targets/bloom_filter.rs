#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tamis::fuzz::run("bloom_filter", data));
