#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tamis::fuzz::run("range_filter", data);
});
