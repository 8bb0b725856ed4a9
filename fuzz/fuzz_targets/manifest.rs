#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tamis::fuzz::run("manifest", data));
