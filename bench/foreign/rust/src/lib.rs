//! What the decoders share: a line on standard input is one decode of the file, answered by one line of JSON.

use std::io::{self, BufRead, Write};
use std::time::Instant;

use bytes::Bytes;

/// Sums over all records, modulo 2^64; a null key or value counts as empty.
#[derive(Default)]
pub struct Sums {
    pub records: u64,
    pub offsets: i64,
    pub timestamps: i64,
    pub key_bytes: u64,
    pub value_bytes: u64,
}

impl Sums {
    #[inline(always)]
    pub fn add(&mut self, offset: i64, timestamp: i64, key_len: usize, value_len: usize) {
        self.records += 1;
        self.offsets = self.offsets.wrapping_add(offset);
        self.timestamps = self.timestamps.wrapping_add(timestamp);
        self.key_bytes = self.key_bytes.wrapping_add(key_len as u64);
        self.value_bytes = self.value_bytes.wrapping_add(value_len as u64);
    }
}

/// CPU time of this process, all threads of it.
fn cpu_seconds() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// The version of a dependency, as Cargo.lock has it.
fn version(package: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let entry = lock.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{package}\"\n")));
    entry.and_then(|entry| entry.split('"').nth(3)).unwrap_or("?")
}

/// Decode the file that the first argument names each time a line comes in, until there are no more.
pub fn serve<E: std::fmt::Display>(package: &str, decode: impl Fn(&Bytes) -> Result<Sums, E>) {
    let path = std::env::args().nth(1).expect("usage: PROGRAM FILE");
    let data = Bytes::from(std::fs::read(path).expect("the file can be read"));
    for _ in io::stdin().lock().lines() {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let sums = decode(&data).unwrap_or_else(|error| {
            eprintln!("{package} can't read it: {error}");
            std::process::exit(1)
        });
        let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let Sums { records, offsets, timestamps, key_bytes, value_bytes } = sums;
        println!(
            "{{\"name\": \"{package}\", \"version\": \"{}\", \"seconds\": {cpu:.9}, \"wall\": {wall:.9}, \
             \"records\": {records}, \"offsets\": {offsets}, \"timestamps\": {timestamps}, \
             \"keyBytes\": {key_bytes}, \"valueBytes\": {value_bytes}}}",
            version(package),
        );
        io::stdout().flush().expect("somebody listens");
    }
}
