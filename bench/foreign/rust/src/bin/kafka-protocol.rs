//! kafka-protocol: `RecordBatchDecoder::decode`, the only way to records that it exports.
//!
//! A batch at a time, so that the vector of one batch is freed, and its memory warm, before the next. The input is
//! `Bytes`, of which keys and values are counted slices, nothing copied. Magic 0 and 1 it doesn't read.

use bytes::{Buf, Bytes};
use foreign::{serve, Sums};
use kafka_protocol::records::RecordBatchDecoder;

fn main() {
    serve("kafka-protocol", |data: &Bytes| {
        let mut left = data.clone();
        let mut sums = Sums::default();
        while left.has_remaining() {
            for record in &RecordBatchDecoder::decode(&mut left)?.records {
                let length = |field: &Option<Bytes>| field.as_ref().map_or(0, Bytes::len);
                sums.add(record.offset, record.timestamp, length(&record.key), length(&record.value));
            }
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(sums)
    });
}
