//! krabka-protocol: batches and records borrowed from the input, nothing copied and nothing allocated.
//!
//! `validate_one_v2_batch` checks the CRC; `validate_record_summaries_with` then shows each record to a function, its
//! headers checked but not collected. No other way into this crate is faster: its iterator (`RecordBatchBorrowed`) makes
//! a vector of each record's headers. Of the crates that decode without copying it was the fastest found: barnabas-core
//! (`decode_lean`) takes four times as long to give lengths, since it counts references for them. Magic 0 and 1 it
//! doesn't read.

use bytes::Bytes;
use foreign::{serve, Sums};
use krabka_compression::RecordDecompressionPolicy;
use krabka_protocol::records::{validate_one_v2_batch, RecordsError};

fn main() {
    serve("krabka-protocol", |data: &Bytes| {
        let mut left: &[u8] = data;
        let mut sums = Sums::default();
        while !left.is_empty() {
            let batch = validate_one_v2_batch(left)?;
            let (offset, timestamp) = (batch.header.base_offset.get(), batch.header.base_timestamp.get());
            batch.validate_record_summaries_with(RecordDecompressionPolicy::default(), |record| {
                let length = |field: Option<&[u8]>| field.map_or(0, <[u8]>::len);
                sums.add(
                    offset + i64::from(record.offset_delta),
                    timestamp + record.timestamp_delta,
                    length(record.key),
                    length(record.value),
                );
            })?;
            left = &left[batch.total_len..];
        }
        Ok::<_, RecordsError>(sums)
    });
}
