//! The surface `manifest` under libFuzzer; without it, over files.
#![cfg_attr(fuzzing, no_main)]

#[global_allocator]
static COUNTING: feedmill_fuzz::memory::Counting = feedmill_fuzz::memory::Counting;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| feedmill_fuzz::body::run("manifest", data));

#[cfg(not(fuzzing))]
fn main() {
    feedmill_fuzz::body::replay("manifest");
}
